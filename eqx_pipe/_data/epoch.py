"""Iterate over the batches of an epoch; host sources are read ahead."""

import concurrent.futures as cf
import contextlib
import dataclasses
import functools as ft
import itertools as it
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._types import PyTree
from .batch import (
    Read,
    batch_at,
    host_batch,
    loader_arrays,
    loader_program,
    ordered,
    read_records,
)
from .cursor import Cursor, split
from .device_source import DeviceSource
from .host_source import HostSource
from .placement import in_users_sharding, replicated, without_users_mesh

if TYPE_CHECKING:
    from .loader import Loader
else:
    Loader = Any

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
        on_device = isinstance(loader.source, DeviceSource)
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
    words, epoch, record = (
        jax.device_put(numbers) if sharding is None else replicated(numbers, sharding)
    )
    whole, rest = divmod(end - cursor.position, size)
    for count, times in ((size, whole), (rest, min(rest, 1))):
        if not times:
            continue
        run = loader_program(loader, batch_at, cursor.kind, count, "never")
        for _ in range(times):
            batch, epoch, record = run(arrays, words, epoch, record)
            yield in_users_sharding(batch, sharding, count)


def _from_host(
    loader: Loader, cursor: Cursor, end: int
) -> Generator[PyTree, None, None]:
    """Yield the batches of records that threads read ahead."""
    source, size = loader.source, loader.batch_size
    assert isinstance(source, HostSource)
    number = -(-(end - cursor.position) // size)
    work = _reader(loader, cursor, end)
    ahead = ReadAhead(work, number, source.threads, source.chunk(size))
    with contextlib.closing(ahead):
        for read in ahead:
            yield host_batch(loader, cursor, read)


def _reader(loader: Loader, cursor: Cursor, end: int) -> Callable[[int], Read]:
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

    def batch(index: int) -> Read:
        at = index * size
        with lock:
            ids = order(first + at - at % block)
        return read_records(
            loader, ids[at % block : at % block + size], epochs, first + at
        )

    return batch


class ReadAhead(Iterator[Any]):
    """`map(work, range(count))` in threads, with a few results computed ahead.

    Each thread takes `chunk` numbers at a time, and at most two chunks more than the
    number of threads are ready. The threads end after the last result, after the first
    error, after `close`, and when the iterator is collected.
    """

    def __init__(
        self, work: Callable[[int], Any], count: int, threads: int, chunk: int
    ):
        def results_from(start: int) -> list[Any]:
            results: list[Any] = []
            try:
                for i in range(start, min(count, start + chunk)):
                    results.append(work(i))
            except Exception as error:  # raised after the results that came before
                results.append(error)
            return results

        pool = cf.ThreadPoolExecutor(threads, "eqx_pipe-read-ahead")
        self._left = map(ft.partial(pool.submit, results_from), range(0, count, chunk))
        self._waiting = deque(it.islice(self._left, threads + _AHEAD))
        self._ready: deque[Any] = deque()
        # The threads refer to the pool, not to this iterator, so that it can be
        # collected. `shutdown` does not wait: a slow read must not delay an error.
        end = ft.partial(pool.shutdown, wait=False, cancel_futures=True)
        self.close = weakref.finalize(self, end)

    def __next__(self) -> Any:
        try:
            if not self.close.alive or not (self._ready or self._waiting):
                raise StopIteration
            if not self._ready:
                self._ready.extend(self._waiting.popleft().result())
                self._waiting.extend(it.islice(self._left, 1))
            result = self._ready.popleft()
            if isinstance(result, Exception):
                raise result
            return result
        except BaseException:  # also after Ctrl-C while it waits
            self.close()
            raise
