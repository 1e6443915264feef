"""Chunks computed by the workers of an executor.

An executor needs only `submit(fn, *args)`, and the futures that it returns only
`.done()` and `.result()`. The function, the space and the key are sent by cloudpickle,
once to each worker (see `_Sharing`). A worker calls `work` for a chunk; it traces and
compiles once, for its own devices.
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
from jaxtyping import Float, Int64

from .._cache import LRUCache
from .._errors import SweepError, message, optional, type_error
from .._jaxprs import array_text, digest
from .._kernel import has_kernels
from .._progress import tell
from .._reduce import as_reducers
from .._types import PyTree
from .compute.points import Points, prepare
from .compute.rows import Index, Rows, Verdict, Work, whole
from .compute.trace import no_mesh, settings
from .compute.watch import CTRL_C, Interrupt, Pace, Stopped, Watch
from .flights import Flights
from .identity import kernels_text
from .results import versions
from .store import disk_errors
from .work import (
    Chunk,
    Plan,
    Target,
    Todo,
    chunks_of,
    keep_chunk,
    known_workers,
    work_of,
)

# Retry a chunk whose worker died, since another may have more memory; give up on points
# that kill every worker.
_TRIES = 3
# The bytes in flight of results, and again of packed functions.
_IN_FLIGHT_BYTES = 2**30
# Each check for finished chunks asks every future.
_IN_FLIGHT = 1024
# Keep so many calls for each worker in flight, so that it does not wait for the next.
_DEPTH = 4
# The duration of a call in seconds, within limits, for each worker: this process takes
# 0.3 ms for a call, and should be idle nine tenths of the time.
_CALL_SECONDS = 3e-3
_UNIT_SECONDS = 1.0, 30.0
# A job waits in a queue, imports JAX and compiles, so it should take longer.
_JOB_SECONDS = 60.0
# The calls that carry the function at first, if the number of workers is unknown.
_FIRST_WORKERS, _FIRST_JOBS = 2, 8
# After a signal, wait so many seconds for chunks that cannot be cancelled: a stopped
# worker never answers, and Slurm kills a job 30 s after SIGTERM.
_GRACE = 20.0
# A signal to a process group may end a worker before it arrives here.
_SIGNAL_SECONDS = 0.5


def compute_remotely(plan: Plan, todo: Todo, watch: Watch) -> Iterator[Chunk]:
    """Compute chunks by the workers of an executor, in the order they are finished."""
    packed = pack(plan)
    name = digest(packed)
    # The executors of submitit start a job for each call.
    are_jobs = hasattr(plan.request.executor, "map_array")
    guess = _FIRST_JOBS if are_jobs else _FIRST_WORKERS
    workers = known_workers(plan.request.executor) or guess
    sharing = _Sharing(workers, len(packed), are_jobs)
    waiting = collections.deque(_Try(n, todo.rows.get(n)) for n in todo.chunks)
    flying: list[_Unit] = []
    chunk_bytes = plan.work.row_bytes * plan.chunks.points
    most = max(2, _IN_FLIGHT_BYTES // max(1, chunk_bytes))
    end: float | None = None
    kernels = False
    timeout = plan.request.timeout or math.inf
    heard = time.monotonic()

    def room_for(units: Sequence[_Unit]) -> int:
        """Return how many more chunks a call may have."""
        if len(units) >= _IN_FLIGHT or not sharing.ready():
            return 0
        return max(0, most - sum(len(unit.tries) for unit in units))

    try:
        while flying or (waiting and not watch.stopping()):
            full = not (waiting and room_for(flying))
            if watch.stopping():
                if end is None:
                    end = time.monotonic() + _GRACE
                    flying = [unit for unit in flying if not unit.cancelled()]
                    kernels = any(has_kernels(x.own) for x in plan.points.traced)
                elif kernels and time.monotonic() > end - _GRACE + _SIGNAL_SECONDS:
                    # A signal may not reach the processes of a pool.
                    end_workers(plan.request.executor, signal.SIGINT)
                    kernels = False
                elif time.monotonic() > end:
                    lost = sum(len(unit.tries) for unit in flying)
                    tell(
                        f"the sweep stops: {lost} of the chunks in flight did not "
                        f"arrive within {_GRACE:g} s."
                    )
                    return
            elif not full:
                units = [sharing.take(waiting, room_for(flying))]
                while are_jobs and waiting and (room := room_for(flying + units)):
                    units.append(sharing.take(waiting, room))
                shared = name, packed, todo.target
                if not _launch(plan, units, shared, watch.stopping):
                    continue
                flying += units
                heard = time.monotonic()
                # Launch as many as may be in flight first, unless `submit` itself
                # computes.
                if not units[0].future.done():
                    continue
            trouble: Exception | None = None
            # Fetch results as they finish: Dask recomputes results of a killed worker
            # that were not fetched.
            finished = _finished(flying, full, watch.stopping, heard + timeout)
            if finished:
                heard = time.monotonic()
            elif time.monotonic() > heard + timeout and not watch.stopping():
                # The workers hang: others may take these chunks. Late answers are lost.
                while flying:
                    unit = flying.pop()
                    unit.cancelled()
                    sharing.land(unit, None)
                    late = f"no worker has answered for `timeout={timeout:g}` seconds"
                    unit.check_tries(plan, TimeoutError(late))
                    waiting.extend(unit.tries)
            for unit in finished:
                flying.remove(unit)
                answer: _Answer | None = None
                try:
                    answer = unit.result(plan, watch.stopping)
                except Exception as error:
                    # Keep the other finished chunks before raising.
                    trouble = trouble or error
                sharing.land(unit, answer)
                if answer is None:
                    waiting.extend(unit.tries)
                    continue
                computed = answer.computed or []
                for it, found in zip(unit.tries, computed, strict=False):
                    if isinstance(found, Exception):
                        trouble = trouble or found
                        continue
                    values, verdict = found
                    count = plan.count([it.number])
                    count = count if it.rows is None else len(it.rows)
                    watch.after(count, verdict.failed)
                    yield Chunk(it.number, it.rows, values, verdict)
                # The worker lacks the function, or was interrupted.
                for it in reversed(unit.tries[len(computed) :]):
                    it.tries -= 1
                    waiting.appendleft(it)
            if trouble is not None:
                raise trouble
    finally:
        for unit in flying:
            unit.cancelled()


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
class _Try:
    """A chunk or some of its rows, with the number of tries."""

    number: int
    rows: Int64[np.ndarray, " some"] | None = None
    tries: int = 0


@dataclasses.dataclass(eq=False)
class _Unit:
    """Chunks in one call of `work`, and its future.

    A call with a `target` carries the function, and is meant for this process.
    """

    tries: Sequence[_Try]
    target: str | int | None
    future: Any = None

    def cancelled(self) -> bool:
        """Try to cancel the future; return whether it was cancelled."""
        # Not every future can be cancelled.
        with contextlib.suppress(Exception):
            return bool(self.future.cancel())
        return False

    def result(self, plan: Plan, stopping: Callable[[], bool]) -> _Answer | None:
        """Return the answer, or `None` if the chunks are to be computed later."""
        try:
            return _Answer(*self.future.result())
        except concurrent.futures.BrokenExecutor as error:
            if _ended_by_signal(stopping):
                return None
            raise _broken(error) from error
        except (Exception, KeyboardInterrupt) as error:
            if stopping() and isinstance(error, KeyboardInterrupt):
                raise  # a second Ctrl-C
            if stopping():
                return None
            # Errors of the function are returned as values, so here a worker died.
            self.check_tries(plan, error)
            return None

    def check_tries(self, plan: Plan, error: BaseException) -> None:
        """Raise a `SweepError` if the call may not be tried again after an error."""
        tries = self.tries[0].tries
        if tries >= _TRIES or isinstance(error, KeyboardInterrupt):
            first, _ = plan.chunks.span(self.tries[0].number)
            _, last = plan.chunks.span(self.tries[-1].number)
            raise _killing(*plan.work.span(first, last), tries, error) from error


def _launch(
    plan: Plan,
    units: Sequence[_Unit],
    shared: tuple[str, bytes, Target | None],
    stopping: Callable[[], bool],
) -> bool:
    """Submit chunks, as one array if there are several jobs.

    Return False if a signal broke the executor.
    """
    executor: Any = plan.request.executor
    name, packed, target = shared
    calls = []
    for unit in units:
        for it in unit.tries:
            it.tries += 1
        asked = [plan.asked(it.number, it.rows) for it in unit.tries]
        calls.append((name, packed if unit.target is not None else None, asked, target))
    try:
        if len(calls) == 1:
            futures = [executor.submit(work, *calls[0])]
        else:
            futures = executor.map_array(work, *zip(*calls, strict=True))
    except Exception as error:
        if _ended_by_signal(stopping):
            return False
        raise _broken(error) from error
    for unit, future in zip(units, futures, strict=True):
        unit.future = future
    return True


class _Sharing:
    """The number of chunks in the next call, and whether it carries the function.

    At first as many calls carry it as there are workers. The others have its name only;
    a worker that lacks it answers so at once, and one more call carries it for this
    worker. If another worker takes that call, the next answer asks again.

    Every call that is a job of its own carries it. The first jobs have two chunks, of
    which they measure the second; after an answer all other jobs are submitted.
    """

    def __init__(self, workers: int, size: int, are_jobs: bool):
        self._workers, self._size, self._are_jobs = workers, size, are_jobs
        self._pace = Pace()
        self._pace.steps = 2 if are_jobs else 1
        # The numbers stand for workers that have not answered yet.
        self._owed = collections.deque[str | int](range(workers))
        self._asking = set[str | int | None](self._owed)  # owed, or on the way
        self._carrying = self._light = self._refused = 0
        self._able = set[tuple[str, int]]()

    def ready(self) -> bool:
        """Return whether another call may be submitted."""
        if self._are_jobs:
            is_first = self._carrying < self._workers
            return self._fits() and (is_first or bool(self._able))
        # Refused calls would come back until the function arrives: wait for an answer.
        light = self._light + self._refused
        return self._carries() or light < _DEPTH * max(2, len(self._able))

    def take(self, waiting: collections.deque[_Try], most: int) -> _Unit:
        """Return the next call, with at most so many of the chunks that wait."""
        workers = max(self._workers, len(self._able))
        most = min(most, self._pace.steps)
        if not self._are_jobs:
            # The last calls are short, so that workers end at about the same time.
            most = min(most, max(1, len(waiting) // (_DEPTH * workers)))
        tries = [waiting.popleft()]
        # Chunks whose worker died travel alone, since one of them may have killed it.
        while (
            waiting and len(tries) < most and not (tries[0].tries or waiting[0].tries)
        ):
            tries.append(waiting.popleft())
        target: str | int | None = None
        if self._carries():
            target = self._owed.popleft() if self._owed else "any"
        unit = _Unit(tries, target)
        self._carrying += target is not None
        self._light += target is None
        return unit

    def land(self, unit: _Unit, answer: _Answer | None) -> None:
        """Record the answer of a call, which is `None` if the worker died."""
        carried = unit.target is not None
        self._carrying -= carried
        self._light -= not carried
        self._asking.discard(unit.target)
        refused = answer is not None and answer.computed is None
        self._refused = self._refused + 1 if refused else 0
        if answer is None:
            return
        process, _ = answer.worker
        if answer.computed is not None:
            self._able.add(answer.worker)
            least, most = _UNIT_SECONDS
            workers = max(self._workers, len(self._able))
            wanted = min(max(least, _CALL_SECONDS * workers), most)
            wanted = _JOB_SECONDS if self._are_jobs else wanted
            timed = len(answer.computed) - carried
            self._pace.record(timed, answer.seconds, wanted)
        elif process not in self._asking:
            if self._owed and isinstance(self._owed[-1], int):
                self._asking.discard(self._owed.pop())
            self._owed.append(process)
            self._asking.add(process)

    def _carries(self) -> bool:
        """Return whether the next call carries the function."""
        return self._fits() and (self._are_jobs or bool(self._owed))

    def _fits(self) -> bool:
        """Return whether one more function in flight fits into memory."""
        size = (self._carrying + 1) * self._size
        return not self._carrying or size <= _IN_FLIGHT_BYTES


def _finished(
    flying: Sequence[_Unit], full: bool, stopping: Callable[[], bool], until: float
) -> list[_Unit]:
    """Return the finished ones; if `full`, wait for one until the sweep stops.

    It waits no longer than `until`.
    """
    pause = 0.0005
    while True:
        finished = [unit for unit in flying if unit.future.done()]
        waits = stopping() or (full and time.monotonic() <= until)
        if finished or not flying or not waits:
            return finished
        time.sleep(0.02 if stopping() else pause)
        if stopping():
            return [unit for unit in flying if unit.future.done()]
        # Wait briefly for short chunks, and poll rarely for long ones.
        pause = min(2 * pause, 0.02)


def _ended_by_signal(stopping: Callable[[], bool]) -> bool:
    """Return whether a signal stops the sweep, and so may have broken its executor."""
    if not stopping():
        time.sleep(_SIGNAL_SECONDS)
    return stopping()


def end_workers(
    executor: Any, by: int = getattr(signal, "SIGKILL", signal.SIGTERM)
) -> None:
    """Kill the processes of a pool, since Python would wait for them at its end."""
    processes = getattr(executor, "_processes", None)
    for pid in [*processes] if isinstance(processes, dict) else []:
        with contextlib.suppress(OSError):  # it has ended
            os.kill(pid, by)


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


# Keep few sweeps in a worker, since each holds the arrays its function closes over.
_jobs = LRUCache(4)
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
    program: str
    programs: str | None


def pack(plan: Plan) -> bytes:
    """Return a sweep as bytes for a worker."""
    cloudpickle = optional("sweep", "cloudpickle", "distributed")
    request, job = plan.request, plan.points
    names = ("space", "key", "batch_size", "ordered", "isolated")
    arguments = {"fn": request.fn, **{name: getattr(job, name) for name in names}}
    fields = {
        name: getattr(job, name) for name in ("most", "adapts", "key_digits", "literal")
    }
    cache = jax.config.jax_compilation_cache_dir
    task = _Task(arguments, fields, request.reduce, settings(), _program(job), cache)
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


_Asked: TypeAlias = tuple[Index, Float[np.ndarray, " rows"] | None]


def work(
    name: str,
    packed: bytes | None,
    asked: Sequence[_Asked],
    target: Target | None = None,
) -> tuple[tuple[str, int], float, list[_Computed] | None]:
    """Compute the rows of chunks in a worker; return the fields of an `_Answer`.

    `name` identifies the packed sweep. Without `packed`, a worker that does not know
    the name computes nothing. A worker that sees the store writes the chunks there.
    """
    # A fork has the same `_PROCESS`.
    worker = f"{_PROCESS}.{os.getpid()}", threading.get_ident()
    known = _jobs.get(name) or packed
    if known is None:
        return worker, 0.0, None
    begun, computed = time.monotonic(), list[_Computed]()
    seen = target if target is not None and target.is_open() else None
    # Ctrl-C also reaches the processes of a pool, which finish the chunk.
    with Interrupt(CTRL_C, loud=False) as interrupt:
        for index, costs in asked:
            if interrupt.asked:
                break
            job = _jobs.get(name) or known
            try:
                computed.append(_computed(name, job, index, costs, seen))
            except Stopped:
                break
            if isinstance(computed[-1], Exception):
                break
            if len(computed) == 1 and packed is not None:
                begun = time.monotonic()  # the first chunk also compiles
    return worker, time.monotonic() - begun, computed


def _computed(
    name: str,
    sweep: tuple[_Task, Work] | bytes,
    index: Index,
    costs: Float[np.ndarray, " rows"] | None,
    target: Target | None,
) -> _Computed:
    try:
        is_new = isinstance(sweep, bytes)
        task, job = (_unpacked(sweep), None) if is_new else sweep
        with contextlib.ExitStack() as stack:
            for setting, value in task.settings.items():
                stack.enter_context(getattr(jax, setting)(value))
            stack.enter_context(no_mesh())
            job = job or _prepared(name, task)
            if target is None:
                return whole(job.compute(index, costs, Watch()))
            return [], _written(job, index, costs, target)
    except Stopped:
        raise
    except Exception as error:
        return _portable(error)


def _written(
    job: Work, index: Index, costs: Float[np.ndarray, " rows"] | None, target: Target
) -> Verdict:
    """Write a chunk; return the number of failed points.

    Another worker may compute the same chunk, since a unit is submitted again if no
    worker answers: of two that write parts of it in a folder, each one could undo those
    of the other. There finished rows wait in a flight, with which the next worker goes
    on if this one dies.
    """
    failed = 0
    with disk_errors(target.files.path_of(), "be opened"):
        filling = target.filling()
        chunks = filling.store.chunks
        number = int(chunks.holding(np.array(index[0])))
        rows = None if isinstance(index, range) else index - chunks.span(number)[0]
        full = costs
        if costs is not None and rows is not None:
            full = np.zeros(rows.max() + 1)  # only those of its rows are read
            full[rows] = costs
        flights = Flights(job, filling, None if full is None else lambda *_: full)
        resumed = flights.get(number) if flights.look() else None
    if resumed is not None and not np.array_equal(resumed.rows, rows):
        resumed = None  # of other rows
    watch = Watch(hands_over=True, whole=not filling.in_parts)
    for chunk in chunks_of(number, rows, job.compute(index, costs, watch, resumed)):
        with disk_errors(filling.store.path, "take a chunk"):
            # Before a store grows, its token is removed: so it is the store as it was.
            if not target.is_open():
                raise SweepError("The sweep that asked for these points has ended.")
            keep_chunk(filling, job, chunk)
            flights.keep(number, chunk.flight)
        failed += chunk.verdict.failed
    return Verdict(np.zeros(0, bool), failed=failed)


def _versions() -> str:
    """Return the versions that this process and its workers have in common."""
    found = versions()
    names = "python", "jax", "equinox", "eqx_pipe"
    # Releases of a Python version have the same bytecode.
    found["python"] = ".".join(found["python"].split(".")[:2])
    return ", ".join(f"{name} {found[name]}" for name in names)


def _unpacked(packed: bytes) -> _Task:
    """Return the sweep that `pack` has packed, with the same versions."""
    import cloudpickle

    there, _, data = packed.partition(b"\n")
    if there.decode() != _versions():
        raise SweepError(
            message(
                "sweep",
                f"a worker has {_versions()}, and the process that sweeps has "
                f"{there.decode()}.",
                "Give both the same environment.",
            )
        )
    task = cloudpickle.loads(data)
    if not jax.config.jax_compilation_cache_dir and os.path.isdir(task.programs or ""):
        jax.config.update("jax_compilation_cache_dir", task.programs)
    return task


def _prepared(name: str, task: _Task) -> Work:
    points = prepare(**task.arguments, devices=tuple(jax.local_devices()))
    points = dataclasses.replace(points, **task.fields)
    (here, _, own), (there, _, theirs) = (
        text.partition(" ") for text in (_program(points), task.program)
    )
    if here != there:
        wrong = "a worker traces another program from `fn`."
        cure = "Give the workers the same versions of the modules that `fn` uses."
        raise SweepError(message("sweep", wrong, cure))
    if own != theirs:
        wrong = f"a worker builds kernels by {own}, and the process that sweeps by "
        wrong += f"{theirs}: they may round differently."
        cure = "Use workers of the same kind, or sweep the function without `kernel`."
        raise SweepError(message("sweep", wrong, cure))
    reducers = None if task.reduce is None else as_reducers("sweep", task.reduce)
    # Threads may arrive here at the same time: all use the first entry.
    return _jobs.setdefault(name, (task, work_of(points, reducers)))[1]


def _program(job: Points) -> str:
    """Return what identifies the program of a sweep."""
    # Compare programs only: a callable among static values may lose its name in
    # transit.
    programs = [traced.program for traced in job.traced]
    constants = [array_text(x) for program in programs for x in program.constants]
    texts = "\n".join([*(program.text for program in programs), *constants])
    return f"{digest(texts)} {kernels_text(job.traced, job.devices[0].platform)}"


def _portable(error: Exception) -> Exception:
    """Return the error if it can be pickled, or else one with its text."""
    import cloudpickle

    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return SweepError(f"{type(error).__name__}: {error}")
    return error
