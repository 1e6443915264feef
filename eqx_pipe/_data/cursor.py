"""The position of a loader: a small pytree, and its text."""

import dataclasses
import json
import zlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, UInt32

from .._check import check_is
from .._errors import describe_value, type_error, value_error
from .._keys import check_draws, check_mapped_key
from .._tree import is_key_array
from .._types import Key

_NAME = "eqx_pipe.Cursor"
_FORMAT = 1
_LAST_EPOCH = 2**32 - 1

_Numbers = Array | np.ndarray


class Cursor(eqx.Module):
    """A position in the data: an epoch, and how many of its records were read.

    A cursor, which includes the PRNG key, determines all records and random draws of a
    `Loader` from there on. The order of records and the draws of `pipe` do not depend
    on the batch size or the number of hosts. `Loader.init` makes the first cursor;
    `Loader.next`, `scan` and `epoch` return later ones.

    It is a pytree of a few integer arrays: save it with a model by
    `equinox.tree_serialise_leaves`, or as text by `to_json`. It also identifies its
    source (the number and the structure of its records, shuffled or not), so a loader
    rejects the cursor of another source.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> loader = ep.data.Loader(ep.data.ArraySource(jnp.arange(10)), batch_size=4)
        >>> batch, cursor = loader.next(loader.init(jax.random.key(0)))
        >>> cursor.epoch, cursor.position
        (0, 4)
        >>> ep.data.Cursor.from_json(cursor.to_json())
        Cursor(epoch=0, position=4)
    """

    # Raw data: `equinox.tree_serialise_leaves` cannot write typed keys.
    words: UInt32[_Numbers, " words"]
    epochs: UInt32[_Numbers, ""]
    record: UInt32[_Numbers, "2"]
    made_for: UInt32[_Numbers, "3"]
    kind: str = eqx.field(static=True)

    def __repr__(self) -> str:
        try:
            shown = f"epoch={int(self.epochs)}, position={_joined(self.record)}"
        except (TypeError, ValueError):
            shown = "epoch=?, position=?"  # traced, or with an axis of examples
        return f"Cursor({shown})"

    @property
    def key(self) -> Key:
        """The PRNG key of all random draws."""
        return jr.wrap_key_data(jnp.asarray(self.words), impl=self.kind)

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 0; inside `jit`, use `epochs` instead."""
        check_concrete("data.Cursor.epoch", self)
        return int(self.epochs)

    @property
    def position(self) -> int:
        """The number of records of the epoch that were read."""
        check_concrete("data.Cursor.position", self)
        return _joined(self.record)

    def next_epoch(self) -> "Cursor":
        """Return the cursor at the beginning of the next epoch.

        **Raises:** `ValueError` after epoch 2^32 - 1, the last.
        """
        if is_concrete(self):
            _check_epoch("data.Cursor.next_epoch", int(self.epochs) + 1)
        later = self.epochs + np.uint32(1)
        epochs = later if isinstance(later, jax.Array) else np.asarray(later)
        return dataclasses.replace(self, epochs=epochs, record=split(0))

    def to_json(self) -> str:
        """Return the cursor as text."""
        check_concrete("data.Cursor.to_json", self)
        fields = {
            _NAME: _FORMAT,
            "key": np.asarray(self.words).tolist(),
            "kind": self.kind,
            "epoch": self.epoch,
            "position": self.position,
            "records": _joined(self.made_for),
            "form": _form(self),
        }
        checksum = zlib.crc32(json.dumps(fields, sort_keys=True).encode())
        return json.dumps(fields | {"checksum": checksum})

    @staticmethod
    def from_json(text: str) -> "Cursor":
        """Return the cursor from the text of `to_json`.

        **Raises:** `ValueError` if the text is not that of a cursor, or was changed.
        """
        try:
            return _parsed(json.loads(text, object_pairs_hook=_unique))
        # Text that is nested too deeply raises a `RecursionError`.
        except _WRONG as why:
            raise value_error(
                "data.Cursor.from_json",
                f"`text` is {describe_value(text)}, not a cursor: {why!s:.200}.",
                "Give what `to_json` returned.",
            ) from None


_WRONG = KeyError, OverflowError, RecursionError, TypeError, ValueError


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a text; raise if a name occurs twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def _parsed(fields: Any) -> Cursor:
    """Return the cursor from the fields of a text, after checks."""
    cursor = Cursor(
        words=np.asarray(fields["key"], np.uint32),
        epochs=np.asarray(fields["epoch"], np.uint32),
        record=split(fields["position"]),
        made_for=_made_for(fields["records"], fields["form"]),
        kind=fields["kind"],
    )
    check_draws("data.Cursor.from_json", "`key` is", cursor.key)
    # Changed numbers, numbers out of range or of another type, and unknown fields do
    # not survive the round trip, which includes the checksum.
    again = json.loads(cursor.to_json())
    if json.dumps(again, sort_keys=True) != json.dumps(fields, sort_keys=True):
        raise ValueError("it was changed: its fields do not fit its checksum")
    if cursor.position > fields["records"]:
        raise ValueError("its position is after the last record")
    return cursor


def start(key: Key, size: int, schema: int) -> Cursor:
    """Return the cursor at the beginning of the first epoch."""
    check_mapped_key("data.Loader.init", key, required=True)
    if not is_key_array(key):
        key = jr.wrap_key_data(jnp.asarray(key))
    words = jr.key_data(key)
    return Cursor(
        # In NumPy where possible, so that reading a cursor does not wait for a device.
        words=words if isinstance(words, Tracer) else np.asarray(words),
        epochs=np.asarray(0, np.uint32),
        record=split(0),
        made_for=_made_for(size, schema),
        kind=str(jr.key_impl(key)),
    )


def split(number: int) -> UInt32[np.ndarray, "2"]:
    """Return a number below 2^64 as its lower and upper half."""
    return np.asarray([number % 2**32, number // 2**32], np.uint32)


def _joined(halves: UInt32[_Numbers, "..."]) -> int:
    """Return the number from its lower and upper half."""
    low, high = np.asarray(halves).tolist()[:2]
    return low + 2**32 * high


def _form(cursor: Cursor) -> int:
    # Moved to the host first: indexing an array on the device compiles a program.
    return int(np.asarray(cursor.made_for)[2])


def _made_for(size: int, schema: int) -> UInt32[np.ndarray, "3"]:
    return np.concatenate([split(size), np.asarray([schema], np.uint32)])


def is_concrete(cursor: Cursor) -> bool:
    """Return whether the position of a cursor is concrete, not traced."""
    return not any(isinstance(x, Tracer) for x in (cursor.epochs, cursor.record))


def check_concrete(function: str, cursor: Cursor) -> None:
    """Raise a `TypeError` if the position of the cursor is traced."""
    if not is_concrete(cursor):
        raise type_error(
            function,
            "the cursor is traced, so its position is not known.",
            "Call it outside of `jit` and `vmap`; inside, use `next` or `scan` of "
            "a loader with a source on the device.",
        )


def check_last_epoch(function: str, cursor: Cursor, records: int, size: int) -> None:
    """Raise a `ValueError` if the next records are beyond the last epoch of `size`.

    Cursors on the device are not checked: reading one waits for the device. They begin
    as a NumPy cursor, and count 2^32 epochs to get there.
    """
    if isinstance(cursor.epochs, np.ndarray) and isinstance(cursor.record, np.ndarray):
        over = (_joined(cursor.record) + records - 1) // size
        _check_epoch(function, int(cursor.epochs) + over)


def _check_epoch(function: str, epoch: int) -> None:
    if epoch > _LAST_EPOCH:
        raise value_error(
            function,
            f"epoch {epoch} does not exist: the last is 2^32 - 1.",
            "Begin again with another key: `loader.init(key)`.",
        )


def check_cursor(function: str, cursor: Cursor, size: int, form: int) -> None:
    """Raise unless a cursor was made for a source of this size and schema."""
    cure = "Give a `Cursor`: `loader.init(jax.random.key(0))` makes the first."
    check_is(function, "cursor", cursor, Cursor, cure)
    if not isinstance(cursor.made_for, Tracer):
        other = _joined(cursor.made_for)
        if other != size or _form(cursor) != form:
            wrong = f"{other} records, and this source has {size}"
            if other == size:
                wrong = "records of another form, or another order (`shuffle`)"
            raise value_error(
                function,
                f"the cursor is of another source: it was made for {wrong}.",
                "Continue with the source and `shuffle` that it was made for, or "
                "begin again with `loader.init(key)`.",
            )
