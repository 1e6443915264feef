"""The batches of an epoch, one by one."""

import abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, UInt32

from .._sharding.mesh import no_context
from .._stage import Identity
from .._types import PyTree
from .cursor import Cursor, check_epoch, is_concrete, split
from .device_batch import device_batch
from .host_batch import EpochReader, host_batch
from .host_source import HostSource
from .layout import as_given, replicated, without_users_mesh
from .order import Place, Selection
from .programs import arrays_of, program
from .read_ahead import ReadAhead
from .settings import Settings


class Epoch(Iterator[PyTree]):
    """The batches that are left of an epoch; `cursor` is the place behind the last."""

    def __init__(self, loader: Settings, cursor: Cursor):
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

    def __next__(self) -> PyTree:
        count = min(self._batch_size, self._end - self._position)
        if count == 0:
            self.close()
            raise StopIteration
        given = self._fetch(count)
        try:
            batch = self._batch(given, count)
        except Exception as error:
            if count < self._batch_size:
                _note_a_short_batch(error, self._loader, count)
            raise
        self._position += count
        return batch

    @abc.abstractmethod
    def _fetch(self, count: int) -> Any:
        """What the next batch, of so many records, is made with."""

    @abc.abstractmethod
    def _batch(self, given: Any, count: int) -> PyTree:
        """The next batch."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the threads that read ahead; dropping the iterator does the same."""


def rolled_over(cursor: Cursor, loader: Settings) -> Cursor:
    """The cursor itself, or behind the last batch of an epoch the next one's begin."""
    if batches_end(loader, cursor.position) > cursor.position:
        return cursor
    check_epoch("Loader.epoch", cursor.epoch + 1)
    return cursor.next_epoch()


def check_epochs(function: str, cursor: Cursor, loader: Settings, length: int) -> None:
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


def batches_end(loader: Settings, position: int) -> int:
    """Where in the epoch the last batch ends that begins at or behind `position`."""
    size = len(loader.source)
    if loader.drop_remainder:
        return position + (size - position) // loader.batch_size * loader.batch_size
    return size


def _note_a_short_batch(error: Exception, loader: Settings, count: int) -> None:
    """Says with an error of `batch_pipe` that it came for the short last batch."""
    if not isinstance(loader.batch_pipe, Identity):
        error.add_note(
            f"In eqx_pipe.Loader: `batch_pipe` was given the short last batch, of "
            f"{count} records instead of {loader.batch_size}; with "
            "`drop_remainder=True` there is none."
        )


class DeviceEpoch(Epoch):
    """From a source on the device: one call of a compiled program for each batch."""

    def __init__(self, loader: Settings, cursor: Cursor):
        super().__init__(loader, cursor)
        self._arrays = arrays_of(loader)
        numbers = (cursor.words, cursor.epochs, np.uint32(self._position))
        place = replicated(tuple(map(np.asarray, numbers)), loader.sharding)
        # Once for all batches; each call gives the next one its start.
        place = jax.device_put(place) if loader.sharding is None else place
        self._words, self._epoch, self._start = place
        self._size = -1
        self._run: Callable[..., Any]

    def _fetch(self, count: int) -> Callable[..., Any]:
        if count != self._size:
            self._run = program(self._loader, _at_start, self._from.kind, count)
            self._size = count
        return self._run

    def _batch(self, given: Callable[..., Any], count: int) -> PyTree:
        arguments = self._arrays, self._words, self._epoch, self._start
        if self._sharding is None:
            batch, self._start = given(*arguments)
            return batch
        with no_context():
            batch, self._start = given(*arguments)
            return as_given(batch, self._sharding, count)

    def close(self) -> None:
        """Nothing is read ahead."""


def _at_start(
    loader: Settings,
    impl: str,
    count: int,
    words: UInt32[Array, " words"],
    epoch: UInt32[Array, ""],
    start: UInt32[Array, ""],
) -> tuple[PyTree, UInt32[Array, ""]]:
    place = Place(epoch, start)
    batch, after = device_batch(loader, impl, words, place, count, "never")
    return batch, after.start


class HostEpoch(Epoch):
    """From a host source: records are read ahead by threads."""

    def __init__(self, loader: Settings, cursor: Cursor):
        super().__init__(loader, cursor)
        assert isinstance(loader.source, HostSource)
        read = EpochReader(loader, cursor, self._end)
        self._ahead = ReadAhead(read, len(read), loader.source.threads)

    def _fetch(self, count: int) -> tuple[Selection, PyTree]:
        return next(self._ahead)

    def _batch(self, given: tuple[Selection, PyTree], count: int) -> PyTree:
        with without_users_mesh(self._sharding):
            return host_batch(self._loader, self._from, *given)

    def close(self) -> None:
        self._ahead.close()
