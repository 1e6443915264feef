"""Chunks computed by the workers of an executor.

An executor needs only `submit(fn, *args)`, and the futures that it returns only
`.done()` and `.result()`. The function, the space and the key are sent by cloudpickle,
about once to each worker (see `_Calls`). A worker calls `compute_in_worker`; it traces
and compiles once, for its own devices.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import math
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import Int64

from .._cache import LRUCache
from .._errors import SweepError, optional, sweep_error, type_error
from .._jaxprs import array_text, digest
from .._kernel import share
from .._progress import tell
from .._reduce import as_reducers
from .._results import versions
from .._run import CTRL_C, Interrupt, Pace, Stopped, Watch, no_mesh
from .._store import disk_errors
from .._types import PyTree
from .flight_files import Flights
from .identity import kernels_text
from .plan import Plan, Todo, known_workers, work_of
from .target import Target
from .trace.trace import settings
from .work.buffer import Asked, Chunk, Rows, Verdict, whole
from .work.points import Points
from .work.prepare import prepare
from .work.work import Work

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
                answer: _Answer | None = None
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


_Computed: TypeAlias = tuple[Rows, Verdict] | Exception
"""The rows of a chunk, `[]` if they are in the store, or an error of the function."""


class _Answer(NamedTuple):
    """The answer of a worker: `computed`, or `None` if it lacks the function.

    A worker is a thread of a process. It took `seconds` for the chunks in `computed`,
    without the first if the call had the function. It ends with the first error.
    """

    worker: tuple[str, int]
    seconds: float
    computed: list[_Computed] | None


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

    def result(self, call: _Call) -> _Answer | None:
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

    def land(self, call: _Call, answer: _Answer | None) -> None:
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


_PROCESS = uuid.uuid4().hex


class _Task(NamedTuple):
    """A sweep as sent to a worker; `program` identifies the program traced here.

    `arguments` are those of `prepare`, and `fields` those of `Points` to replace.
    `programs` is the folder of JAX's compilation cache.
    """

    arguments: dict[str, Any]
    fields: dict[str, Any]
    reduce: PyTree
    settings: dict[str, Any]
    program: tuple[str, str]
    programs: str | None


def pack(plan: Plan) -> bytes:
    """Return a sweep as bytes for a worker."""
    cloudpickle = optional("sweep", "cloudpickle", "distributed")
    request, points = plan.request, plan.points
    names = ("space", "key", "batch_size", "ordered", "isolated")
    arguments = {"fn": request.fn, **{name: getattr(points, name) for name in names}}
    fields = {
        name: getattr(points, name)
        for name in ("most", "adapts", "key_digits", "literal")
    }
    cache = jax.config.jax_compilation_cache_dir
    task = _Task(arguments, fields, request.reduce, settings(), _program(points), cache)
    try:
        # Versions come first, since pickles of others may not be readable.
        return f"{_versions()}\n".encode() + cloudpickle.dumps(task)
    except Exception as error:
        raise type_error(
            "sweep",
            f"`fn` or `space` cannot be sent to a worker: {error}.",
            "Make what cannot travel (devices, meshes, open files, locks) inside "
            "of `fn`.",
        ) from error


def compute_in_worker(
    name: str,
    packed: bytes | None,
    asked: Sequence[Asked],
    target: Target | None = None,
    part_of: str = "",
) -> _Answer:
    """Compute the rows of chunks in a worker.

    `name` identifies the packed sweep. Without `packed`, a worker that does not know
    the name computes nothing. A worker that sees the store writes the chunks there. If
    a signal stopped kernels of the call named `part_of`, no others begin here.
    """
    # A fork has the same `_PROCESS`.
    worker = f"{_PROCESS}.{os.getpid()}", threading.get_ident()
    sweep = _sweeps.get(name)
    if sweep is None and packed is None:
        return _Answer(worker, 0.0, None)
    # Threads may arrive here at the same time: all use the first entry.
    sweep = sweep or _sweeps.setdefault(name, _Sweep(packed))
    begun, computed = time.monotonic(), list[_Computed]()
    target = target if target is not None and target.is_open() else None
    # Ctrl-C also reaches the processes of a pool, which finish the chunk.
    with Interrupt(CTRL_C, loud=False, name=part_of) as interrupt:
        for each in asked:
            if interrupt.asked:
                break
            try:
                computed.append(_computed(sweep, each, target))
            except Stopped:
                break
            if isinstance(computed[-1], Exception):
                break
            if len(computed) == 1 and packed is not None:
                begun = time.monotonic()  # the first chunk also compiles
    return _Answer(worker, time.monotonic() - begun, computed)


class _Sweep:
    """A sweep in a worker. The first call that needs it unpacks and traces it.

    Other threads of the worker wait meanwhile, so they find the function.
    """

    def __init__(self, packed: bytes | None):
        self._packed, self._lock = packed, threading.Lock()
        self._made: tuple[_Task, Work] | None = None

    def made(self) -> tuple[_Task, Work]:
        """Return the task and the rows that it computes."""
        with self._lock:
            if self._made is None:
                assert self._packed is not None
                task = _unpacked(self._packed)
                with _as_there(task):
                    self._made = task, _prepared(task)
                self._packed = None
            return self._made


# Keep few sweeps in a worker, since each holds the arrays its function closes over.
_sweeps = LRUCache(4)


def _computed(sweep: _Sweep, asked: Asked, target: Target | None) -> _Computed:
    try:
        task, work = sweep.made()
        with _as_there(task):
            if target is None:
                return whole(work.compute(asked, Watch()))
            return [], _written(work, asked, target)
    except Stopped:
        raise
    except Exception as error:
        return _portable(error)


@contextlib.contextmanager
def _as_there(task: _Task) -> Iterator[None]:
    """Use the settings of JAX of the process that sweeps, and no mesh."""
    with contextlib.ExitStack() as stack:
        for setting, value in task.settings.items():
            stack.enter_context(getattr(jax, setting)(value))
        stack.enter_context(no_mesh())
        yield


def _written(work: Work, asked: Asked, target: Target) -> Verdict:
    """Write a chunk; return the number of failed points.

    Another worker may compute the same chunk, since a call is made again if no
    worker answers: of two that write parts of it in a folder, each one could undo those
    of the other. There finished rows wait in a flight, with which the next worker goes
    on if this one dies.
    """
    failed = 0
    with disk_errors(target.files.path_of(), "be opened"):
        filling = target.filling()
        flights, number = Flights(work, filling, lambda *_: asked), asked.number
        resumed = flights.get(number) if flights.look() else None
    if resumed is not None and not np.array_equal(resumed.rows, asked.rows):
        resumed = None  # of other rows
    watch = Watch(hands_over=True, whole=not filling.in_parts)
    for chunk in work.compute(asked, watch, resumed):
        with disk_errors(filling.store.path, "take a chunk"):
            # Before a store grows, its token is removed: so it is the store as it was.
            if not target.is_open():
                raise SweepError("The sweep that asked for these points has ended.")
            flights.keep(chunk)
        failed += chunk.verdict.failed
    return Verdict(np.zeros(0, bool), failed=failed)


def _versions() -> str:
    """Return the versions that this process and its workers have in common."""
    texts = versions()
    names = "python", "jax", "equinox", "eqx_pipe"
    # Releases of a Python version have the same bytecode.
    texts["python"] = ".".join(texts["python"].split(".")[:2])
    return ", ".join(f"{name} {texts[name]}" for name in names)


def _unpacked(packed: bytes) -> _Task:
    """Return the sweep that `pack` has packed, with the same versions."""
    import cloudpickle

    there, _, data = packed.partition(b"\n")
    if there.decode() != _versions():
        raise sweep_error(
            "sweep",
            f"a worker has {_versions()}, and the process that sweeps has "
            f"{there.decode()}.",
            "Give both the same environment.",
        )
    task = cloudpickle.loads(data)
    if not jax.config.jax_compilation_cache_dir and os.path.isdir(task.programs or ""):
        jax.config.update("jax_compilation_cache_dir", task.programs)
    return task


def _prepared(task: _Task) -> Work:
    points = prepare(**task.arguments, devices=tuple(jax.local_devices()))
    points = dataclasses.replace(points, **task.fields)
    (here, own), (there, theirs) = _program(points), task.program
    if here != there:
        cure = "Give the workers the same versions of the modules that `fn` uses."
        raise sweep_error("sweep", "a worker traces another program from `fn`.", cure)
    if own != theirs:
        raise sweep_error(
            "sweep",
            f"a worker builds kernels by {own}, and the process that sweeps by "
            f"{theirs}: they may round differently.",
            "Use workers of the same kind, or sweep the function without `kernel`.",
        )
    reducers = None if task.reduce is None else as_reducers("sweep", task.reduce)
    return work_of(points, reducers)


def _program(points: Points) -> tuple[str, str]:
    """Return what identifies the program of a sweep, and its kernels."""
    # Compare programs only: a callable among static values may lose its name in
    # transit.
    programs = [traced.fingerprint for traced in points.traced]
    constants = [array_text(x) for program in programs for x in program.constants]
    texts = "\n".join([*(program.text for program in programs), *constants])
    return digest(texts), kernels_text(points.traced, points.devices[0].platform)


def _portable(error: Exception) -> Exception:
    """Return the error if it can be pickled, or else one with its text."""
    import cloudpickle

    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return SweepError(f"{type(error).__name__}: {error}")
    return error
