"""Results computed a little ahead, in threads of their own, in order."""

import concurrent.futures as cf
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Generic, Protocol, TypeVar, runtime_checkable

_AHEAD = 2

_Result = TypeVar("_Result", covariant=True)


@runtime_checkable
class _Results(Protocol[_Result]):
    def __next__(self) -> _Result: ...

    def close(self) -> None: ...


class ReadAhead(Iterator[_Result]):
    """`map(work, range(count))`, with a bounded number of results ready beforehand.

    There are `threads` threads, Grain's own where it is installed and else of the
    standard library, and at most two results more than that are held. The threads end
    with the last result, with the first error, with `close`, and when nobody holds the
    iterator any more.
    """

    def __init__(self, work: Callable[[int], _Result], count: int, threads: int = 1):
        grain = _grain()
        self._results: _Results[_Result] = (
            _ByPool(work, count, threads)
            if grain is None
            else _by_grain(grain, work, count, threads)
        )
        # The threads know the results, not this iterator, so that it can be dropped.
        self.close = weakref.finalize(self, self._results.close)

    def __next__(self) -> _Result:
        if not self.close.alive:
            raise StopIteration
        try:
            return next(self._results)
        except BaseException:  # also when somebody presses Ctrl-C while it waits
            self.close()
            raise


def _grain() -> ModuleType | None:
    try:
        import grain
    except ImportError:  # also where it is installed and does not work
        return None
    return grain


def _by_grain(
    grain: ModuleType, work: Callable[[int], _Result], count: int, threads: int
) -> _Results[_Result]:
    """The results by the threads with which Grain reads its datasets."""
    ahead = threads + _AHEAD
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    results = grain.MapDataset.range(count).map(work).to_iter_dataset(options)
    iterator = iter(results)
    iterator.start_prefetch()
    return iterator


class _ByPool(Generic[_Result]):
    """The results by a thread pool of the standard library."""

    def __init__(self, work: Callable[[int], _Result], count: int, threads: int):
        self._work, self._indices = work, iter(range(count))
        self._depth = threads + _AHEAD
        self._pool = cf.ThreadPoolExecutor(threads, "eqx_pipe-read-ahead")
        self._waiting: deque[cf.Future[_Result]] = deque()
        self._fill()

    def __next__(self) -> _Result:
        self._fill()
        if not self._waiting:
            raise StopIteration
        result = self._waiting.popleft().result()
        self._fill()
        return result

    def _fill(self) -> None:
        while len(self._waiting) < self._depth:
            index = next(self._indices, None)
            if index is None:
                return
            self._waiting.append(self._pool.submit(self._work, index))

    def close(self) -> None:
        """Ends the threads, without waiting for what they do just now."""
        # A slow read shall not hold up an error.
        self._pool.shutdown(wait=False, cancel_futures=True)
