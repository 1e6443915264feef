"""Make a batch from a position: select, read, transform and place records.

For device sources this is one compiled program; for host sources the records are read
first and are arguments of the program.
"""

import dataclasses
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, UInt32, UInt64

from .._errors import structure_error
from .._jit import arrays_of, program
from .._keys import fold
from .._mesh_context import is_staged, no_context
from .._sharding import resolve
from .._stage import Scope, enter
from .._tree import as_arrays, leaf_text, leaves_with_names
from .._types import Key, PyTree, StageLike
from .cursor import Cursor, check_concrete, split
from .device_source import DeviceSource, as_numbers
from .host_source import HostSource
from .placement import (
    as_given,
    auto_mesh,
    constrained,
    from_own_rows,
    own_rows,
    replicated,
    spec_of,
)
from .selection import Overrun, Place, Selection, as_words, select
from .shuffle import permute_on_host

if TYPE_CHECKING:
    from .loader import Loader
else:
    Loader = Any

_Numbers = Array | np.ndarray

_SEAM_PART = 8
"""The seam is made for batches of at most this part of a source."""


class Read(NamedTuple):
    """Records read from the host, now on the device, with their numbers and offset.

    `epoch` is one number for all records or one for each; `offset` is the position of
    the first record in its epoch.
    """

    ids: UInt64[np.ndarray, " n"]
    epoch: UInt32[np.ndarray, "..."]
    offset: int
    records: PyTree


# Inside a program.


def device_batch(
    loader: Loader,
    impl: str,
    count: int,
    overrun: Overrun,
    words: UInt32[Array, " words"],
    place: Place,
    seam: PyTree = None,
) -> tuple[PyTree, Place]:
    """Return the next `count` records as a batch, and the position after them.

    `impl` and `words` are the implementation and the data of the loader's key; `seam`
    is the result of `seam_of`.
    """
    source, size = loader.source, len(loader.source)
    assert isinstance(source, DeviceSource)
    selection, after = select(words, place, count, size, loader.shuffle, overrun)
    if loader.shuffle:
        records = source.take(selection.ids[-1])
    elif overrun == "wrap":
        records = _across(source, selection.ids[-1], place.start, seam)
    else:
        records = source.slice(selection.offset[-1], count)
    return transform(loader, impl, words, selection, as_numbers(records)), after


def seam_of(loader: Loader, count: int, overrun: Overrun) -> PyTree:
    """Return the last records followed by the first, if a batch may wrap around."""
    source, size = loader.source, len(loader.source)
    if overrun != "wrap" or loader.shuffle or count > size // _SEAM_PART:
        return None
    assert isinstance(source, DeviceSource)
    starts = (jnp.asarray(at, np.uint32) for at in (size - count, 0))
    pair = [source.slice(start, count) for start in starts]
    return jtu.tree_map(lambda *leaves: jnp.concatenate(leaves), *pair)


def _across(
    source: DeviceSource,
    ids: UInt32[Array, " n"],
    start: UInt32[Array, ""],
    seam: PyTree,
) -> PyTree:
    """Return a slice of records that may wrap around from the last to the first."""
    count = len(ids)
    last = np.uint32(len(source) - count)
    if seam is None:
        return jax.lax.cond(
            start <= last, lambda: source.slice(start, count), lambda: source.take(ids)
        )
    # A `cond` would write the whole batch to memory; a select fuses with what follows.
    over = start > last
    at = jnp.where(over, start - last, np.uint32(0)).astype(np.int32)

    def one(inside: Array, seam: Array) -> Array:
        across = jax.lax.dynamic_slice_in_dim(seam, at, count)
        return jax.lax.select_n(over, inside, across)

    return jtu.tree_map(one, source.slice(start, count), seam)


def transform(
    loader: Loader,
    impl: str,
    words: UInt32[Array, " words"],
    selection: Selection,
    records: PyTree,
) -> PyTree:
    """Apply both pipelines to records, and place the batch."""
    batch = _piped(loader, impl, words, selection, records)
    return constrained(batch, loader.sharding, selection.ids.shape[-1])


def _piped(
    loader: Loader,
    impl: str,
    words: UInt32[Array, " words"],
    selection: Selection,
    records: PyTree,
) -> PyTree:
    """Apply both pipelines to records."""
    key = jr.wrap_key_data(words, impl=impl)
    if not isinstance(loader.pipe, eqx.nn.Identity):
        records = _each(loader.pipe, _named(key, "pipe"), selection, records)
    if not isinstance(loader.batch_pipe, eqx.nn.Identity):
        epoch = selection.epoch if selection.epoch.ndim == 0 else selection.epoch[0]
        own = jr.fold_in(_named(key, "batch_pipe"), epoch)
        records = _run("batch_pipe", loader.batch_pipe, own, selection.offset, records)
    return records


