"""Work done a little ahead, in threads of its own, in order."""

import concurrent.futures as cf
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_AHEAD = 2


class ReadAhead(Iterator[Any]):
    """`map(work, items)`, with a bounded number of results ready beforehand.

    There are `threads` threads, Grain's own where it is installed and else of the
    standard library, and at most two results more than that are held. The threads end
    with the last item, with the first error, with `close`, and when nobody holds the
    iterator any more.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        items: Sequence[Any],
        threads: int = 1,
    ):
        grain = _grain()
        self._results = (
            _ByPool(work, items, threads)
            if grain is None
            else _ByGrain(grain, work, items, threads)
        )
        # The threads know the results, not this iterator, so that it can be dropped.
        self.close = weakref.finalize(self, self._results.close)

    def __next__(self) -> Any:
        if not self.close.alive:
            raise StopIteration
        try:
            return next(self._results)
        except BaseException:  # also when somebody presses Ctrl-C while it waits
            self.close()
            raise


def _grain() -> Any:
    try:
        import grain
    except ImportError:  # also where it is installed and does not work
        return None
    return grain


class _ByPool(Iterator[Any]):
    """The results by a thread pool of the standard library."""

    def __init__(self, work: Callable[[Any], Any], items: Sequence[Any], threads: int):
        self._work, self._items = work, iter(items)
        self._depth = threads + _AHEAD
        self._pool = cf.ThreadPoolExecutor(threads, "eqx_pipe-read-ahead")
        self._waiting: deque[cf.Future[Any]] = deque()
        self._fill()

    def __next__(self) -> Any:
        self._fill()
        if not self._waiting:
            raise StopIteration
        result = self._waiting.popleft().result()
        self._fill()
        return result

    def _fill(self) -> None:
        while len(self._waiting) < self._depth:
            try:
                item = next(self._items)
            except StopIteration:
                return
            self._waiting.append(self._pool.submit(self._work, item))

    def close(self) -> None:
        """Ends the threads, without waiting for what they do just now."""
        # A slow read shall not hold up an error.
        self._pool.shutdown(wait=False, cancel_futures=True)


class _ByGrain(Iterator[Any]):
    """The results by the threads with which Grain reads its datasets."""

    def __init__(
        self,
        grain: Any,
        work: Callable[[Any], Any],
        items: Sequence[Any],
        threads: int,
    ):
        options = grain.ReadOptions(
            num_threads=threads, prefetch_buffer_size=threads + _AHEAD
        )
        results: Any = grain.MapDataset.source(_Work(work, items))
        self._results = iter(results.to_iter_dataset(options))
        self._results.start_prefetch()

    def __next__(self) -> Any:
        return next(self._results)

    def close(self) -> None:
        """Ends the threads, without waiting for what they do just now."""
        self._results.close()


class _Work(Sequence[Any]):
    """`map(work, items)` as something that Grain can read."""

    def __init__(self, work: Callable[[Any], Any], items: Sequence[Any]):
        self._work, self._items = work, items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._work(self._items[index])
