"""`Loader.next`: one full batch and the place behind it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._sharding.mesh import is_staged
from .._types import PyTree
from .cursor import Cursor, check_concrete, split
from .draw import Place, draw
from .epoch import finish, ordered, read
from .prepare import settled
from .programs import arrays_of, program
from .source import DeviceSource


def next_batch(loader: Any, cursor: Cursor) -> tuple[PyTree, Cursor]:
    """The next full batch, from any kind of source."""
    if not isinstance(loader.source, DeviceSource):
        return _from_host(loader, cursor)
    run = program(loader, _next, cursor.kind)
    place = (cursor.words, cursor.epochs, cursor.record)
    batch, epoch, record = run(arrays_of(loader), *place)
    if not is_staged():
        batch = settled(batch, loader.sharding)
    return batch, dataclasses.replace(cursor, epochs=epoch, record=record)


def _next(loader: Any, kind: str, words: Any, epoch: Any, record: Any) -> Any:
    words, record = jnp.asarray(words), jnp.asarray(record)
    key = jax.random.wrap_key_data(words, impl=kind)
    place = Place(jnp.asarray(epoch), record[0])
    batch, place = draw(loader, words, key, place, loader.batch_size, inside=False)
    return batch, place.epoch, jnp.stack([place.start, jnp.zeros_like(place.start)])


def _from_host(loader: Any, cursor: Cursor) -> tuple[PyTree, Cursor]:
    check_concrete("Loader.next", cursor)
    size, count = len(loader.source), loader.batch_size
    epoch, start = cursor.epoch, cursor.position
    if loader.drop_remainder and start + count > size:
        epoch, start = epoch + 1, 0
    first, epochs, indices, left = (epoch, start), [], [], count
    while left:
        if start == size:
            epoch, start = epoch + 1, 0
            first = (epoch, start) if left == count else first
        stop = min(size, start + left)
        indices.append(ordered(loader, cursor, epoch, start, stop))
        epochs += [epoch] * (stop - start)
        left, start = left - (stop - start), stop
    one = epochs[0] == epochs[-1]
    numbers = np.asarray(epochs[0] if one else epochs, np.uint32)
    batch = read(
        loader.source, loader.sharding, np.concatenate(indices), numbers, first[1]
    )
    after = dataclasses.replace(
        cursor, epochs=np.asarray(epoch, np.uint32), record=split(start)
    )
    return finish(loader, cursor, *batch), after
