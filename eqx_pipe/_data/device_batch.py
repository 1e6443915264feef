"""Batches of a source on the device, as pure functions of the place.

A batch goes through once: its order, its records, the pipelines, the sharding.
"""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, UInt32

from .._sharding.mesh import is_staged
from .._types import PyTree
from .array_source import DeviceSource
from .bits import as_numbers
from .cursor import Cursor
from .layout import as_given, constrained
from .order import Overrun, Place, Selection, select
from .pipes import run_pipes
from .programs import arrays_of, program
from .settings import Settings

_SMALL = 8
"""Batches of up to this part of a source may have twice their records set aside."""


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
    key = jr.wrap_key_data(words, impl=impl)
    pipes = loader.pipe, loader.batch_pipe
    batch = run_pipes(*pipes, key, selection, as_numbers(records))
    return constrained(batch, loader.sharding, count), after


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
        return source.take(ids)
    last = np.uint32(size - count)
    if seam is None:
        return jax.lax.cond(
            start <= last, lambda: source.slice(start, count), lambda: source.take(ids)
        )
    # A conditional would have to write the batch down before anything is done with it.
    over = start > last
    at = jnp.where(over, start - last, np.uint32(0)).astype(np.int32)

    def one(inside: Array, seam: Array) -> Array:
        across = jax.lax.dynamic_slice_in_dim(seam, at, count)
        return jax.lax.select_n(over, inside, across)

    return jtu.tree_map(one, source.slice(start, count), seam)


def next_on_device(loader: Settings, cursor: Cursor) -> tuple[PyTree, Cursor]:
    """The next full batch, and the cursor behind it."""
    count = loader.batch_size
    overrun = "skip" if loader.drop_remainder else "wrap"
    run = program(loader, _at_cursor, cursor.kind, count, overrun)
    place = cursor.words, cursor.epochs, cursor.record
    batch, epoch, record = run(arrays_of(loader), *place)
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
