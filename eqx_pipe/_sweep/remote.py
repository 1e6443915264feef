"""Chunks computed by the workers of an executor.

An executor needs only `submit(fn, *args)`, and the futures that it returns only
`.done()` and `.result()`. The function, the space and the key are sent by cloudpickle.
A worker calls `work` for a chunk; it traces and compiles once, for its own devices.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int64

from .._cache import LRUCache
from .._errors import SweepError, message, optional, type_error
from .._jaxprs import array_text, digest
from .._progress import tell
from .._reduce import as_reducers
from .._types import PyTree
from .compute.points import Points, prepare
from .compute.rows import Index, Rows, Verdict, Work, whole
from .compute.trace import no_mesh, settings
from .compute.watch import CTRL_C, Interrupt, Watch
from .work import Chunk, Plan, Todo, work_of

# Retry a chunk whose worker died, since another may have more memory; give up on points
# that kill every worker.
_TRIES = 3
# Each call sends the packed function: 40 chunks with a closure of 10 MB are 800 MB on
# the wire.
_IN_FLIGHT_BYTES = 2**30
# Each check for finished chunks asks every future.
_IN_FLIGHT = 1024
# After a signal, wait so many seconds for chunks that cannot be cancelled: a stopped
# worker never answers, and Slurm kills a job 30 s after SIGTERM.
_GRACE = 20.0
# A signal to a process group may end a worker before it arrives here.
_SIGNAL_SECONDS = 0.5


def compute_remotely(plan: Plan, todo: Todo, watch: Watch) -> Iterator[Chunk]:
    """Compute chunks by the workers of an executor, in the order they are finished."""
    packed = pack(plan)
    waiting = collections.deque(_Try(n, todo.rows.get(n)) for n in todo.chunks)
    flying: list[_Try] = []
    room = plan.work.row_bytes * plan.chunks.points + len(packed)
    most = max(2, min(_IN_FLIGHT, _IN_FLIGHT_BYTES // room))
    end: float | None = None
    try:
        while flying or (waiting and not watch.stopping()):
            if watch.stopping():
                if end is None:
                    end = time.monotonic() + _GRACE
                    flying = [it for it in flying if not it.cancelled()]
                elif time.monotonic() > end:
                    tell(
                        f"the sweep stops: {len(flying)} of the chunks in flight did "
                        f"not arrive within {_GRACE:g} s."
                    )
                    return
            elif waiting and len(flying) < most:
                it = waiting.popleft()
                if not it.launch(plan, packed, watch.stopping):
                    continue
                flying.append(it)
                # Launch as many as may be in flight first, unless `submit` itself
                # computes.
                if not flying[-1].future.done():
                    continue
            trouble: Exception | None = None
            # Fetch results as they finish: Dask recomputes results of a killed worker
            # that were not fetched.
            full = not waiting or len(flying) >= most
            for it in _finished(flying, full, watch.stopping):
                flying.remove(it)
                try:
                    chunk = it.result(plan, watch.stopping)
                except Exception as error:
                    # Keep the other finished chunks before raising.
                    trouble = trouble or error
                    continue
                if chunk is not None:
                    watch.after(it.count(plan), chunk.verdict.failed)
                    yield chunk
                elif not watch.stopping():
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

    def launch(self, plan: Plan, packed: bytes, stopping: Callable[[], bool]) -> bool:
        """Submit the chunk once more; return False if a signal broke the executor."""
        executor = plan.request.executor
        assert executor is not None
        self.tries += 1
        asked = plan.asked(self.number, self.rows)
        try:
            self.future = executor.submit(work, packed, *asked)
        except Exception as error:
            if _ended_by_signal(stopping):
                return False
            raise _broken(error) from error
        return True

    def cancelled(self) -> bool:
        """Try to cancel the future; return whether it was cancelled."""
        # Not every future can be cancelled.
        with contextlib.suppress(Exception):
            return bool(self.future.cancel())
        return False

    def result(self, plan: Plan, stopping: Callable[[], bool]) -> Chunk | None:
        """Return the finished chunk, or `None` if it is to be computed later."""
        try:
            values, verdict, error = self.future.result()
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
            if self.tries < _TRIES and not isinstance(error, KeyboardInterrupt):
                return None
            points = plan.work.span(*plan.chunks.span(self.number))
            raise _killing(*points, self.tries, error) from error
        if error is not None:
            raise error
        return Chunk(self.number, self.rows, values, verdict)


def _finished(
    flying: Sequence[_Try], full: bool, stopping: Callable[[], bool]
) -> list[_Try]:
    """Return the finished ones; if `full`, wait for one until the sweep stops."""
    pause = 0.0005
    while True:
        finished = [it for it in flying if it.future.done()]
        if finished or not flying or not (full or stopping()):
            return finished
        time.sleep(0.02 if stopping() else pause)
        if stopping():
            return [it for it in flying if it.future.done()]
        # Wait briefly for short chunks, and poll rarely for long ones.
        pause = min(2 * pause, 0.02)


def _ended_by_signal(stopping: Callable[[], bool]) -> bool:
    """Return whether a signal stops the sweep, and so may have broken its executor."""
    if not stopping():
        time.sleep(_SIGNAL_SECONDS)
    return stopping()


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


class _Task(NamedTuple):
    """A sweep as sent to a worker; `program` identifies the program traced here.

    `arguments` are those of `prepare`, and `fields` those of `Points` to replace.
    """

    arguments: dict[str, Any]
    fields: dict[str, Any]
    reduce: PyTree
    settings: dict[str, Any]
    program: tuple[str, str]


def pack(plan: Plan) -> bytes:
    """Return a sweep as bytes for a worker."""
    cloudpickle = optional("sweep", "cloudpickle", "distributed")
    request, job = plan.request, plan.points
    names = ("space", "key", "batch_size", "ordered", "isolated")
    arguments = {"fn": request.fn, **{name: getattr(job, name) for name in names}}
    fields = {name: getattr(job, name) for name in ("most", "adapts", "key_digits")}
    task = _Task(arguments, fields, request.reduce, settings(), _program(job))
    try:
        return cloudpickle.dumps(task)
    except Exception as error:
        raise type_error(
            "sweep",
            f"`fn` or `space` cannot be sent to a worker: {error}.",
            "Make what cannot travel (devices, meshes, open files, locks) inside "
            "of `fn`.",
        ) from error


def work(
    packed: bytes, index: Index, costs: Float[np.ndarray, " rows"] | None
) -> tuple[Rows | None, Verdict | None, Exception | None]:
    """Compute some rows in a worker; return the error of the function if it raises."""
    import cloudpickle

    name = digest(packed)
    try:
        # Do not unpickle a known sweep, which takes 0.3 s for 100 MB.
        task, job = _jobs.get(name) or (cloudpickle.loads(packed), None)
        # Ctrl-C also reaches the processes of a pool, which finish their chunks.
        with Interrupt(CTRL_C, loud=False), contextlib.ExitStack() as stack:
            for setting, value in task.settings.items():
                stack.enter_context(getattr(jax, setting)(value))
            stack.enter_context(no_mesh())
            job = job or _prepared(name, task)
            values, verdict = whole(job.compute(index, costs, Watch()))
    except Exception as error:
        return None, None, _portable(error)
    return values, verdict, None


def _prepared(name: str, task: _Task) -> Work:
    points = prepare(**task.arguments, devices=tuple(jax.local_devices()))
    points = dataclasses.replace(points, **task.fields)
    if _program(points) != task.program:
        raise SweepError(
            message(
                "sweep",
                f"a worker traces another program from `fn` (jax {jax.__version__} "
                f"there, {task.program[1]} here).",
                "Give the workers the same versions of JAX, and of the modules that "
                "`fn` uses.",
            )
        )
    reducers = None if task.reduce is None else as_reducers("sweep", task.reduce)
    # Threads may arrive here at the same time: all use the first entry.
    return _jobs.setdefault(name, (task, work_of(points, reducers)))[1]


def _program(job: Points) -> tuple[str, str]:
    """Return what identifies the program of a sweep, and the version of JAX."""
    # Compare programs only: a callable among static values may lose its name in
    # transit.
    programs = [traced.program for traced in job.traced]
    constants = [array_text(x) for program in programs for x in program.constants]
    texts = [program.text for program in programs]
    return digest("\n".join([*texts, *constants])), jax.__version__


def _portable(error: Exception) -> Exception:
    """Return the error if it can be pickled, or else one with its text."""
    import cloudpickle

    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return SweepError(f"{type(error).__name__}: {error}")
    return error
