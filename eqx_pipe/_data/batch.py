"""From a place in the data to a batch.

A batch goes down once: its order, its records, the pipelines, the sharding. On the
device that is one compiled program; from the host the records are read first, and the
program begins with them.
"""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, UInt32, UInt64

from .._jit import arrays_of, program
from .._mesh_context import is_staged
from .._types import PyTree, StageLike
from .array_source import DeviceSource
from .bits import as_numbers
from .cursor import Cursor, check_concrete, split
from .layout import as_given, constrained, from_own_rows, own_rows, replicated
from .order import Overrun, Place, Selection, as_words, select
from .pipes import are_identity, run_pipes
from .shuffle import permute_on_host
from .source import HostSource, Source

_SMALL = 8
"""Batches of up to this part of a source may have twice their records set aside."""


class Settings(eqx.Module):
    """The fields of a `Loader`, which says what they mean."""

    source: Source
    pipe: StageLike
    batch_pipe: StageLike
    batch_size: int = eqx.field(static=True)
    shuffle: bool = eqx.field(static=True)
    drop_remainder: bool = eqx.field(static=True)
    sharding: NamedSharding | None = eqx.field(static=True)
    schema: int = eqx.field(static=True, repr=False)


def _made(
    loader: Settings,
    impl: str,
    words: UInt32[Array, " words"],
    selection: Selection,
    records: PyTree,
) -> PyTree:
    """The batch of some records, inside a program."""
    key = jr.wrap_key_data(words, impl=impl)
    batch = run_pipes(loader.pipe, loader.batch_pipe, key, selection, records)
    return constrained(batch, loader.sharding, selection.ids.shape[-1])


# On the device.


def device_batch(
    loader: Settings,
    impl: str,
    words: UInt32[Array, " words"],
    place: Place,
    count: int,
    overrun: Overrun,
    seam: PyTree = None,
) -> tuple[PyTree, Place]:
    """The next `count` records as a batch, and the place behind them.

    `impl` and `words` are the kind and the data of the loader's key; `seam` is that of
    `seam_of`.
    """
    source = loader.source
    assert isinstance(source, DeviceSource)
    size = len(source)
    selection, after = select(words, place, count, size, loader.shuffle, overrun)
    if loader.shuffle:
        records = source.take(selection.ids[-1])
    elif overrun == "wrap":
        records = _across(source, selection, place.start, seam)
    else:
        records = source.slice(selection.offset[-1], count)
    return _made(loader, impl, words, selection, as_numbers(records)), after


def seam_of(loader: Settings, count: int, overrun: Overrun) -> PyTree:
    """The last records and then the first, if batches run over from those to these."""
    source, size = loader.source, len(loader.source)
    if overrun != "wrap" or loader.shuffle or count > size // _SMALL:
        return None
    assert isinstance(source, DeviceSource)
    starts = (jnp.asarray(at, np.uint32) for at in (size - count, 0))
    pair = [source.slice(start, count) for start in starts]
    return jtu.tree_map(lambda *leaves: jnp.concatenate(leaves), *pair)


def _across(
    source: DeviceSource, selection: Selection, start: UInt32[Array, ""], seam: PyTree
) -> PyTree:
    """A slice of records, of which the first ones may follow on the last."""
    ids = selection.ids[-1]
    count, size = len(ids), len(source)
    if count > size:
        # The batch is longer than the source, so it runs over more than once.
        return source.take(ids)
    last = np.uint32(size - count)
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


def loader_program(
    loader: Settings, function: Callable[..., Any], *options: Hashable
) -> Callable[..., Any]:
    """Compile a function of a loader; no program reads a source on the host."""
    return program(loader, function, *options, without=HostSource)


def loader_arrays(loader: Settings) -> list[Array]:
    """Return the arrays of a loader, as its programs take them."""
    return arrays_of(loader, loader.sharding is not None)


def next_on_device(loader: Settings, cursor: Cursor) -> tuple[PyTree, Cursor]:
    """The next full batch, and the cursor behind it."""
    count = loader.batch_size
    overrun = "skip" if loader.drop_remainder else "wrap"
    run = loader_program(loader, _at_cursor, cursor.kind, count, overrun)
    place = cursor.words, cursor.epochs, cursor.record
    batch, epoch, record = run(loader_arrays(loader), *place)
    if not is_staged():
        batch = as_given(batch, loader.sharding, count)
    return batch, dataclasses.replace(cursor, epochs=epoch, record=record)


def _at_cursor(
    loader: Settings,
    impl: str,
    count: int,
    overrun: Overrun,
    words: UInt32[Array, " words"],
    epoch: UInt32[Array, ""],
    record: UInt32[Array, "2"],
) -> tuple[PyTree, UInt32[Array, ""], UInt32[Array, "2"]]:
    place = Place(epoch, record[0])
    batch, place = device_batch(loader, impl, words, place, count, overrun)
    return batch, place.epoch, place.record()


# From the host.


class Found(NamedTuple):
    """Records on the device, their numbers, and the place of the first one."""

    ids: UInt64[np.ndarray, " n"]
    epoch: UInt32[np.ndarray, "..."]
    offset: int
    records: PyTree


def read(
    source: HostSource, sharding: NamedSharding | None, ids: UInt64[np.ndarray, " n"]
) -> PyTree:
    """The records of some numbers, moved to the device.

    Each process reads only those of its own devices.
    """
    rows = own_rows(sharding, len(ids))
    records = source.read(ids if rows is None else ids[rows])
    return from_own_rows(records, sharding, len(ids), rows)


def host_batch(loader: Settings, cursor: Cursor, found: Found) -> PyTree:
    """The batch of what was read."""
    ids, epoch, offset, batch = found
    if not are_identity(loader.pipe, loader.batch_pipe):
        size = len(loader.source)
        selection = Selection(epoch, as_words(ids, size), as_words(offset, size))
        known = replicated((cursor.words, selection), loader.sharding)
        run = loader_program(loader, _made, cursor.kind)
        batch = run(loader_arrays(loader), *known, batch)
    return as_given(batch, loader.sharding, len(ids))


def next_on_host(loader: Settings, cursor: Cursor) -> tuple[PyTree, Cursor]:
    """The next full batch, and the cursor behind it."""
    check_concrete("data.Loader.next", cursor)
    assert isinstance(loader.source, HostSource)
    size, count = len(loader.source), loader.batch_size
    epoch, start = cursor.epoch, cursor.position
    if loader.drop_remainder and start + count > size:
        epoch, start = epoch + 1, 0
    at = start + np.arange(count, dtype=np.uint64)
    over, at = at // np.uint64(size), at % np.uint64(size)
    several = int(over[-1]) > int(over[0])
    parts = [(epoch + int(k), at[over == k]) for k in np.unique(over)]
    ids = np.concatenate([ordered(loader, cursor, *part) for part in parts])
    epochs = (epoch + over).astype(np.uint32)
    records = read(loader.source, loader.sharding, ids)
    found = Found(ids, epochs if several else epochs[0, ...], int(at[0]), records)
    after = dataclasses.replace(
        cursor, epochs=epochs[-1, ...], record=split(int(at[-1]) + 1)
    )
    return host_batch(loader, cursor, found), after


def ordered(
    loader: Settings, cursor: Cursor, epoch: int, at: UInt64[np.ndarray, " n"]
) -> UInt64[np.ndarray, " n"]:
    """The numbers of the records at some places of an epoch."""
    if not loader.shuffle:
        return at
    return permute_on_host(np.asarray(cursor.words), epoch, at, len(loader.source))
