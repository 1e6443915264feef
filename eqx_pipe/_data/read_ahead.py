"""Work done a little ahead, in threads of its own, in order."""

import concurrent.futures as cf
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_AHEAD = 2


class ReadAhead:
    """`map(work, items)`, with a bounded number of results ready beforehand.

    There are `threads` threads, and at most two results more than that are held. The
    threads end with the last item, with the first error, with `close`, and when nobody
    holds the iterator any more.
    """

    def __init__(
        self, work: Callable[[Any], Any], items: Iterable[Any], threads: int = 1
    ):
        self._work = work
        self._items: Iterator[Any] = iter(items)
        self._depth = threads + _AHEAD
        self._pool = cf.ThreadPoolExecutor(threads, "eqx_pipe-read-ahead")
        self._waiting: deque[cf.Future[Any]] = deque()
        # Threads know the pool, not the iterator, so that it can be dropped.
        self.close = weakref.finalize(self, _end, self._pool)
        self._fill()

    def __iter__(self) -> "ReadAhead":
        return self

    def __next__(self) -> Any:
        try:
            self._fill()
            if not self._waiting:
                raise StopIteration
            result = self._waiting.popleft().result()
            self._fill()
            return result
        except BaseException:  # also when somebody presses Ctrl-C while it waits
            self._waiting.clear()
            self._items = iter(())
            self.close()
            raise

    def _fill(self) -> None:
        while len(self._waiting) < self._depth:
            try:
                item = next(self._items)
            except StopIteration:
                return
            self._waiting.append(self._pool.submit(self._work, item))


def _end(pool: cf.ThreadPoolExecutor) -> None:
    # What has begun is not waited for: a slow read shall not hold up an error.
    pool.shutdown(wait=False, cancel_futures=True)
