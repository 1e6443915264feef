"""`Loader`: batches of a source, made from a position, the `Cursor`.

A cursor is a small pytree. Every batch goes through the same steps:
select, read, transform and place records. For device sources this is one compiled
program; for host sources the records are read first, ahead of the batch in an epoch,
and are arguments of the program.
"""

import concurrent.futures as cf
import contextlib
import dataclasses
import functools as ft
import itertools as it
import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Shaped, UInt32, UInt64

from .._check import check_bool, check_callable, check_carry, check_int, check_is
from .._errors import describe_value, structure_error, type_error, value_error
from .._jit import arrays_of, program
from .._keys import check_mapped_key, fold
from .._mesh_context import is_explicit, is_staged, no_context, with_axis_types
from .._sharding import (
    constrain_to,
    fitting_sizes,
    mesh_like,
    num_shards,
    resolve,
    shard,
    with_types,
)
from .._stage import Scope, as_stage, identity, is_stateful
from .._tree import as_arrays, is_key_array, leaf_text, leaves_with_names
from .._types import Key, PyTree, StageLike
from .shuffle import permute, permute_on_host
from .source import (
    ArraySource,
    HostSource,
    Source,
    SourceLike,
    as_numbers,
    as_source,
    schema_of,
)

_Numbers = Array | np.ndarray


