"""Where a loader stands: a small pytree, and its text."""

import dataclasses
import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, UInt32

from .._errors import describe_value, type_error, value_error
from .._keys import check_draws, check_key
from .._tree import is_key_array
from .._types import Key
from .cursor_text import FORMAT, NAME, fields

# `fold_in` takes 32 bits: a later epoch would draw what an earlier one drew.
_LAST = 2**32 - 1
_Numbers = Array | np.ndarray


class Cursor(eqx.Module):
    """A place in the data: an epoch, and how many of its records were given.

    Together with the key it decides everything that a `Loader` gives from there on,
    whatever the batch size and the number of hosts. It is made by `Loader.init`, and
    moved by `Loader.next`, `scan` and `epoch`.

    It holds only a few integers, in arrays: save it with a model by
    `equinox.tree_serialise_leaves`, or as text by `to_json`. What it was made for (how
    many records, of what form, shuffled or not) goes along, so that a loader refuses
    the cursor of another.

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
        place = _place(self)
        if isinstance(place, str):
            return f"Cursor(epoch={place}, position={place})"
        return f"Cursor(epoch={place[0]}, position={place[1]})"

    @property
    def key(self) -> Key:
        """The PRNG key from which everything is drawn."""
        return jr.wrap_key_data(jnp.asarray(self.words), impl=self.kind)

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 0; inside `jit`, look at `epochs` instead."""
        check_concrete("data.Cursor.epoch", self)
        return int(self.epochs)

    @property
    def position(self) -> int:
        """How many records of the epoch were given."""
        check_concrete("data.Cursor.position", self)
        return _joined(self.record)

    def next_epoch(self) -> "Cursor":
        """The beginning of the epoch that follows, from anywhere in this one.

        **Raises:** `ValueError` behind epoch 2^32 - 1, the last one.
        """
        if not isinstance(self.epochs, Tracer):
            check_epoch("data.Cursor.next_epoch", self.epoch + 1)
        return dataclasses.replace(
            self, epochs=later(self.epochs, np.uint32(1)), record=split(0)
        )

    def to_json(self) -> str:
        """The cursor as text."""
        check_concrete("data.Cursor.to_json", self)
        return json.dumps(
            {
                NAME: FORMAT,
                "key": np.asarray(self.words).tolist(),
                "kind": self.kind,
                "epoch": self.epoch,
                "position": self.position,
                "records": _joined(self.made_for),
                "form": _schema_hash(self),
            }
        )

    @staticmethod
    def from_json(text: str, like: "Cursor | None" = None) -> "Cursor":
        """The cursor of a text that `to_json` made.

        **Arguments:**

        - `text`: the text.
        - `like`: a cursor of the same run, such as `loader.init(key)`. If given, a text
            of another key or another source is refused.

        **Raises:** `ValueError` if the text is none of a cursor, or not of this run.
        """
        try:
            found = fields(text)
        except ValueError as error:
            raise value_error(
                "data.Cursor.from_json",
                f"`text` is {describe_value(text)}, {error}.",
                "Give what `to_json` returned.",
            ) from None
        cursor = Cursor(
            words=np.asarray(found["key"], np.uint32),
            epochs=np.asarray(found["epoch"], np.uint32),
            record=split(found["position"]),
            made_for=_made_for(found["records"], found["form"]),
            kind=found["kind"],
        )
        if like is not None:
            _check_alike(cursor, like)
        return cursor


def start(key: Key | None, size: int, schema: int) -> Cursor:
    """The cursor at the beginning of the first epoch."""
    if key is None:
        raise type_error(
            "data.Loader.init", "no key.", "Give one: `jax.random.key(0)`."
        )
    check_key("data.Loader.init", key)
    check_draws("data.Loader.init", "`key` is", key)
    if not is_key_array(key):
        key = jr.wrap_key_data(jnp.asarray(key))
    words = jr.key_data(key)
    return Cursor(
        # In NumPy where possible: whoever looks at a cursor need not wait for a device.
        words=words if isinstance(words, Tracer) else np.asarray(words),
        epochs=np.asarray(0, np.uint32),
        record=split(0),
        made_for=_made_for(size, schema),
        kind=str(jr.key_impl(key)),
    )


