"""Chunks computed by the workers of an executor.

An executor needs only `submit(fn, *args)`, and the futures that it returns only
`.done()` and `.result()`. The function, the space and the key travel about once to each
worker (see `_Calls`); what happens there is in `worker.py`.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import math
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from .._errors import SweepError, sweep_error
from .._jaxprs import digest
from .._kernel import share
from .._progress import tell
from .._run import Pace, Stopped, Watch
from .plan import Plan, Todo, known_workers
from .work.buffer import Chunk
from .worker import Answer, compute_in_worker, pack

# Retry a chunk whose worker died, since another may have more memory; give up on points
# that kill every worker.
_TRIES = 3
# The bytes in flight of results, and again of packed functions.
_IN_FLIGHT_BYTES = 2**30
# Each check for finished chunks asks every future.
_IN_FLIGHT = 1024
# Keep so many calls for each worker in flight, so that it does not wait for the next.
_DEPTH = 4
# The least and the most seconds of a call. Between them it takes 3 ms for each worker:
# this process takes 0.3 ms for a call, and should be idle nine tenths of the time.
_CALL_SECONDS = 1.0, 30.0
_WORKER_SECONDS = 3e-3
# A job waits in a queue, imports JAX and compiles, so it should take longer.
_JOB_SECONDS = 60.0
# The workers that an executor has at least, until others have answered: each gets the
# function with its first call.
_FEWEST_WORKERS = 2
# After a signal, wait so many seconds for chunks that cannot be cancelled: a stopped
# worker never answers, and Slurm kills a job 30 s after SIGTERM.
_GRACE = 20.0
# A signal to a process group may end a worker before it arrives here.
_SIGNAL_SECONDS = 0.5


def compute_remotely(plan: Plan, todo: Todo, watch: Watch) -> Iterator[Chunk]:
    """Compute chunks by the workers of an executor, in the order they are finished."""
    calls = _Calls(plan, todo, watch.stopping)
    try:
        while calls.flying or (calls.waiting and not watch.stopping()):
            is_full = True
            if watch.stopping():
                if calls.are_lost():
                    return
            elif new := calls.take():
                # Launch as many as may be in flight first, unless `submit` itself
                # computes.
                if not calls.launch(new) or not new[0].future.done():
                    continue
                is_full = False
            trouble: Exception | None = None
            # Fetch results as they finish: Dask recomputes results of a killed worker
            # that were not fetched.
            for call in calls.finished(is_full):
                answer: Answer | None = None
                try:
                    answer = calls.result(call)
                except Exception as error:
                    # Keep the other finished chunks before raising.
                    trouble = trouble or error
                calls.land(call, answer)
                if calls.are_stopped:
                    trouble = trouble or Stopped("sweep")
                computed = [] if answer is None else answer.computed or []
                for (number, rows), outcome in zip(call.chunks, computed, strict=False):
                    if isinstance(outcome, Exception):
                        trouble = trouble or outcome
                        continue
                    values, verdict = outcome
                    some = {} if rows is None else {number: rows}
                    count = Todo([], [number], some).left(plan)
                    watch.after(count, verdict.failed)
                    yield Chunk(number, rows, values, verdict)
            if trouble is not None:
                raise trouble
    finally:
        for call in calls.flying:
            call.cancelled()


@dataclasses.dataclass(eq=False)
class _Call:
    """A call of `compute_in_worker`, its future, and how often its chunks were tried.

    The chunks have their numbers, and the rows that they lack, or `None` for all.
    """

    chunks: list[tuple[int, Int64[np.ndarray, " some"] | None]]
    tries: int = 0
    carries: bool = False
    """True if the call carries the function."""
    process: str = ""
    """The process that has refused the call, and lacks the function."""
    future: Any = None

    def cancelled(self) -> bool:
        """Try to cancel the future; return whether it was cancelled."""
        # Not every future can be cancelled.
        with contextlib.suppress(Exception):
            return bool(self.future.cancel())
        return False


class _Calls:
    """The calls that wait and those in flight; the size and content of the next one.

    The first calls carry the function, one for each worker. The others have its name
    only: a worker that lacks it refuses at once, and the call is made again with it. So
    the function travels about once to each worker, whether their number is known or
    not, also to those that replace others.

    If calls are jobs, each in a new process, all of them carry it. The first jobs have
    two chunks, of which they measure the second; after an answer all others are sent.
    """

    def __init__(self, plan: Plan, todo: Todo, stopping: Callable[[], bool]):
        self._plan, self._target, self._stopping = plan, todo.target, stopping
        self._executor: Any = plan.request.executor
        self._packed = pack(plan)
        self._name = digest(self._packed)
        # The executors of submitit start a job for each call.
        self._are_jobs = hasattr(self._executor, "map_array")
        self._workers = known_workers(self._executor) or _FEWEST_WORKERS
        self._able = set[tuple[str, int]]()  # the workers that have computed
        self._first = self._workers  # the calls that are still to carry the function
        chunk_bytes = plan.work.row_bytes * plan.chunks.points
        self._most_chunks = max(2, _IN_FLIGHT_BYTES // max(1, chunk_bytes))
        self._pace = Pace()
        self._pace.steps = 2 if self._are_jobs else 1
        chunks = ((number, todo.rows.get(number)) for number in todo.chunks)
        self.waiting = collections.deque(_Call([chunk]) for chunk in chunks)
        self.flying: list[_Call] = []
        self._lacking = set[str]()  # the processes to which a call brings it
        self._refused: list[_Call] = []  # until a worker has computed
        self._timeout = plan.request.timeout or math.inf
        self._heard = time.monotonic()
        self._stopped: float | None = None  # the time of a signal
        self._has_kernels = any(each.has_kernels for each in plan.points.traced)
        self._ends_kernels = self._has_kernels
        self._rename()

    def _rename(self) -> None:
        """Let calls that are submitted from now on run in workers that were stopped."""
        self._part_of = uuid.uuid4().hex
        self._this_call = share(self._part_of)

    @property
    def are_stopped(self) -> bool:
        """True if a signal stopped kernels, and not the sweep: it is in a thread."""
        stopped = self._has_kernels and self._this_call.stopped
        return stopped and not self._stopping()

    def take(self) -> list[_Call]:
        """Return the next call, or an array of jobs; none if enough are in flight."""
        calls = list[_Call]()
        while (most := self._room(calls)) > 0 and (self._are_jobs or not calls):
            call = self.waiting.popleft()
            call.carries |= self._are_jobs or self._first > 0
            self._first -= call.carries
            # Chunks whose worker died travel alone: one of them may have killed it.
            while len(call.chunks) < most and not call.tries and self.waiting:
                if self.waiting[0].tries or self.waiting[0].process:
                    break
                call.chunks += self.waiting.popleft().chunks
            calls.append(call)
        return calls

    def launch(self, calls: Sequence[_Call]) -> bool:
        """Submit calls, as one array if there are several jobs.

        Return False if a signal broke the executor.
        """
        arguments = []
        for call in calls:
            call.tries += 1
            asked = [self._plan.asked(*chunk) for chunk in call.chunks]
            packed = self._packed if call.carries else None
            each = self._name, packed, asked, self._target, self._part_of
            arguments.append(each)
        compute, columns = compute_in_worker, zip(*arguments, strict=True)
        try:
            if len(calls) == 1:
                futures = [self._executor.submit(compute, *arguments[0])]
            else:
                futures = self._executor.map_array(compute, *columns)
        except Exception as error:
            if self._ended_by_signal():
                return False
            raise _broken(error) from error
        for call, future in zip(calls, futures, strict=True):
            call.future = future
        self.flying += calls
        self._heard = time.monotonic()
        return True

    def finished(self, is_full: bool) -> list[_Call]:
        """Return the finished calls; if `is_full`, wait for one until the sweep stops.

        Calls that are late are taken back, and wait to be made again: others may take
        the chunks of a worker that hangs. Its answers are lost.
        """
        pause, until = 0.0005, self._heard + self._timeout
        while True:
            was_stopping, now = self._stopping(), time.monotonic()
            finished = [call for call in self.flying if call.future.done()]
            if finished:
                self._heard = now
            is_late = now > until and not (finished or was_stopping)
            if is_late:
                late = f"no worker has answered for `timeout={self._timeout:g}` seconds"
                for call in [*self.flying]:
                    call.cancelled()
                    self.land(call, None)
                    self._check_tries(call, TimeoutError(late))
            waits = self.flying and not finished and (is_full or was_stopping)
            if not waits:
                return finished
            time.sleep(0.02 if was_stopping else pause)
            if self._stopping():
                return [call for call in self.flying if call.future.done()]
            # Wait briefly for short chunks, and poll rarely for long ones.
            pause = min(2 * pause, 0.02)

    def are_lost(self) -> bool:
        """Cancel calls after a signal; return whether others arrive no more."""
        now = time.monotonic()
        if self._stopped is None:
            self._stopped = now
            self.flying = [call for call in self.flying if not call.cancelled()]
        elif self._ends_kernels and now > self._stopped + _SIGNAL_SECONDS:
            # A signal may not reach the processes of a pool.
            end_workers(self._executor, signal.SIGINT)
            self._ends_kernels = False
        elif now > self._stopped + _GRACE:
            lost = sum(len(call.chunks) for call in self.flying)
            tell(
                f"the sweep stops: {lost} of the chunks in flight did not arrive "
                f"within {_GRACE:g} s."
            )
            return True
        return False

    def result(self, call: _Call) -> Answer | None:
        """Return the answer, or `None` if the chunks are to be computed later."""
        try:
            return call.future.result()
        except concurrent.futures.BrokenExecutor as error:
            if self._ended_by_signal():
                return None
            raise _broken(error) from error
        except (Exception, KeyboardInterrupt) as error:
            if not self._stopping():
                # Errors of the function are returned as values, so a worker died.
                self._check_tries(call, error)
            elif isinstance(error, KeyboardInterrupt):
                raise  # a second Ctrl-C
            return None

    def _check_tries(self, call: _Call, error: BaseException) -> None:
        """Raise a `SweepError` if a call may not be tried again after an error."""
        if call.tries >= _TRIES or isinstance(error, KeyboardInterrupt):
            first, _ = self._plan.chunks.span(call.chunks[0][0])
            _, last = self._plan.chunks.span(call.chunks[-1][0])
            first, last = self._plan.work.span(first, last)
            raise sweep_error(
                "sweep",
                f"the worker failed {call.tries} times at the points {first} to "
                f"{last - 1}: {type(error).__name__}: {error}.",
                "Sweep over `space[first:last]` of these points in a process of its "
                "own to see why; the same call tries them again, and with `store=` "
                "only what is missing.",
            ) from error

    def _ended_by_signal(self) -> bool:
        """Return whether a signal stops the sweep, and may have broken its executor."""
        if not self._stopping():
            time.sleep(_SIGNAL_SECONDS)
        return self._stopping()

    def land(self, call: _Call, answer: Answer | None) -> None:
        """Record the answer of a call, which is `None` if the worker died."""
        self.flying.remove(call)
        if answer is None:
            self.waiting.extend(_Call([chunk], call.tries) for chunk in call.chunks)
        elif answer.computed is None:
            self._refuse(call, answer.worker[0])
            return  # not an answer that ends the wait of the refused
        else:
            if left := call.chunks[len(answer.computed) :]:  # it was interrupted
                self.waiting.appendleft(_Call(left, call.tries - 1))
                self._rename()
            self._able.add(answer.worker)
            least, most = _CALL_SECONDS
            wanted = min(max(least, _WORKER_SECONDS * self._num_workers), most)
            if self._are_jobs:  # the first has measured: all others may be in flight
                self._workers, wanted = _IN_FLIGHT, _JOB_SECONDS
            # The first chunk of a call with the function also compiles.
            timed = len(answer.computed) - call.carries
            self._pace.record(timed, answer.seconds, wanted)
        self._lacking.discard(call.process)
        self.waiting.extendleft(self._refused)
        self._refused.clear()

    def _refuse(self, call: _Call, process: str) -> None:
        """Have a call made again, since a process lacks the function."""
        call.tries -= 1
        if process in self._lacking:
            # Another call brings the function. Until then the process, which is idle,
            # would refuse this one again and again: wait for any other answer.
            self._refused.append(call)
        else:
            self._lacking.add(process)
            call.carries, call.process = True, process
            self.waiting.appendleft(call)

    @property
    def _num_workers(self) -> int:
        return max(self._workers, len(self._able))

    def _room(self, more: Sequence[_Call]) -> int:
        """Return how many chunks the next call may have, after `more` calls."""
        flying, workers = [*self.flying, *more], self._num_workers
        left = self._most_chunks - sum(len(call.chunks) for call in flying)
        most = min(left, self._pace.steps)
        calls = min(_DEPTH * max(2, workers), _IN_FLIGHT)
        if any(call.carries for call in flying):
            # An executor may hold a copy of the function for each call that carries it.
            calls = min(calls, max(1, _IN_FLIGHT_BYTES // len(self._packed)))
        if not self._are_jobs:
            # The last calls are short, so that workers end at about the same time.
            most = min(most, max(1, len(self.waiting) // (_DEPTH * workers)))
        return most if self.waiting and len(flying) < calls else 0


def end_workers(
    executor: Any, by: int = getattr(signal, "SIGKILL", signal.SIGTERM)
) -> None:
    """Kill the processes of a pool, since Python would wait for them at its end."""
    processes = getattr(executor, "_processes", None)
    for pid in [*processes] if isinstance(processes, dict) else []:
        with contextlib.suppress(OSError):  # it has ended
            os.kill(pid, by)


def _broken(error: BaseException) -> SweepError:
    return sweep_error(
        "sweep",
        f"the executor accepts no more work: {type(error).__name__}: {error}.",
        "A worker probably died, for instance because memory ran out, which ends a "
        "process pool. Make a new executor and call the same sweep again; with "
        "`store=` it resumes.",
    )