class Cursor(eqx.Module):
    """A position in the data: an epoch, and how many of its records were read.

    A cursor, which includes the PRNG key, determines all records and random draws of a
    `Loader` from there on. The order of records and the draws of `pipe` do not depend
    on the batch size or the number of hosts. `Loader.init` makes the first cursor;
    `Loader.next`, `scan` and `epoch` return later ones.

    It is a pytree of a few integer arrays: save it with a model by
    `equinox.tree_serialise_leaves`. It also identifies its source (the number and the
    structure of its records, shuffled or not), so a loader rejects the cursor of
    another source.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> loader = ep.data.Loader(ep.data.ArraySource(jnp.arange(10)), batch_size=4)
        >>> batch, cursor = loader.next(loader.init(jax.random.key(0)))
        >>> cursor.epoch, cursor.position
        (0, 4)
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
        """Return the cursor at the beginning of the next epoch."""
        later = self.epochs + np.uint32(1)
        epochs = later if isinstance(later, jax.Array) else np.asarray(later)
        return dataclasses.replace(self, epochs=epochs, record=split(0))


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
        made_for=np.asarray([*split(size), schema], np.uint32),
        kind=str(jr.key_impl(key)),
    )


def split(number: int) -> UInt32[np.ndarray, "2"]:
    """Return a number below 2^64 as its lower and upper half."""
    return np.asarray([number % 2**32, number // 2**32], np.uint32)


def _joined(halves: UInt32[_Numbers, "2"]) -> int:
    """Return the number from its lower and upper half."""
    low, high = np.asarray(halves).tolist()
    return low + 2**32 * high


def is_concrete(cursor: Cursor) -> bool:
    """Return whether the position of a cursor is concrete, not traced."""
    return not any(isinstance(x, Tracer) for x in (cursor.epochs, cursor.record))


def check_concrete(function: str, cursor: Cursor) -> None:
    """Raise a `TypeError` if the position of the cursor is traced."""
    if not is_concrete(cursor):
        wrong = "the cursor is traced, so its position is not known."
        cure = "Call it outside of `jit` and `vmap`; inside, use `next` or `scan` of "
        cure += "a loader with a source on the device."
        raise type_error(function, wrong, cure)


def check_cursor(function: str, cursor: Cursor, size: int, form: int) -> None:
    """Raise unless a cursor was made for a source of this size and schema."""
    cure = "Give a `Cursor`: `loader.init(jax.random.key(0))` makes the first."
    check_is(function, "cursor", cursor, Cursor, cure)
    if not isinstance(cursor.made_for, Tracer):
        # On the host: indexing an array on the device compiles a program.
        *halves, other_form = np.asarray(cursor.made_for)
        other = _joined(np.asarray(halves))
        if other != size or other_form != form:
            wrong = f"{other} records, and this source has {size}"
            if other == size:
                wrong = "records of another form, or another order (`shuffle`)"
            wrong = f"the cursor is of another source: it was made for {wrong}."
            cure = "Continue with the source and `shuffle` that it was made for, or "
            cure += "begin again with `loader.init(key)`."
            raise value_error(function, wrong, cure)


_Carry = TypeVar("_Carry")


class Loader(eqx.Module):
    """Batches of records, with order and random draws determined by a cursor.

    A loader is immutable, like a pipeline: it holds no position. `init` returns the
    first `Cursor`, and `next`, `epoch` and `scan` continue from a cursor.

    An epoch has every record exactly once, except for those that `drop_remainder`
    skips. With `shuffle`, each epoch has a different permutation, which is computed as
    needed and never stored. The random draws of `pipe` for a record depend on the key,
    the epoch, and the record's index in the source: not on the batch size, the order,
    the number of hosts, or the position at which the run was resumed.

    **Arguments:**

    - `source`: an `ArraySource` on the device; or a host
        source: a NumPy array or memory map, an array of a Zarr or HDF5 file, or a
        dictionary or tuple of these; or anything with `__len__` and `__getitem__` (a
        Grain `MapDataset`, a Hugging Face dataset, a list of records).
    - `pipe`: a stage from one record to another. It runs on the device, under `vmap`,
        for host sources too.
    - `batch_pipe`: a stage from batch to batch, after `pipe`. Its random draws depend
        on the key, the epoch, and the position in the epoch of the batch's first
        record. (Keyword only, as are all following arguments.)
    - `batch_size`: the number of records in a batch.
    - `shuffle`: whether each epoch has its own random order, instead of the source's.
    - `drop_remainder`: whether the records after the last full batch are left out.
    - `sharding`: a `jax.sharding.NamedSharding` for batches. With several processes,
        each reads only the records of its own devices. The spec is truncated to the
        rank of each array.

    **Returns:** a loader. `len(loader)` is the number of batches of an epoch.

    **Raises:**

    - `TypeError` if `source` is not a source, `pipe` or `batch_pipe` is not a stage, or
      another argument has the wrong type.
    - `ValueError` if the source is empty; the batch size is below 1, is larger than the
      source with `drop_remainder`, or is not divisible by the number of devices that
      split it; `sharding` does not divide another axis of a batch; or a stage is
      stateful.

    **Laws:** the records of an epoch are those of the source; `scan` uses the same
    records and random keys as a loop of `next`, and a resumed run the same as an
    uninterrupted one. The outputs of stages agree up to rounding.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> source = ep.data.ArraySource({"x": jnp.arange(10.0), "y": jnp.arange(10)})
        >>> loader = ep.data.Loader(source, ep.at("x", jnp.sqrt), batch_size=4)
        >>> cursor = loader.init(jax.random.key(0))
        >>> [batch["y"].shape for batch in loader.epoch(cursor)]
        [(4,), (4,), (2,)]
    """

    source: Source
    pipe: StageLike
    batch_pipe: StageLike
    batch_size: int = eqx.field(static=True)
    shuffle: bool = eqx.field(static=True)
    drop_remainder: bool = eqx.field(static=True)
    sharding: NamedSharding | None = eqx.field(static=True)
    schema: int = eqx.field(static=True, repr=False)

    def __init__(
        self,
        source: SourceLike,
        pipe: StageLike = identity,
        *,
        batch_pipe: StageLike = identity,
        batch_size: SupportsIndex,
        shuffle: bool | np.bool_ = True,
        drop_remainder: bool | np.bool_ = False,
        sharding: NamedSharding | None = None,
    ):
        records = as_source(source)
        check_int("data.Loader", "batch_size", batch_size, 1)
        check_bool("data.Loader", "shuffle", shuffle)
        check_bool("data.Loader", "drop_remainder", drop_remainder)
        size, shuffle = batch_size.__index__(), bool(shuffle)
        if len(records) == 0:
            wrong = "`source` is empty."
            raise value_error("data.Loader", wrong, "Give one with records.")
        if drop_remainder:
            _check_full("data.Loader", len(records), size)
        sharding = check_sharding(sharding, size)
        self.source = source_on_mesh(records, sharding)
        self.pipe = _as_stateless("pipe", pipe)
        self.batch_pipe = _as_stateless("batch_pipe", batch_pipe)
        self.batch_size, self.shuffle = size, shuffle
        self.drop_remainder, self.sharding = bool(drop_remainder), sharding
        self.schema = schema_of((records.struct(), shuffle))
        check_divides(self)

    @property
    def on_device(self) -> bool:
        """True if the source is on the device, where compiled programs can read it."""
        return isinstance(self.source, ArraySource)

    def init(self, key: Key) -> Cursor:
        """Return the cursor at the beginning of the first epoch.

        **Arguments:**

        - `key`: a PRNG key. It determines the order of every epoch and all random
            draws.

        **Returns:** a cursor.

        **Raises:** `TypeError` if `key` is not a single PRNG key; `ValueError` if it is
        of the kind `rbg`, whose draws differ under `vmap`.
        """
        return start(key, len(self.source), self.schema)

    def next(self, cursor: Cursor) -> tuple[PyTree, Cursor]:
        """Return the next batch, always a full one, and the cursor after it.

        At the end of an epoch, a batch continues with the records of the next epoch;
        with `drop_remainder` it begins with the next epoch, and the remaining records
        are skipped. For a source on the device this is a pure function, which can be
        compiled: `equinox.filter_jit(loader.next)`.

        **Arguments:**

        - `cursor`: the position of the batch.

        **Returns:** the batch and the next cursor.

        **Raises:**

        - `ValueError` if the cursor was made for another source (not under `jit`), or
          the source has no full batch.
        - `TypeError` if the cursor is traced and the source is on the host.
        """
        _check_batches(self, "data.Loader.next", cursor)
        with without_users_mesh(self.sharding):
            return (next_on_device if self.on_device else next_on_host)(self, cursor)

    def epoch(self, cursor: Cursor) -> "Epoch":
        """Iterate over the remaining batches of the cursor's epoch.

        The last batch is shorter if the batch size does not divide the number of
        records; `drop_remainder` skips it. With `sharding`, a short batch that the
        devices do not divide evenly is not split along its leading axis, but copied to
        each device.

        The iterator's `.cursor` is the position after the last returned batch, to
        resume from. When the iterator is exhausted, it is the end of the epoch, and
        `epoch` continues from there with the next epoch. So a loop over epochs is

        ```python
        for _ in range(10):
            iterator = loader.epoch(cursor)
            for batch in iterator:
                ...
            cursor = iterator.cursor
        ```

        Threads read a few batches of a host source ahead. They end with the iterator,
        also when it is dropped before its end.

        **Arguments:**

        - `cursor`: the position of the first batch; for a whole epoch, the cursor of
            `init`, of `next_epoch`, or of the end of the previous epoch.

        **Returns:** an iterator over batches, with `.cursor`.

        **Raises:** as `next`.
        """
        check_cursor("data.Loader.epoch", cursor, len(self.source), self.schema)
        check_concrete("data.Loader.epoch", cursor)
        with without_users_mesh(self.sharding):
            return Epoch(self, cursor)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        whole, rest = divmod(len(self.source), self.batch_size)
        return whole + (rest > 0 and not self.drop_remainder)

    def scan(
        self,
        step: Callable[[_Carry, PyTree], tuple[_Carry, PyTree]],
        carry: _Carry | complex,
        cursor: Cursor,
        length: SupportsIndex | None = None,
    ) -> tuple[_Carry, PyTree, Cursor]:
        """Run a step for each of many batches, in one compiled program.

        It equals this loop up to rounding, with the same records and random keys:

        ```python
        outputs = []
        for _ in range(length):
            batch, cursor = loader.next(cursor)
            carry, output = step(carry, batch)
            outputs.append(output)
        return carry, stack(outputs), cursor
        ```

        Successive calls skip no record: if the batch size does not divide the number of
        records, the next call begins with the remainder and ends in the next epoch.
        With `drop_remainder`, each call of the default length is one epoch.

        Outside `jit`, the program is compiled once for each function `step`, so define
        `step` once, not in each epoch. Gradients flow through it, to the parameters of
        `pipe` too.

        **Arguments:**

        - `step`: `step(carry, batch) -> (carry, output)`.
        - `carry`: any pytree. It may hold models and optimiser states. Python numbers
            outside of Modules become arrays; other leaves that are not arrays cannot
            change.
        - `cursor`: the position of the first batch.
        - `length`: the number of batches, by default the full batches of an epoch.

        **Returns:** the last carry, the outputs stacked along a leading axis, and the
        cursor after the last batch.

        **Raises:**

        - `StructureError` (a `ValueError`) if `step` changes the structure, shapes or
          dtypes of the carry.
        - `TypeError` if the source is on the host, or `step` is not a function.
        - `ValueError` if the cursor was made for another source, or the source has no
          full batch.

        !!! example

            >>> import eqx_pipe as ep, jax, jax.numpy as jnp
            >>> loader = ep.data.Loader(ep.data.ArraySource(jnp.arange(6.0)),
            ...     batch_size=2)
            >>> step = lambda total, batch: (total + batch.sum(), batch.mean())
            >>> cursor = loader.init(jax.random.key(0))
            >>> total, means, cursor = loader.scan(step, 0.0, cursor)
            >>> total.item(), means.shape
            (15.0, (3,))
        """
        cure = "Write `step(carry, batch) -> (carry, output)`."
        check_callable("data.Loader.scan", "step", step, cure)
        length = len(self.source) // self.batch_size if length is None else length
        check_int("data.Loader.scan", "length", length, 0)
        _check_batches(self, "data.Loader.scan", cursor)
        if not self.on_device:
            wrong = "the source is on the host, which a compiled program cannot read."
            cure = "Iterate over `epoch`, or put the data on the device: "
            cure += "`ArraySource(arrays)`."
            raise type_error("data.Loader.scan", wrong, cure)
        # If no batch crosses the end of the epoch, the program need not handle that. It
        # must not depend on the position in any other way, so that the next call
        # reuses it.
        count, size = self.batch_size, len(self.source)
        whole = is_concrete(cursor) and size % count == 0 == cursor.position % count
        overrun = "skip" if self.drop_remainder or whole else "wrap"
        loader = self
        if self.sharding is not None:
            mesh = mesh_like(auto_mesh(self.sharding), *jtu.tree_leaves(carry))
            loader = self if is_explicit(mesh) else with_axis_types(self)
        # In a user's program the loop is inlined: a nested `jit` would copy the source.
        run = _steps if is_staged() else _compiled_steps
        steps = length.__index__()
        return run(loader, step, cursor, steps, overrun, _carry_arrays(carry))


def _check_batches(loader: Loader, function: str, cursor: Cursor) -> None:
    """Raise if the cursor is of another source, or no batch would be full."""
    check_cursor(function, cursor, len(loader.source), loader.schema)
    _check_full(function, len(loader.source), loader.batch_size)


def _as_stateless(argument: str, stage: StageLike) -> StageLike:
    """Return a stage; raise if it is stateful."""
    stage = as_stage("data.Loader", argument, stage)
    if is_stateful(stage):
        wrong = f"`{argument}` is stateful, and a loader keeps no state."
        cure = "Call the stage in the training step, which can carry its state."
        raise value_error("data.Loader", wrong, cure)
    return stage


def _check_full(function: str, size: int, batch_size: int) -> None:
    """Raise a `ValueError` if a source of some size has no full batch."""
    if batch_size > size:
        wrong = f"`batch_size` is {batch_size}, and the source has {size} records: it "
        wrong += "has no full batch."
        cure = f"Give at most {size}, or use `epoch`, without `drop_remainder`."
        raise value_error(function, wrong, cure)


# The records of a batch.


Overrun: TypeAlias = Literal["never", "skip", "wrap"]
"""The treatment of a batch at the end of an epoch: it never gets there; it begins with
the next epoch; or it continues into the next epoch."""


Position: TypeAlias = tuple[UInt32[Array, ""], UInt32[Array, "2"]]
"""An epoch, and how many of its records were read, as a cursor holds them."""


class Selection(NamedTuple):
    """The records of a batch.

    `epoch` is one number for all records or one for each. `ids` are their indices in
    the source and `offset` the position of the first one in its epoch, both as 32-bit
    words, the upper one first if a source has more than 2^32 records.
    """

    epoch: UInt32[_Numbers, "..."]
    ids: UInt32[_Numbers, "words n"]
    offset: UInt32[_Numbers, " words"]


def as_words(
    numbers: int | Shaped[np.ndarray, "*n"], size: int
) -> UInt32[np.ndarray, "words *n"]:
    """Return numbers below `size` as a `Selection` holds them."""
    numbers = np.asarray(numbers, np.uint64)
    words = [numbers >> np.uint64(32), numbers] if size > 2**32 else [numbers]
    return np.array(words).astype(np.uint32)  # keeps the lower 32 bits


# Inside a program.


def device_batch(
    loader: Loader,
    impl: str,
    count: int,
    overrun: Overrun,
    words: UInt32[Array, " words"],
    position: Position,
) -> tuple[PyTree, Position]:
    """Return the next `count` records as a batch, and the position after them.

    `impl` and `words` are the implementation and the data of the loader's key.
    """
    source, size = loader.source, len(loader.source)
    assert isinstance(source, ArraySource)
    epoch, start = position[0], position[1][0]
    last = np.uint32(size - count)
    if overrun == "skip":
        epoch = epoch + (start > last).astype(np.uint32)
        start = jnp.where(start > last, np.uint32(0), start)
    # Positions stay below 2^32: there are fewer than 2^31 records, and no device has
    # memory for a batch of 2^31.
    at = start + jnp.arange(count, dtype=np.uint32)
    first, over = epoch, None
    if overrun == "wrap":
        over = at >= np.uint32(size)
        epoch = epoch + over.astype(np.uint32)
        at = jnp.where(over, at - np.uint32(size), at)
        ended, end = epoch[-1], at[-1] + np.uint32(1)
    else:
        ended, end = epoch, start + np.uint32(count)
    after = ended, jnp.stack([end, jnp.zeros_like(end)])
    ids = at
    if loader.shuffle:
        ids = permute(words, first, at, size, over)
        # Without the barrier, XLA recomputes the permutation for every element of the
        # gather: 153 us instead of 125 for batches of 256 images.
        ids = jax.lax.optimization_barrier(ids)
        records = source.take(ids)
    elif overrun != "wrap":
        records = source.slice(at[0], count)
    else:  # from the last record to the first; a `cond` would move the whole source
        records = source.take(ids)
    selection = Selection(epoch, ids[None], at[:1])
    return transform(loader, impl, words, selection, as_numbers(records)), after


def transform(
    loader: Loader,
    impl: str,
    words: UInt32[Array, " words"],
    selection: Selection,
    records: PyTree,
) -> PyTree:
    """Apply both pipelines to records, and place the batch."""
    batch = _piped(loader, jr.wrap_key_data(words, impl=impl), selection, records)
    return constrained(batch, loader.sharding, selection.ids.shape[-1])


def _piped(loader: Loader, key: Key, selection: Selection, records: PyTree) -> PyTree:
    """Apply both pipelines to records."""
    if not isinstance(loader.pipe, eqx.nn.Identity):
        records = _each(loader.pipe, _named(key, "pipe"), selection, records)
    if not isinstance(loader.batch_pipe, eqx.nn.Identity):
        epoch = selection.epoch if selection.epoch.ndim == 0 else selection.epoch[0]
        epoch_key = jr.fold_in(_named(key, "batch_pipe"), epoch)
        records = _run(
            "batch_pipe", loader.batch_pipe, epoch_key, selection.offset, records
        )
    return records


def check_divides(loader: Loader) -> None:
    """Raise unless the loader's sharding splits every axis of a full batch evenly."""
    sharding, size = loader.sharding, loader.batch_size
    whole = isinstance(loader.batch_pipe, eqx.nn.Identity)
    if sharding is None or whole and len(sharding.spec) < 2:
        return  # `check_sharding` has checked the leading axis
    zero = np.zeros((), np.uint32)

    def batch(record: PyTree) -> PyTree:
        ids = jnp.zeros((len(as_words(0, len(loader.source))), size), jnp.uint32)
        records = jtu.tree_map(
            lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), record
        )
        return _piped(loader, jr.key(0), Selection(zero, ids, ids[:, 0]), records)

    with no_context():
        struct = eqx.filter_eval_shape(batch, loader.source.struct())
    specs = jtu.tree_map(lambda leaf: spec_of(sharding, leaf.ndim), struct)
    resolve("data.Loader", struct, auto_mesh(sharding), specs)


