"""Chunks computed elsewhere: by the workers of an executor.

Nothing is asked of an executor but `submit(fn, *args)`, and of what that returns but
`.result()`; if it has `.done()` too, chunks are gathered as they come.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int64

from .._errors import SweepError, describe_value, message
from .._progress import Progress
from .compute.failure import Verdict
from .compute.rows import Rows
from .gather import Chunk, Parts
from .plan import CostsBySpan, Index, Plan
from .worker import pack, work

# Memory that one worker lacked another may have; points that always kill one stop.
_TRIES = 3
# Each call takes the packed function along: 40 chunks with a closure of 10 MB are 800
# MB on the wire.
_IN_FLIGHT_BYTES = 2**30
# Every look for what is finished asks each of them.
_IN_FLIGHT = 1024


class Elsewhere:
    """Computes chunks by the workers of an executor."""

    def __init__(self, plan: Plan, costs: CostsBySpan | None):
        assert plan.request.executor is not None
        self.plan, self.costs = plan, costs
        self.executor = plan.request.executor
        self.packed = pack(plan)

    def __call__(
        self,
        numbers: Sequence[int],
        parts: Parts,
        stopping: Callable[[], bool],
        bar: Progress,
    ) -> Iterator[Chunk]:
        """The chunks with some numbers, as they come."""
        tries = [_Try(number, parts.get(number)) for number in numbers]
        waiting = collections.deque(tries)
        flying: list[_Try] = []
        room = self.plan.work.row_bytes * self.plan.chunks.points + len(self.packed)
        most = max(2, min(_IN_FLIGHT, _IN_FLIGHT_BYTES // room))
        try:
            while flying or (waiting and not stopping()):
                if stopping():
                    flying = [it for it in flying if not it.cancelled()]
                elif waiting and len(flying) < most:
                    flying.append(self._launched(waiting.popleft()))
                    # All that may be in flight is launched first, unless `submit`
                    # itself computes.
                    if not flying[-1].is_done():
                        continue
                trouble: Exception | None = None
                # As they come: Dask computes anew what a killed worker had finished and
                # nobody had fetched.
                for it in _finished(flying, wait=not waiting or len(flying) >= most):
                    flying.remove(it)
                    try:
                        found = it.result(self.plan)
                    except Exception as error:
                        # What else is finished is kept first.
                        trouble = trouble or error
                        continue
                    if found is None:
                        if not stopping():
                            waiting.append(it)
                        continue
                    bar.done(it.count(self.plan))
                    yield it.number, *found
                if trouble is not None:
                    raise trouble
        finally:
            for it in flying:
                it.cancelled()

    def _launched(self, it: "_Try") -> "_Try":
        index, costs = _asked(self.plan, self.costs, it.number, it.some)
        it.tries += 1
        try:
            it.future = self.executor.submit(work, self.packed, index, costs)
        except Exception as error:
            raise _broken(error) from error
        return it


@dataclasses.dataclass(eq=False)
class _Try:
    """A chunk or some rows of it, how often a worker got it, and what it gave."""

    number: int
    some: Int64[np.ndarray, " some"] | None = None
    tries: int = 0
    future: Any = None

    def count(self, plan: Plan) -> int:
        """How many points it has."""
        return plan.count([self.number]) if self.some is None else len(self.some)

    def is_done(self) -> bool:
        """Whether it is known to be finished."""
        done = getattr(self.future, "done", None)
        return bool(done()) if callable(done) else False

    def cancelled(self) -> bool:
        """Asks that it be not begun; whether it will not be."""
        # Not every future can be cancelled.
        with contextlib.suppress(Exception):
            return bool(self.future.cancel())
        return False

    def result(self, plan: Plan) -> tuple[Rows, Verdict] | None:
        """Values and what became of them, or `None` if it is worth another try."""
        first, last = plan.chunks.span(self.number)
        points = plan.work.span(first, last)
        try:
            answer = self.future.result()
        except concurrent.futures.BrokenExecutor as error:
            raise _broken(error) from error
        except (Exception, KeyboardInterrupt) as error:
            # What the function raised comes as a value: here a worker has died.
            if self.tries < _TRIES and not isinstance(error, KeyboardInterrupt):
                return None
            raise _killing(*points, self.tries, error) from error
        which = f"chunk {self.number}, the points {points[0]} to {points[1] - 1}"
        rows = last - first if self.some is None else len(self.some)
        return checked(answer, plan.work.row, rows, which)


def _finished(flying: Sequence[_Try], wait: bool) -> list[_Try]:
    """Those that are finished; if asked to `wait`, at least one, if there are any."""
    pause = 0.0005
    while True:
        found = [it for it in flying if it.is_done()]
        if found or not wait or not flying:
            return found
        if not all(callable(getattr(it.future, "done", None)) for it in flying):
            return [flying[0]]  # its `result` waits
        time.sleep(pause)
        # Short chunks are not kept waiting, and long ones not asked for all the time.
        pause = min(2 * pause, 0.02)


def _broken(error: BaseException) -> SweepError:
    return SweepError(
        message(
            "sweep",
            f"the executor takes no more work: {type(error).__name__}: {error}.",
            "A worker may have been killed, for instance for want of memory; a process "
            "pool does not outlive that. Make a new executor and call the same sweep "
            "again; with `store=` it goes on where it stopped.",
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


def checked(
    answer: Any, row: Sequence[jax.ShapeDtypeStruct], count: int, which: str
) -> tuple[list[np.ndarray], Verdict]:
    """The values that a worker answers with, and what became of them; or its error.

    There are `count` rows, each with leaves as in `row`. An array that keeps values
    would cast or broadcast others. `which` names the chunk.
    """
    wanted = [f"{leaf.dtype}{[count, *leaf.shape]}" for leaf in row]
    wanted, came = [*wanted, f"bool[{count}]"], describe_value(answer)
    if isinstance(answer, tuple) and len(answer) == 3:
        values, verdict, error = answer
        if isinstance(error, Exception):
            raise error
        if isinstance(values, list) and isinstance(verdict, Verdict):
            found = [_array_text(leaf) for leaf in (*values, verdict.ok)]
            if found == wanted:
                return values, verdict
            came = ", ".join(found)
    raise SweepError(
        message(
            "sweep",
            f"for {which}, a worker answered {came}, where {', '.join(wanted)} was "
            "asked for.",
            "Nothing of it is kept. Give the workers the same versions of eqx_pipe and "
            "JAX, and see that the executor gives back what the submitted function "
            "returns.",
        )
    )


def _array_text(leaf: Any) -> str:
    if not isinstance(leaf, np.ndarray):
        return describe_value(leaf)
    return f"{leaf.dtype}{list(leaf.shape)}"


@dataclasses.dataclass(frozen=True)
class Here:
    """Computes chunks on the devices of this process."""

    plan: Plan
    costs: CostsBySpan | None

    def __call__(
        self,
        numbers: Sequence[int],
        parts: Parts,
        stopping: Callable[[], bool],
        bar: Progress,
    ) -> Iterator[Chunk]:
        """The chunks with some numbers, in this order."""
        for number in numbers:
            if stopping():
                return
            asked = _asked(self.plan, self.costs, number, parts.get(number))
            yield number, *self.plan.work.compute(*asked, bar)


def _asked(
    plan: Plan,
    costs: CostsBySpan | None,
    number: int,
    some: Int64[np.ndarray, " some"] | None,
) -> tuple[Index, Float[np.ndarray, " rows"] | None]:
    """The rows of a chunk, or `some` of them, and their costs."""
    first, last = plan.chunks.span(number)
    found = None if costs is None else costs(first, last)
    if some is None:
        return range(first, last), found
    return first + some, None if found is None else found[some]
