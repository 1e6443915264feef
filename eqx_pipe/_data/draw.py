"""Batches of a source on the device, as a pure function of the place."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, UInt32

from .._types import Key, PyTree
from .bits import as_numbers
from .cursor import later
from .prepare import Numbers, constrained, for_count, prepare
from .shuffle import permute

_SMALL = 8
"""Batches of up to this part of a source may have twice their records set aside."""


class Place(NamedTuple):
    """The epoch, and how many of its records were given."""

    epoch: UInt32[Array, ""]
    start: UInt32[Array, ""]


def draw(
    loader: Any,
    words: Any,
    key: Key,
    place: Place,
    count: int,
    inside: bool,
    whole: bool = False,
    seam: PyTree = None,
) -> tuple[PyTree, Place]:
    """The next `count` records as a batch, and the place behind them.

    `inside` says that the epoch has so many records left, and `whole` that it has so
    many or none. Else the batch runs over into the next epoch, or begins with it if
    remainders are dropped.
    """
    size = len(loader.source)
    if not inside and (loader.drop_remainder or whole):
        over = place.start > np.uint32(size - count)
        place = Place(
            later(place.epoch, over.astype(np.uint32)),
            jnp.where(over, np.uint32(0), place.start),
        )
        inside = True
    if inside:
        epoch, positions = place.epoch, place.start + _counted(count)
        after = Place(epoch, place.start + np.uint32(count))
    else:
        # Offsets stay below 2^32: there are less than 2^31 records, and a batch of
        # 2^31 would fit no device.
        offsets = place.start + _counted(count)
        n = np.uint32(size)
        over = offsets // n if count > size else (offsets >= n).astype(np.uint32)
        epoch, positions = later(place.epoch, over), offsets - over * n
        after = Place(epoch[-1], positions[-1] + np.uint32(1))
    if loader.shuffle:
        index = _permuted(words, epoch, positions, size)
        # Else the permutation is computed again for every element of the gather.
        index = jax.lax.optimization_barrier(index)
        records = loader.source.take(index)
    elif inside:
        index, records = positions, loader.source.stretch(place.start, count)
    else:
        index = positions
        records = _running_over(loader.source, place.start, index, size, seam)
    offset = positions[0]
    ends = None if inside or count > size else epoch[np.asarray([0, -1])]
    numbers = Numbers(epoch, index, None, offset, None, ends)
    batch = prepare(loader.pipe, loader.batch_pipe, key, numbers, as_numbers(records))
    return constrained(batch, for_count(loader.sharding, count)), after


def _permuted(words: Any, epoch: Any, positions: Any, size: int) -> Any:
    if epoch.ndim == 0 or len(epoch) > size:
        return permute(words, epoch, positions, size)
    # Hardly any batch runs over, and one order is found much faster than many.
    return jax.lax.cond(
        epoch[0] == epoch[-1],
        lambda: permute(words, epoch[0], positions, size),
        lambda: permute(words, epoch, positions, size),
    )


def _counted(count: int) -> UInt32[Array, " count"]:
    return jnp.arange(count, dtype=np.uint32)


def seam_of(loader: Any, count: int, whole: bool) -> PyTree:
    """The last records and then the first, if batches run over from those to these."""
    size = len(loader.source)
    if loader.shuffle or loader.drop_remainder or whole or count > size // _SMALL:
        return None
    starts = (jnp.asarray(at, np.uint32) for at in (size - count, 0))
    pair = [loader.source.stretch(start, count) for start in starts]
    return jtu.tree_map(lambda *leaves: jnp.concatenate(leaves), *pair)


def _running_over(source: Any, start: Any, index: Any, size: int, seam: PyTree) -> Any:
    """A stretch of records, of which the first ones may follow on the last."""
    count = len(index)
    if count > size:
        return source.take(index)
    last = np.uint32(size - count)
    if seam is None:
        return jax.lax.cond(
            start <= last,
            lambda: source.stretch(start, count),
            lambda: source.take(index),
        )
    # A conditional would have to write the batch down before anything is done with it.
    over = start > last
    at = jnp.where(over, start - last, np.uint32(0)).astype(np.int32)

    def one(inside: Array, seam: Array) -> Array:
        across = jax.lax.dynamic_slice_in_dim(seam, at, count)
        return jax.lax.select_n(over, inside, across)

    return jtu.tree_map(one, source.stretch(start, count), seam)