def split(number: int) -> UInt32[np.ndarray, "2"]:
    """A number below 2^64 as its lower and upper half."""
    return np.asarray([number % 2**32, number // 2**32], np.uint32)


def _joined(halves: UInt32[_Numbers, "..."]) -> int:
    """The number whose halves come first."""
    low, high = np.asarray(halves).tolist()[:2]
    return low + 2**32 * high


def _place(cursor: Cursor) -> tuple[int, int] | str:
    """Epoch and position, or a word on why they have no numbers."""
    if not is_concrete(cursor):
        return "traced"
    if np.shape(cursor.epochs):
        return f"a batch of {'x'.join(map(str, np.shape(cursor.epochs)))}"
    if not isinstance(cursor.epochs, _Numbers):
        return "unknown"
    return cursor.epoch, cursor.position


def _schema_hash(cursor: Cursor) -> int:
    # First on the host: an index of an array on the device is a program to compile.
    return int(np.asarray(cursor.made_for)[2])


def _made_for(size: int, schema: int) -> UInt32[np.ndarray, "3"]:
    return np.concatenate([split(size), np.asarray([schema], np.uint32)])


def later(
    epoch: UInt32[_Numbers, "..."], count: UInt32[_Numbers, "..."] | np.uint32
) -> Any:
    """The epoch that is so many behind `epoch`, and the last one if there is none.

    Whoever knows the values says so first, by `check_epoch`; where they are traced, the
    last epoch comes again, and not the first with all its draws.
    """
    xp = jnp if isinstance(epoch, jax.Array) or isinstance(count, jax.Array) else np
    return xp.asarray(epoch + xp.minimum(count, np.uint32(_LAST) - epoch))


def check_epoch(function: str, epoch: int) -> None:
    """Raises a `ValueError` if there is no epoch of that number."""
    if epoch > _LAST:
        raise value_error(
            function,
            f"epoch {_LAST} is the last one: its number is kept in 32 bits.",
            "Begin anew with another key: `loader.init(key)`.",
        )


def is_concrete(cursor: Cursor) -> bool:
    """Whether the place of a cursor has values, and is not traced."""
    return not any(isinstance(x, Tracer) for x in (cursor.epochs, cursor.record))


def check_concrete(function: str, cursor: Cursor) -> None:
    """Raises a `TypeError` if the place of the cursor is traced."""
    if not is_concrete(cursor):
        raise type_error(
            function,
            "the cursor is traced, and its place is asked for.",
            "Call it outside of `jit` and `vmap`; inside, use `next` or `scan` of "
            "a loader whose source is on the device.",
        )


def check_cursor(function: str, cursor: object, size: int, form: int) -> None:
    """Raises unless the cursor was made for such a source, as far as can be told."""
    if not isinstance(cursor, Cursor):
        raise type_error(
            function,
            f"`cursor` is {describe_value(cursor)}.",
            "Give a `Cursor`: `loader.init(jax.random.key(0))` makes the first.",
        )
    made_for = cursor.made_for
    if not isinstance(made_for, Tracer):
        other = _joined(made_for)
        if other != size or _schema_hash(cursor) != form:
            wrong = f"{other} records, and this source has {size}"
            if other == size:
                wrong = "records of another form, or another order (`shuffle`)"
            raise value_error(
                function,
                f"the cursor is one of another source: it was made for {wrong}.",
                "Continue with the source and `shuffle` that it was made for, or "
                "begin anew with `loader.init(key)`.",
            )
    if is_concrete(cursor) and cursor.position > size:
        raise value_error(
            function,
            f"the cursor stands at record {cursor.position} of {size}.",
            "Take cursors from `loader.init`, `next`, `scan` and `epoch` only.",
        )


def _check_alike(cursor: Cursor, like: Cursor) -> None:
    check_concrete("data.Cursor.from_json", like)
    same_key = np.array_equal(np.asarray(cursor.words), np.asarray(like.words))
    if not same_key or cursor.kind != like.kind:
        raise value_error(
            "data.Cursor.from_json",
            "the text is the cursor of another key than that of `like`.",
            "Give the key that the run began with, or leave `like` out to go on "
            "with the one in the text.",
        )
    size = _joined(like.made_for)
    check_cursor("data.Cursor.from_json", cursor, size, _schema_hash(like))
