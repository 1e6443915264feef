"""Batches of a source on the device, as a pure function of the place."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, UInt32

from .._types import Key
from .prepare import Numbers, constrained, for_count, prepare
from .shuffle import permute


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
            place.epoch + over.astype(np.uint32),
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
        epoch = place.epoch + offsets // np.uint32(size)
        positions = offsets % np.uint32(size)
        after = Place(epoch[-1], positions[-1] + np.uint32(1))
    if loader.shuffle:
        index = _permuted(words, epoch, positions, size)
        # Else the permutation is computed again for every element of the gather.
        index = jax.lax.optimization_barrier(index)
        records = loader.source.take(index)
    else:
        index = positions
        records = _in_order(loader.source, place, index, count, size, inside)
    offset = positions[0]
    numbers = Numbers(epoch, index, None, offset, None)
    batch = prepare(loader.pipe, loader.batch_pipe, key, numbers, records)
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


def _in_order(
    source: Any, place: Place, index: Any, count: int, size: int, inside: bool
) -> PyTree:
    if inside:
        return source.stretch(place.start, count)
    if count > size:
        return source.take(index)
    return jax.lax.cond(
        place.start <= np.uint32(size - count),
        lambda: source.stretch(place.start, count),
        lambda: source.take(index),
    )