def _named(key: Key, name: str) -> Key:
    named = fold(key, name)
    assert named is not None
    return named


def _each(pipe: StageLike, key: Key, selection: Selection, records: PyTree) -> PyTree:
    """Apply `pipe` to every record, each with its own key."""
    epochs = selection.epoch

    def one(record: PyTree, words: UInt32[_Numbers, " words"], epoch: Any) -> PyTree:
        return _run("pipe", pipe, jr.fold_in(key, epoch), words, record)

    mapped = jax.vmap(one, in_axes=(0, 1, None if epochs.ndim == 0 else 0))
    return mapped(records, selection.ids, epochs)


def _run(
    name: str, stage: StageLike, key: Key, words: UInt32[_Numbers, " words"], x: PyTree
) -> PyTree:
    """Call a stage with the key of the record or batch whose number is in `words`."""
    *high, low = words
    for word in high:
        key = jr.fold_in(key, word)
    y, _ = Scope(key).enter(name, stage, x, state=None, index=low)
    y = as_arrays(y)
    for leaf_name, leaf in leaves_with_names(y):
        if not eqx.is_array(leaf):
            path = f" at `.{leaf_name}`" if leaf_name else ""
            wrong = f"the output of `{name}`{path} is {leaf_text(leaf)}."
            cure = "A batch holds arrays and numbers only. Leave the rest out."
            raise structure_error("data.Loader", wrong, cure)
    return y


