"""The batches of an epoch, one by one."""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np

from .._sharding.mesh import no_context
from .._stage import Identity
from .._types import PyTree
from .cursor import Cursor, check_epoch, is_concrete, split
from .draw import Place, draw
from .prepare import (
    Numbers,
    constrained,
    for_count,
    halves,
    prepare,
    settled,
    wide,
)
from .programs import arrays_of, known, program
from .read_ahead import ReadAhead
from .shuffle import permute_on_host
from .spread import everywhere, own_rows, spread

_BLOCK = 8192
"""About how many places of the order the host computes at once."""


class Epoch(Iterator[Any]):
    """The batches that are left of an epoch; `cursor` is the place behind the last."""

    def __init__(self, loader: Any, cursor: Cursor):
        self._loader = loader
        # Fields of a Module are slow to look up, for every batch.
        self._batch_size, self._sharding = loader.batch_size, loader.sharding
        self._from = cursor
        self._position = cursor.position
        self._end = batches_end(loader, self._position)

    @property
    def cursor(self) -> Cursor:
        """The place to resume from: behind the batch that was given last."""
        return dataclasses.replace(self._from, record=split(self._position))

    def __len__(self) -> int:
        """How many batches are left."""
        return -(-(self._end - self._position) // self._batch_size)

    def _count(self) -> int:
        """The size of the next batch; 0 when there is none."""
        return min(self._batch_size, self._end - self._position)


def going_on(cursor: Cursor, loader: Any) -> Cursor:
    """The cursor itself, or behind the last batch of an epoch the next one's begin."""
    if batches_end(loader, cursor.position) > cursor.position:
        return cursor
    check_epoch("Loader.epoch", cursor.epoch + 1)
    return cursor.next_epoch()


def check_epochs(function: str, cursor: Cursor, loader: Any, length: int) -> None:
    """Raises a `ValueError` if `length` batches would go behind the last epoch.

    Where the place is traced that cannot be told.
    """
    if not is_concrete(cursor):
        return
    size, count, position = len(loader.source), loader.batch_size, cursor.position
    if loader.drop_remainder:
        here, each = (size - position) // count, size // count
        more = -(-(length - here) // each)
    else:
        more = (position + length * count - 1) // size
    if more > 0:  # else the number of the epoch need not come from the device
        check_epoch(function, cursor.epoch + more)


def batches_end(loader: Any, position: int) -> int:
    """Where in the epoch the last batch ends that begins at or behind `position`."""
    size = len(loader.source)
    if loader.drop_remainder:
        return position + (size - position) // loader.batch_size * loader.batch_size
    return size


def _note_a_short_batch(error: Exception, loader: Any, count: int) -> None:
    """Says with an error of `batch_pipe` that it came for the short last batch."""
    if count < loader.batch_size and not isinstance(loader.batch_pipe, Identity):
        error.add_note(
            f"In eqx_pipe.Loader: `batch_pipe` was given the short last batch, of "
            f"{count} records instead of {loader.batch_size}; with "
            "`drop_remainder=True` there is none."
        )


def outside(loader: Any) -> Any:
    """Out of the user's mesh, if the loader brings its own."""
    return contextlib.nullcontext() if loader.sharding is None else no_context()


class DeviceEpoch(Epoch):
    """From a source on the device: one call of a compiled program for each batch."""

    def __init__(self, loader: Any, cursor: Cursor):
        super().__init__(loader, cursor)
        self._arrays = arrays_of(loader)
        numbers = (cursor.words, cursor.epochs, np.uint32(self._position))
        place = everywhere(tuple(map(np.asarray, numbers)), loader.sharding)
        # Once for all batches; each call gives the next one its start.
        place = jax.device_put(place) if loader.sharding is None else place
        self._words, self._epoch, self._start = place
        self._size = -1
        self._run: Any = None

    def __next__(self) -> PyTree:
        count = self._count()
        if count != self._size:
            if count == 0:
                raise StopIteration
            options = self._from.kind, count
            self._run, self._size = program(self._loader, _stretch, *options), count
        try:
            batch = self._next(count)
        except Exception as error:
            _note_a_short_batch(error, self._loader, count)
            raise
        self._position += count
        return batch

    def _next(self, count: int) -> PyTree:
        given = self._arrays, self._words, self._epoch, self._start
        if self._sharding is None:
            batch, self._start = self._run(*given)
            return batch
        with no_context():
            batch, self._start = self._run(*given)
            return settled(batch, for_count(self._sharding, count))


def _stretch(
    loader: Any, kind: str, count: int, words: Any, epoch: Any, start: Any
) -> Any:
    key = jr.wrap_key_data(words, impl=kind)
    batch, place = draw(loader, words, key, Place(epoch, start), count, inside=True)
    return batch, place.start


class HostEpoch(Epoch):
    """From a host source: records are read ahead by threads."""

    def __init__(self, loader: Any, cursor: Cursor):
        super().__init__(loader, cursor)
        self._ahead = ReadAhead(
            _Reader(loader, cursor),
            _Pieces(loader, cursor, self._position, self._end),
            loader.source.threads,
        )

    def __next__(self) -> PyTree:
        records, count = next(self._ahead)
        try:
            with outside(self._loader):
                batch = finish(self._loader, self._from, *records)
        except Exception as error:
            _note_a_short_batch(error, self._loader, count)
            raise
        self._position += count
        return batch

    def close(self) -> None:
        """Ends the threads that read ahead; dropping the iterator does the same."""
        self._ahead.close()


class _Reader:
    """Reads the records of one batch and begins their way to the device."""

    def __init__(self, loader: Any, cursor: Cursor):
        self._source, self._sharding = loader.source, loader.sharding

    def __call__(self, piece: tuple[Any, Any, int]) -> Any:
        indices, epoch, offset = piece
        return read(self._source, self._sharding, indices, epoch, offset), len(indices)


def read(
    source: Any, sharding: Any, indices: Any, epoch: Any, offset: int
) -> tuple[Numbers, PyTree]:
    """The numbers and records of a batch, on the device."""
    count = len(indices)
    sharding = for_count(sharding, count)
    rows = own_rows(sharding, count)
    records = source.read(np.asarray(indices)[rows].tolist())
    low, high = halves(indices)
    first, first_high = halves(offset)
    big = wide(len(source))
    numbers = Numbers(
        epoch, low, high if big else None, first, first_high if big else None
    )
    return everywhere(numbers, sharding), spread(records, sharding, count, rows)


def finish(loader: Any, cursor: Cursor, numbers: Numbers, records: PyTree) -> PyTree:
    """The batch of some records, through the pipelines of the loader."""
    stages = stages_of(loader)
    run = program(stages, _prepare, cursor.kind)
    words = everywhere(cursor.words, loader.sharding)
    batch = run(arrays_of(stages), words, numbers, records)
    return settled(batch, for_count(loader.sharding, len(numbers.record)))


class _Stages(eqx.Module):
    """What of a loader is in a program that is given the records."""

    pipe: Any
    batch_pipe: Any
    sharding: Any = eqx.field(static=True)


def stages_of(loader: Any) -> eqx.Module:
    """One and the same for a loader, so that programs are found again."""
    beside = known(loader)
    if beside.stages is None:
        beside.stages = _Stages(loader.pipe, loader.batch_pipe, loader.sharding)
    return beside.stages


def _prepare(
    stages: _Stages, kind: str, words: Any, numbers: Numbers, records: PyTree
) -> PyTree:
    key = jr.wrap_key_data(words, impl=kind)
    batch = prepare(stages.pipe, stages.batch_pipe, key, numbers, records)
    return constrained(batch, for_count(stages.sharding, len(numbers.record)))


class _Pieces(Sequence[Any]):
    """For each batch: the numbers of its records, its epoch, and where it begins."""

    def __init__(self, loader: Any, cursor: Cursor, first: int, end: int):
        self._ends = first, end
        self._size = loader.batch_size
        self._epoch = np.asarray(cursor.epochs, np.uint32)
        self._block = max(1, _BLOCK // self._size) * self._size
        # Several threads may want the same block, or one and its neighbour.
        self._order = ft.lru_cache(2)(ft.partial(ordered, loader, cursor))

    def __len__(self) -> int:
        first, end = self._ends
        return -(-(end - first) // self._size)

    def __getitem__(self, index: Any) -> tuple[Any, Any, int]:
        first, end = self._ends
        at = index * self._size
        if not 0 <= at < end - first:
            raise IndexError(index)
        start = first + at // self._block * self._block
        stop = min(end, start + self._block)
        indices = self._order(int(self._epoch), start, stop)
        at = first + at - start
        return indices[at : at + self._size], self._epoch, start + at


def ordered(loader: Any, cursor: Cursor, epoch: int, start: int, stop: int) -> Any:
    """The numbers of the records at the places from `start` to `stop` of an epoch."""
    positions = np.arange(start, stop, dtype=np.uint64)
    if not loader.shuffle:
        return positions
    return permute_on_host(
        np.asarray(cursor.words), epoch, positions, len(loader.source)
    )
