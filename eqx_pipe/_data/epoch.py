"""The batches of an epoch, one by one; those from the host are read ahead."""

import concurrent.futures as cf
import contextlib
import dataclasses
import functools as ft
import itertools as it
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, UInt32

from .._types import PyTree
from .array_source import DeviceSource
from .batch import (
    Found,
    Settings,
    device_batch,
    host_batch,
    loader_arrays,
    loader_program,
    ordered,
    read,
)
from .cursor import Cursor, check_epoch, is_concrete, split
from .layout import as_given, replicated, without_users_mesh
from .order import Place
from .pipes import are_identity
from .source import HostSource

# One for the next step and one for a read that takes longer: each takes memory.
_AHEAD = 2
_BLOCK = 2**15
"""About how many places of the order are computed at once."""


class Epoch(Iterator[PyTree]):
    """The batches that are left of an epoch; `cursor` is the place behind the last."""

    def __init__(self, loader: Settings, cursor: Cursor):
        self._from, self._batch_size = cursor, loader.batch_size
        self._position = cursor.position
        self._end = batches_end(loader, self._position)
        on_device = isinstance(loader.source, DeviceSource)
        start = _from_device if on_device else _from_host
        self._batches = start(loader, cursor, self._end)

    @property
    def cursor(self) -> Cursor:
        """The place to resume from: behind the batch that was given last."""
        return dataclasses.replace(self._from, record=split(self._position))

    def __len__(self) -> int:
        """How many batches are left."""
        return -(-(self._end - self._position) // self._batch_size)

    def __next__(self) -> PyTree:
        batch = next(self._batches)
        self._position = min(self._position + self._batch_size, self._end)
        return batch

    def close(self) -> None:
        """Ends the threads that read ahead; dropping the iterator does the same."""
        self._batches.close()


def rolled_over(cursor: Cursor, loader: Settings) -> Cursor:
    """The cursor itself, or behind the last batch of an epoch the next one's begin."""
    if batches_end(loader, cursor.position) > cursor.position:
        return cursor
    check_epoch("data.Loader.epoch", cursor.epoch + 1)
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


def _from_device(
    loader: Settings, cursor: Cursor, end: int
) -> Generator[PyTree, None, None]:
    """One call of a compiled program for each batch."""
    # Fields of a Module are slow to look up, for every batch.
    size, sharding, arrays = loader.batch_size, loader.sharding, loader_arrays(loader)
    numbers = (cursor.words, cursor.epochs, np.uint32(cursor.position))
    place = replicated(tuple(map(np.asarray, numbers)), sharding)
    # Once for all batches; each call gives the next one its start.
    words, epoch, start = jax.device_put(place) if sharding is None else place

    def batches(start: Array) -> Generator[PyTree, None, None]:
        whole, rest = divmod(end - cursor.position, size)
        for count, times in ((size, whole), (rest, min(rest, 1))):
            if not times:
                continue
            run = loader_program(loader, _at_start, cursor.kind, count)
            for _ in range(times):
                try:
                    with without_users_mesh(sharding):
                        batch, start = run(arrays, words, epoch, start)
                        batch = as_given(batch, sharding, count)
                except Exception as error:
                    _note_a_short_batch(error, loader, count)
                    raise
                yield batch

    return batches(start)


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


def _from_host(
    loader: Settings, cursor: Cursor, end: int
) -> Generator[PyTree, None, None]:
    """Records that threads read ahead, each time through the pipelines."""
    source, size = loader.source, loader.batch_size
    assert isinstance(source, HostSource)
    number = -(-(end - cursor.position) // size)
    work = _reader(loader, cursor, end)
    ahead = ReadAhead(work, number, source.threads, source.chunk(size))

    def batches() -> Generator[PyTree, None, None]:
        with contextlib.closing(ahead):
            for found in ahead:
                try:
                    with without_users_mesh(loader.sharding):
                        batch = host_batch(loader, cursor, found)
                except Exception as error:
                    _note_a_short_batch(error, loader, len(found.ids))
                    raise
                yield batch

    return batches()


def _note_a_short_batch(error: Exception, loader: Settings, count: int) -> None:
    """Says with an error of `batch_pipe` that it came for the short last batch."""
    if count < loader.batch_size and not are_identity(loader.batch_pipe):
        error.add_note(
            "In eqx_pipe.data.Loader: `batch_pipe` was given the short last batch, of "
            f"{count} records instead of {loader.batch_size}; with "
            "`drop_remainder=True` there is none."
        )


def _reader(loader: Settings, cursor: Cursor, end: int) -> Callable[[int], Found]:
    """What reads the batches from a cursor on by their numbers, from any thread."""
    # Fields of a Module are slow to look up, for every batch.
    source, sharding, size = loader.source, loader.sharding, loader.batch_size
    assert isinstance(source, HostSource)
    first, epoch = cursor.position, np.asarray(cursor.epochs, np.uint32)
    block = max(1, _BLOCK // size) * size
    lock = threading.Lock()

    # Several threads may want the same block, or one and its neighbour.
    @ft.lru_cache(2)
    def order(start: int) -> np.ndarray:
        at = np.arange(start, min(end, start + block), dtype=np.uint64)
        return ordered(loader, cursor, cursor.epoch, at)

    def batch(index: int) -> Found:
        at = index * size
        with lock:
            ids = order(first + at - at % block)
        ids = ids[at % block : at % block + size]
        return Found(ids, epoch, first + at, read(source, sharding, ids))

    return batch


class ReadAhead(Iterator[Any]):
    """`map(work, range(count))`, with a bounded number of results ready beforehand.

    There are `threads` threads. Each takes `chunk` numbers in one go, and there are at
    most two chunks more than threads. The threads end with the last result, with the
    first error, with `close`, and when nobody holds the iterator any more.
    """

    def __init__(
        self, work: Callable[[int], Any], count: int, threads: int, chunk: int
    ):
        def some(number: int) -> list[Any]:
            found: list[Any] = []
            try:
                for i in range(number * chunk, min(count, (number + 1) * chunk)):
                    found.append(work(i))
            except Exception as error:  # raised behind the results that came before
                found.append(error)
            return found

        self._results = _ByPool(some, -(-count // chunk), threads)
        self._ready: deque[Any] = deque()
        # The threads know the results, not this iterator, so that it can be dropped.
        self.close = weakref.finalize(self, self._results.close)

    def __next__(self) -> Any:
        if not self.close.alive:
            raise StopIteration
        try:
            if not self._ready:
                self._ready.extend(next(self._results))
            result = self._ready.popleft()
            if isinstance(result, Exception):
                raise result
            return result
        except BaseException:  # also when somebody presses Ctrl-C while it waits
            self.close()
            raise


class _ByPool:
    """The results by a thread pool of the standard library."""

    def __init__(self, work: Callable[[int], Any], count: int, threads: int):
        self._pool = cf.ThreadPoolExecutor(threads, "eqx_pipe-read-ahead")
        self._waiting: deque[cf.Future[Any]] = deque()
        self._left = map(ft.partial(self._pool.submit, work), range(count))
        self._fill(threads + _AHEAD)

    def _fill(self, number: int) -> None:
        self._waiting.extend(it.islice(self._left, number))

    def __next__(self) -> Any:
        if not self._waiting:
            raise StopIteration
        result = self._waiting.popleft().result()
        self._fill(1)
        return result

    def close(self) -> None:
        """Ends the threads, without waiting for what they do just now."""
        # A slow read must not delay an error.
        self._pool.shutdown(wait=False, cancel_futures=True)