# Programs of a loader.


def loader_program(
    loader: Loader, function: Callable[..., Any], *options: Hashable
) -> Callable[..., Any]:
    """Compile a function of a loader; no program reads a source on the host."""
    return program(loader, function, *options, without=HostSource)


def loader_arrays(loader: Loader) -> list[Array]:
    """Return the arrays of a loader, as its programs take them."""
    return arrays_of(loader, loader.sharding is not None)


def next_on_device(loader: Loader, cursor: Cursor) -> tuple[PyTree, Cursor]:
    """Return the next full batch, and the cursor after it."""
    count = loader.batch_size
    overrun = "skip" if loader.drop_remainder else "wrap"
    run = loader_program(loader, device_batch, cursor.kind, count, overrun)
    position = cursor.epochs, cursor.record
    batch, (epoch, record) = run(loader_arrays(loader), cursor.words, position)
    if not is_staged():
        batch = in_users_sharding(batch, loader.sharding, count)
    return batch, dataclasses.replace(cursor, epochs=epoch, record=record)


def read_records(
    loader: Loader,
    ids: UInt64[np.ndarray, " n"],
    epoch: UInt32[np.ndarray, "..."],
    offset: int,
) -> tuple[Selection, PyTree]:
    """Read records by number, and move them to the device.

    `epoch` is one number for all records or one for each; `offset` is the position of
    the first record in its epoch. Each process reads only the records of its devices.
    """
    source, sharding, size = loader.source, loader.sharding, len(loader.source)
    assert isinstance(source, HostSource)
    rows = local_rows(sharding, len(ids))
    records = source.read(ids if rows is None else ids[rows])
    selection = Selection(epoch, as_words(ids, size), as_words(offset, size))
    return selection, to_devices(records, sharding, len(ids), rows)


