"""Chunks computed by the workers of an executor.

An executor needs only `submit(fn, *args)`, and the futures that it returns only
`.result()`. If they also have `.done()`, chunks are gathered as they finish.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from .._errors import SweepError, message
from .._progress import Progress
from .gather import Chunk, Todo
from .plan import Plan
from .worker import pack, work

# Retry a chunk whose worker died, since another may have more memory; give up on points
# that kill every worker.
_TRIES = 3
# Each call sends the packed function: 40 chunks with a closure of 10 MB are 800 MB on
# the wire.
_IN_FLIGHT_BYTES = 2**30
# Each check for finished chunks asks every future.
_IN_FLIGHT = 1024


def compute_remotely(
    plan: Plan, todo: Todo, bar: Progress, stopping: Callable[[], bool]
) -> Iterator[Chunk]:
    """Compute chunks by the workers of an executor, in the order they are finished."""
    packed = pack(plan)
    waiting = collections.deque(_Try(n, todo.rows.get(n)) for n in todo.chunks)
    flying: list[_Try] = []
    room = plan.work.row_bytes * plan.chunks.points + len(packed)
    most = max(2, min(_IN_FLIGHT, _IN_FLIGHT_BYTES // room))
    try:
        while flying or (waiting and not stopping()):
            if stopping():
                flying = [it for it in flying if not it.cancelled()]
            elif waiting and len(flying) < most:
                flying.append(waiting.popleft())
                flying[-1].launch(plan, packed)
                # Launch as many as may be in flight first, unless `submit` itself
                # computes.
                if not flying[-1].is_done():
                    continue
            trouble: Exception | None = None
            # Fetch results as they finish: Dask recomputes results of a killed worker
            # that were not fetched.
            for it in _finished(flying, wait=not waiting or len(flying) >= most):
                flying.remove(it)
                try:
                    found = it.result(plan)
                except Exception as error:
                    # Keep the other finished chunks before raising.
                    trouble = trouble or error
                    continue
                if found is not None:
                    bar.done(it.count(plan))
                    yield found
                elif not stopping():
                    waiting.append(it)
            if trouble is not None:
                raise trouble
    finally:
        for it in flying:
            it.cancelled()


@dataclasses.dataclass(eq=False)
class _Try:
    """A chunk or some of its rows, with the number of tries and the last future."""

    number: int
    rows: Int64[np.ndarray, " some"] | None = None
    tries: int = 0
    future: Any = None

    def count(self, plan: Plan) -> int:
        """Return the number of points."""
        return plan.count([self.number]) if self.rows is None else len(self.rows)

    def launch(self, plan: Plan, packed: bytes) -> None:
        """Submit the chunk once more."""
        executor = plan.request.executor
        assert executor is not None
        self.tries += 1
        asked = plan.asked(self.number, self.rows)
        try:
            self.future = executor.submit(work, packed, *asked)
        except Exception as error:
            raise _broken(error) from error

    def is_done(self) -> bool:
        """Return whether the chunk is known to be finished."""
        done = getattr(self.future, "done", None)
        return bool(done()) if callable(done) else False

    def cancelled(self) -> bool:
        """Try to cancel the future; return whether it was cancelled."""
        # Not every future can be cancelled.
        with contextlib.suppress(Exception):
            return bool(self.future.cancel())
        return False

    def result(self, plan: Plan) -> Chunk | None:
        """Return the finished chunk, or `None` if it is worth another try."""
        try:
            values, verdict, error = self.future.result()
        except concurrent.futures.BrokenExecutor as error:
            raise _broken(error) from error
        except (Exception, KeyboardInterrupt) as error:
            # Errors of the function are returned as values, so here a worker died.
            if self.tries < _TRIES and not isinstance(error, KeyboardInterrupt):
                return None
            points = plan.work.span(*plan.chunks.span(self.number))
            raise _killing(*points, self.tries, error) from error
        if error is not None:
            raise error
        return Chunk(self.number, self.rows, values, verdict)


def _finished(flying: Sequence[_Try], wait: bool) -> list[_Try]:
    """Return the finished ones; with `wait`, at least one if there are any."""
    pause = 0.0005
    while True:
        found = [it for it in flying if it.is_done()]
        if found or not wait or not flying:
            return found
        if not all(callable(getattr(it.future, "done", None)) for it in flying):
            return [flying[0]]  # its `result` waits
        time.sleep(pause)
        # Wait briefly for short chunks, and poll rarely for long ones.
        pause = min(2 * pause, 0.02)


def _broken(error: BaseException) -> SweepError:
    return SweepError(
        message(
            "sweep",
            f"the executor accepts no more work: {type(error).__name__}: {error}.",
            "A worker probably died, for instance because memory ran out, which ends a "
            "process pool. Make a new executor and call the same sweep again; with "
            "`store=` it resumes.",
        )
    )


def _killing(first: int, last: int, tries: int, error: BaseException) -> SweepError:
    return SweepError(
        message(
            "sweep",
            f"the worker failed {tries} times at the points {first} to {last - 1}: "
            f"{type(error).__name__}: {error}.",
            "Sweep over `space[first:last]` of these points in a process of its own "
            "to see why; the same call tries them again, and with `store=` only what "
            "is missing.",
        )
    )