def check_divides(loader: Loader) -> None:
    """Raise unless the loader's sharding splits every axis of a full batch evenly."""
    sharding, size = loader.sharding, loader.batch_size
    whole = isinstance(loader.batch_pipe, eqx.nn.Identity)
    if sharding is None or whole and len(sharding.spec) < 2:
        return  # `check_sharding` has checked the leading axis
    key = jr.key(0)
    words, impl = jr.key_data(key), str(jr.key_impl(key))
    zero = np.zeros((), np.uint32)

    def batch(record: PyTree) -> PyTree:
        ids = jnp.zeros((len(as_words(0, len(loader.source))), size), jnp.uint32)
        records = jtu.tree_map(
            lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), record
        )
        return _piped(loader, impl, words, Selection(zero, ids, ids[:, 0]), records)

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
    y, _ = enter(Scope(key), name, stage, x, state=None, index=low)
    y = as_arrays(y)
    for leaf_name, leaf in leaves_with_names(y):
        if not eqx.is_array(leaf):
            place = f" at `.{leaf_name}`" if leaf_name else ""
            raise structure_error(
                "data.Loader",
                f"the output of `{name}`{place} is {leaf_text(leaf)}.",
                "A batch holds arrays and numbers only. Leave the rest out.",
            )
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


def batch_at(
    loader: Loader,
    impl: str,
    count: int,
    overrun: Overrun,
    words: UInt32[Array, " words"],
    epoch: UInt32[Array, ""],
    record: UInt32[Array, "2"],
) -> tuple[PyTree, UInt32[Array, ""], UInt32[Array, "2"]]:
    """Return `device_batch`, with positions as cursors hold them."""
    place = Place.of(epoch, record)
    batch, after = device_batch(loader, impl, count, overrun, words, place)
    return batch, after.epoch, after.record()


def next_on_device(loader: Loader, cursor: Cursor) -> tuple[PyTree, Cursor]:
    """Return the next full batch, and the cursor after it."""
    count = loader.batch_size
    overrun = "skip" if loader.drop_remainder else "wrap"
    run = loader_program(loader, batch_at, cursor.kind, count, overrun)
    place = cursor.words, cursor.epochs, cursor.record
    batch, epoch, record = run(loader_arrays(loader), *place)
    if not is_staged():
        batch = as_given(batch, loader.sharding, count)
    return batch, dataclasses.replace(cursor, epochs=epoch, record=record)


def read(
    loader: Loader,
    ids: UInt64[np.ndarray, " n"],
    epoch: UInt32[np.ndarray, "..."],
    offset: int,
) -> Read:
    """Read records by number, and move them to the device.

    Each process reads only the records of its own devices.
    """
    source, sharding = loader.source, loader.sharding
    assert isinstance(source, HostSource)
    rows = own_rows(sharding, len(ids))
    records = source.read(ids if rows is None else ids[rows])
    return Read(ids, epoch, offset, from_own_rows(records, sharding, len(ids), rows))


def host_batch(loader: Loader, cursor: Cursor, found: Read) -> PyTree:
    """Return the batch of records that `read` returned."""
    ids, epoch, offset, batch = found
    pipes = loader.pipe, loader.batch_pipe
    if not all(isinstance(pipe, eqx.nn.Identity) for pipe in pipes):
        size = len(loader.source)
        selection = Selection(epoch, as_words(ids, size), as_words(offset, size))
        known = replicated((cursor.words, selection), loader.sharding)
        run = loader_program(loader, transform, cursor.kind)
        batch = run(loader_arrays(loader), *known, batch)
    return as_given(batch, loader.sharding, len(ids))


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
    found = read(loader, ids, epochs if several else epochs[0, ...], int(at[0]))
    after = dataclasses.replace(
        cursor, epochs=epochs[-1, ...], record=split(int(at[-1]) + 1)
    )
    return host_batch(loader, cursor, found), after


def ordered(
    loader: Loader, cursor: Cursor, epoch: int, at: UInt64[np.ndarray, " n"]
) -> UInt64[np.ndarray, " n"]:
    """Return the numbers of the records at given positions of an epoch."""
    if not loader.shuffle:
        return at
    return permute_on_host(np.asarray(cursor.words), epoch, at, len(loader.source))