def host_batch(
    loader: Loader, cursor: Cursor, selection: Selection, batch: PyTree
) -> PyTree:
    """Return the batch of records that `read_records` returned."""
    pipes = loader.pipe, loader.batch_pipe
    if not all(isinstance(pipe, eqx.nn.Identity) for pipe in pipes):
        arguments = replicated((cursor.words, selection), loader.sharding)
        run = loader_program(loader, transform, cursor.kind)
        batch = run(loader_arrays(loader), *arguments, batch)
    return in_users_sharding(batch, loader.sharding, selection.ids.shape[-1])


def next_on_host(loader: Loader, cursor: Cursor) -> tuple[PyTree, Cursor]:
    """Return the next full batch, and the cursor after it."""
    check_concrete("data.Loader.next", cursor)
    size, count = len(loader.source), loader.batch_size
    epoch, start = cursor.epoch, cursor.position
    if loader.drop_remainder and start + count > size:
        epoch, start = epoch + 1, 0
    at = start + np.arange(count, dtype=np.uint64)
    over, at = at // np.uint64(size), at % np.uint64(size)
    epochs = (epoch + over).astype(np.uint32)
    parts = [(int(e), at[epochs == e]) for e in np.unique(epochs)]
    ids = np.concatenate([ordered(loader, cursor, *part) for part in parts])
    several = len(parts) > 1
    read = read_records(loader, ids, epochs if several else epochs[0, ...], int(at[0]))
    after = dataclasses.replace(
        cursor, epochs=epochs[-1, ...], record=split(int(at[-1]) + 1)
    )
    return host_batch(loader, cursor, *read), after


def ordered(
    loader: Loader, cursor: Cursor, epoch: int, at: UInt64[np.ndarray, " n"]
) -> UInt64[np.ndarray, " n"]:
    """Return the numbers of the records at the positions of an epoch."""
    if not loader.shuffle:
        return at
    return permute_on_host(np.asarray(cursor.words), epoch, at, len(loader.source))


# Many batches in one program.


def _steps(
    loader: Loader,
    step: Callable[..., tuple[PyTree, PyTree]],
    cursor: Cursor,
    length: int,
    overrun: Overrun,
    carry: PyTree,
) -> tuple[PyTree, PyTree, Cursor]:
    words = jnp.asarray(cursor.words)
    position = jnp.asarray(cursor.epochs), jnp.asarray(cursor.record)
    arrays, rest = eqx.partition(carry, eqx.is_array)
    constants: list[Any] = []
    count, impl = loader.batch_size, cursor.kind

    def body(state: Any, _: None) -> Any:
        arrays, position = state
        batch, position = device_batch(loader, impl, count, overrun, words, position)
        before = eqx.combine(arrays, rest)
        pair = step(before, batch)
        if not isinstance(pair, tuple) or len(pair) != 2:
            wrong = f"`step` returned {describe_value(pair)}, not a pair of carry and "
            wrong += "output."
            cure = "Write `step(carry, batch) -> (carry, output)`; the output may be "
            cure += "None."
            raise type_error("data.Loader.scan", wrong, cure)
        after, output = _carry_arrays(pair[0]), pair[1]
        check_carry("data.Loader.scan", "`step`", before, after)
        outputs, constant = eqx.partition(as_arrays(output), eqx.is_array)
        # A loop returns only arrays; other outputs of a step are returned this way.
        constants.append(constant)
        return (eqx.filter(after, eqx.is_array), position), outputs

    begin = arrays, position
    (arrays, position), outputs = jax.lax.scan(body, begin, None, length)
    after = dataclasses.replace(cursor, epochs=position[0], record=position[1])
    return eqx.combine(arrays, rest), eqx.combine(outputs, constants[-1]), after


_compiled_steps = eqx.filter_jit(_steps)


def _carry_arrays(carry: PyTree) -> PyTree:
    """Return a carry with arrays in place of Python numbers, as in `lax.scan`.

    Numbers in Modules, such as the rate of a `Dropout`, stay: code may branch on them.
    """

    def one(leaf: object) -> Any:
        number = isinstance(leaf, bool | int | float | complex)
        if not number or isinstance(leaf, np.generic):
            return leaf
        # Not weakly typed: the next call gets the arrays that this one returned, and
        # must find the same program.
        return jnp.asarray(leaf, jnp.result_type(type(leaf)))

    return jtu.tree_map(one, carry, is_leaf=lambda x: isinstance(x, eqx.Module))


# One for the next step and one for a slow read; each takes memory.
_AHEAD = 2
_BLOCK = 2**15
"""The approximate number of positions of the order that are computed at once.

Batch by batch, shuffled batches of 32 records take four times as long.
"""


class Epoch(Iterator[PyTree]):
    """The remaining batches of an epoch; `cursor` is the position after the last."""

    def __init__(self, loader: Loader, cursor: Cursor):
        if _batches_end(loader, cursor.position) <= cursor.position:
            cursor = cursor.next_epoch()
        self._loader, self._from = loader, cursor
        # Looking up fields of a Module for every batch is slow.
        self._batch_size = loader.batch_size
        self._position = cursor.position
        self._end = _batches_end(loader, self._position)
        on_device = isinstance(loader.source, ArraySource)
        batches = _from_device if on_device else _from_host
        self._batches = batches(loader, cursor, self._end)

    @property
    def cursor(self) -> Cursor:
        """The position to resume from: after the batch that was returned last."""
        return dataclasses.replace(self._from, record=split(self._position))

    def __len__(self) -> int:
        """Return the number of remaining batches."""
        return -(-(self._end - self._position) // self._batch_size)

    def __next__(self) -> PyTree:
        count = min(self._batch_size, self._end - self._position)
        with without_users_mesh(self._loader.sharding):
            batch = next(self._batches)
        self._position += count
        return batch

    def close(self) -> None:
        """Stop the threads that read ahead; dropping the iterator does the same."""
        self._batches.close()


def _batches_end(loader: Loader, position: int) -> int:
    """Return the end of the last batch that begins at `position` or later."""
    size = len(loader.source)
    if loader.drop_remainder:
        return position + (size - position) // loader.batch_size * loader.batch_size
    return size


def _from_device(
    loader: Loader, cursor: Cursor, end: int
) -> Generator[PyTree, None, None]:
    """Call a compiled program once for each batch."""
    size, sharding, arrays = loader.batch_size, loader.sharding, loader_arrays(loader)
    numbers = tuple(map(np.asarray, (cursor.words, cursor.epochs, cursor.record)))
    # Computed once for all batches; each call returns the position of the next batch.
    words, *position = (
        jax.device_put(numbers) if sharding is None else replicated(numbers, sharding)
    )
    whole, rest = divmod(end - cursor.position, size)
    for count, times in ((size, whole), (rest, min(rest, 1))):
        if not times:
            continue
        run = loader_program(loader, device_batch, cursor.kind, count, "never")
        for _ in range(times):
            batch, position = run(arrays, words, tuple(position))
            yield in_users_sharding(batch, sharding, count)


def _from_host(
    loader: Loader, cursor: Cursor, end: int
) -> Generator[PyTree, None, None]:
    """Yield the batches of records that threads read ahead.

    A thread reads a chunk of batches at a time, and at most two chunks more than the
    number of threads are ready. The threads end with the generator: after the last
    batch or an error, on Ctrl-C and `close`, and when it is collected, since they refer
    only to what reads.
    """
    source, read = loader.source, _reader(loader, cursor, end)
    assert isinstance(source, HostSource)
    count = -(-(end - cursor.position) // loader.batch_size)
    chunk = source.chunk(loader.batch_size)

    def read_chunk(first: int) -> list[Any]:
        results: list[Any] = []
        try:
            for number in range(first, min(count, first + chunk)):
                results.append(read(number))
        except Exception as error:  # raised after the batches that came before
            results.append(error)
        return results

    pool = cf.ThreadPoolExecutor(source.threads, "eqx_pipe-read-ahead")
    try:
        left = map(ft.partial(pool.submit, read_chunk), range(0, count, chunk))
        ahead = deque(it.islice(left, source.threads + _AHEAD))
        while ahead:
            results = ahead.popleft().result()
            ahead.extend(it.islice(left, 1))
            results.reverse()
            while results:  # and drop each with its batch
                result = results.pop()
                if isinstance(result, Exception):
                    raise result
                yield host_batch(loader, cursor, *result)
    finally:
        # Do not wait: a slow read must not delay an error.
        pool.shutdown(wait=False, cancel_futures=True)


def _reader(
    loader: Loader, cursor: Cursor, end: int
) -> Callable[[int], tuple[Selection, PyTree]]:
    """Return a function that reads the batches of an epoch by number, in any thread."""
    size, first, epoch = loader.batch_size, cursor.position, cursor.epoch
    epochs = np.asarray(epoch, np.uint32)
    block = max(1, _BLOCK // size) * size
    lock = threading.Lock()

    # Several threads may need the same block, or two neighbouring blocks.
    @ft.lru_cache(2)
    def order(start: int) -> np.ndarray:
        at = np.arange(start, min(end, start + block), dtype=np.uint64)
        return ordered(loader, cursor, epoch, at)

    def batch(index: int) -> tuple[Selection, PyTree]:
        at = index * size
        with lock:
            ids = order(first + at - at % block)
        return read_records(
            loader, ids[at % block : at % block + size], epochs, first + at
        )

    return batch


# Place batches and records on devices.
#
# Most functions take the user's sharding, or None, and the number of records in the
# batch: a short last batch that does not divide is not split along its leading axis.
#
# Explicit axes of a mesh are part of an array's type, and a program accepts only one
# kind of axes. The loader's programs use automatic axes, whatever the user's meshes
# have: arrays are converted at the boundary, which moves no data.
_BY_PROGRAM_BYTES = 2**20
"""A batch of at most this many bytes is moved to the device by a program."""


def check_sharding(sharding: object, batch_size: int) -> NamedSharding | None:
    """Return the sharding for batches; raise unless it splits them evenly."""
    if sharding is None:
        return None
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        wrong = f"`sharding` is {describe_value(sharding)}."
        cure = "Give a `jax.sharding.NamedSharding(mesh, PartitionSpec('data'))` over "
        cure += "a mesh of devices."
        raise type_error("data.Loader", wrong, cure)
    parts = num_parts(sharding)
    if batch_size % parts:
        wrong = f"`batch_size` is {batch_size}, which {sharding.spec} splits into "
        wrong += f"{parts} parts."
        cure = f"Give a batch size that divides by {parts}, such as "
        cure += f"{fitting_sizes(batch_size, parts)}."
        raise value_error("data.Loader", wrong, cure)
    return sharding


def num_parts(sharding: NamedSharding) -> int:
    """Return the number of parts of the leading axis of a batch."""
    entry = sharding.spec[0] if len(sharding.spec) else None
    return num_shards(auto_mesh(sharding), entry)


def without_users_mesh(
    sharding: NamedSharding | None,
) -> AbstractContextManager[object]:
    """Leave the user's `jax.set_mesh` if the loader has its own mesh."""
    return contextlib.nullcontext() if sharding is None else no_context()


def constrained(batch: PyTree, sharding: NamedSharding | None, count: int) -> PyTree:
    """Constrain a batch inside a program to the loader's sharding."""
    if sharding is None:
        return batch
    mesh, wanted = auto_mesh(sharding), _for_count(sharding, count)

    def one(leaf: Array) -> Array:
        return constrain_to(leaf, mesh_like(mesh, leaf), spec_of(wanted, leaf.ndim))

    return jtu.tree_map(one, batch)


def in_users_sharding(
    batch: PyTree, sharding: NamedSharding | None, count: int
) -> PyTree:
    """Return a computed batch in exactly the sharding that the user gave.

    Its mesh may have explicit axes, and programs use another spec for the sharding of a
    single device.
    """
    if sharding is None:
        return batch
    wanted = _for_count(sharding, count)

    def one(leaf: Array) -> Array:
        target = NamedSharding(sharding.mesh, spec_of(wanted, leaf.ndim))
        if isinstance(leaf, Tracer):  # under a gradient: its sharding is unknown
            return jax.device_put(leaf, target) if is_explicit(target.mesh) else leaf
        return leaf if leaf.sharding == target else jax.device_put(leaf, target)

    return jtu.tree_map(one, batch)


def local_rows(sharding: NamedSharding | None, count: int) -> list[int] | None:
    """Return the rows of a batch that this process holds, or None for all."""
    if sharding is None or sharding.is_fully_addressable:
        return None
    parts = _rows_only(sharding, count).addressable_devices_indices_map((count,))
    slices = [index[0] for index in parts.values() if index is not None]
    return sorted({row for part in slices for row in range(*part.indices(count))})


def to_devices(
    tree: PyTree, sharding: NamedSharding | None, count: int, rows: list[int] | None
) -> PyTree:
    """Return arrays of this process's own rows as global arrays on the devices."""
    if sharding is None:
        size = sum(leaf.nbytes for leaf in jtu.tree_leaves(tree))
        with no_context():
            return (_on_device if size <= _BY_PROGRAM_BYTES else jax.device_put)(tree)
    target = _rows_only(sharding, count)
    if rows is None:
        return jax.device_put(tree, target)

    def one(leaf: np.ndarray) -> Array:
        shape = (count, *leaf.shape[1:])
        if not rows:  # no device of this process holds any rows
            return jax.make_array_from_single_device_arrays(
                shape, target, [], dtype=leaf.dtype
            )
        return jax.make_array_from_process_local_data(target, leaf, shape)

    return jtu.tree_map(one, tree)


@jax.jit
def _on_device(tree: PyTree) -> PyTree:
    # Arguments of a program reach the device in about 20 us, by `device_put` in about
    # 90 (two arrays of some kilobytes). But a program copies its arguments, while
    # `device_put` uses the arrays themselves if it can, which is faster for large
    # arrays.
    return jtu.tree_map(jnp.asarray, tree)


def replicated(tree: PyTree, sharding: NamedSharding | None) -> PyTree:
    """Copy values that all processes have, such as a key, to every device."""
    if sharding is None:
        return tree
    target = NamedSharding(auto_mesh(sharding), P())
    if sharding.is_fully_addressable:
        return jax.device_put(tree, target)

    def one(leaf: np.ndarray | Array) -> Array:
        return jax.make_array_from_process_local_data(target, np.asarray(leaf))

    return jtu.tree_map(one, tree)


def source_on_mesh(source: Source, sharding: NamedSharding | None) -> Source:
    """Copy a device source to all devices of the mesh, so no batch moves it again."""
    if sharding is None or not isinstance(source, ArraySource):
        return source
    arrays = [x for x in jtu.tree_leaves(source) if eqx.is_array(x)]
    on_mesh = all(_is_on(x, sharding) for x in arrays)
    with no_context():
        source = source if on_mesh else shard(source, auto_mesh(sharding), P())
        # Explicit axes are part of the types of arrays: use those of the user's mesh.
        return with_axis_types(source, sharding.mesh.axis_types)


def _for_count(sharding: NamedSharding, count: int) -> NamedSharding:
    """Return the sharding of a batch of `count` records."""
    if count % num_parts(sharding) == 0:
        return sharding
    return NamedSharding(sharding.mesh, P(None, *tuple(sharding.spec)[1:]))


def spec_of(sharding: NamedSharding, ndim: int) -> P:
    """Return the spec for a leaf, which may have fewer axes than the sharding."""
    return P(*tuple(sharding.spec)[:ndim])


def _rows_only(sharding: NamedSharding, count: int) -> NamedSharding:
    """Return the sharding of records, which splits only the leading axis."""
    return NamedSharding(auto_mesh(sharding), spec_of(_for_count(sharding, count), 1))


def _is_on(x: object, sharding: NamedSharding) -> bool:
    if isinstance(x, Tracer):
        return True
    if not isinstance(x, jax.Array) or not isinstance(x.sharding, NamedSharding):
        return False
    return x.sharding.device_set == sharding.device_set


def auto_mesh(sharding: NamedSharding) -> Mesh:
    """Return the mesh of a sharding with automatic axes, as the programs use it."""
    assert isinstance(sharding.mesh, Mesh)
    return with_types(sharding.mesh, AxisType.Auto)
