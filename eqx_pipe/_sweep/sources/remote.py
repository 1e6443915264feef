"""Chunks computed elsewhere: by the workers of an executor.

Nothing is asked of an executor but `submit(fn, *args)`, and of what that returns but
`.result()`; if it has `.done()` too, chunks are gathered as they come. The function
travels by cloudpickle, the space and the key with it; a worker traces and compiles
once, for its own devices.
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
from jaxtyping import Bool, Float

from ..._errors import SweepError, message
from ..._jaxprs.text import Writer, digest
from ..._reduce.many import as_many
from ..._spaces.space import Space
from ..._types import Key, PyTree
from ..compute.job import Job, prepare
from ..compute.progress import Progress
from ..compute.work import Rows, Work
from ..costs import CostsBySpan
from ..gather import Chunk
from ..interrupt import Interrupt
from ..lru import LRUCache
from ..plan import Plan
from ..reduced.blocks import Blocks
from ..tracing.context import settings, under
from .answer import checked

_TRIES = 3
_IN_FLIGHT_BYTES = 2**30
_IN_FLIGHT = 1024

_jobs = LRUCache(4)


@dataclasses.dataclass(frozen=True)
class Task:
    """A sweep as it travels to a worker; `program` is what is traced from it here."""

    fn: Callable[..., Any]
    space: Space
    key: Key | None
    batch_size: int
    costs: bool
    stretch: int
    isolated: bool
    reduce: PyTree
    settings: dict[str, Any]
    program: tuple[str, str]


def pack(plan: Plan) -> bytes:
    """A sweep for a worker, as bytes."""
    try:
        import cloudpickle
    except ImportError as error:
        raise ImportError(
            "`eqx_pipe.sweep` needs cloudpickle for `executor`. Install it by "
            "`pip install 'eqx_pipe[distributed]'`."
        ) from error
    request, job = plan.request, plan.job
    assert job is not None
    task = Task(
        fn=request.fn,
        space=job.space,
        key=job.key,
        batch_size=job.batch_size,
        costs=job.costs,
        stretch=job.stretch,
        isolated=job.isolated,
        reduce=request.reduce,
        settings=settings(),
        program=_program(job),
    )
    try:
        return cloudpickle.dumps(task)
    except Exception as error:
        raise TypeError(
            message(
                "sweep",
                f"`fn` or `space` cannot be sent to a worker: {error}.",
                "Make what cannot travel (devices, meshes, open files, locks) inside "
                "of `fn`.",
            )
        ) from error


def work(
    packed: bytes, first: int, last: int, costs: Float[np.ndarray, " points"] | None
) -> tuple[Any, Any, Exception | None]:
    """What a worker does: the points of a stretch; or what the function raised."""
    import cloudpickle

    name = digest(packed)
    job = _jobs.get(name)
    try:
        task = cloudpickle.loads(packed)
        # Ctrl-C comes to the processes of a pool too: the chunk is finished there.
        with Interrupt(said=""), under(task.settings):
            job = job or _prepared(name, task)
            quiet = Progress(False, last - first)
            values, ok = job.compute(first, last, costs, quiet)
    except Exception as error:
        return None, None, _portable(error)
    return values, ok, None


class Elsewhere:
    """Computes chunks by the workers of an executor."""

    def __init__(self, plan: Plan, costs: CostsBySpan | None):
        assert plan.request.executor is not None
        self.plan, self.costs = plan, costs
        self.executor = plan.request.executor
        self.packed = pack(plan)

    def __call__(
        self, numbers: Sequence[int], stopping: Callable[[], bool], bar: Progress
    ) -> Iterator[Chunk]:
        """The chunks with some numbers, as they come."""
        waiting = collections.deque(map(_Try, numbers))
        flying: list[_Try] = []
        room = self.plan.work.row_bytes * self.plan.chunks.points + len(self.packed)
        most = max(2, min(_IN_FLIGHT, _IN_FLIGHT_BYTES // room))
        try:
            while flying or (waiting and not stopping()):
                if stopping():
                    flying = [it for it in flying if not it.cancelled()]
                elif waiting and len(flying) < most:
                    flying.append(self._launched(waiting.popleft()))
                    if not flying[-1].is_done():
                        continue
                trouble: Exception | None = None
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
                    bar.done(self.plan.count([it.number]))
                    yield it.number, *found
                if trouble is not None:
                    raise trouble
        finally:
            for it in flying:
                it.cancelled()

    def _launched(self, it: "_Try") -> "_Try":
        span = self.plan.chunks.span(it.number)
        costs = None if self.costs is None else self.costs(*span)
        it.tries += 1
        try:
            it.future = self.executor.submit(work, self.packed, *span, costs)
        except Exception as error:
            raise _broken(error) from error
        return it


@dataclasses.dataclass(eq=False)
class _Try:
    """A chunk, how often a worker got it, and what the executor gave for it."""

    number: int
    tries: int = 0
    future: Any = None

    def is_done(self) -> bool:
        """Whether it is known to be finished."""
        done = getattr(self.future, "done", None)
        return bool(done()) if callable(done) else False

    def cancelled(self) -> bool:
        """Asks that it be not begun; whether it will not be."""
        with contextlib.suppress(Exception):
            return bool(self.future.cancel())
        return False

    def result(self, plan: Plan) -> tuple[Rows, Bool[np.ndarray, " rows"]] | None:
        """Values and which are ok, or `None` if it is worth another try."""
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
        return checked(answer, plan.work.row, last - first, which)


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
        pause = min(2 * pause, 0.02)


def _prepared(name: str, task: Task) -> Work:
    devices = tuple(jax.local_devices())
    given = (task.fn, task.space, task.key, task.batch_size)
    job = prepare(*given, devices, task.costs, isolated=task.isolated)
    job = dataclasses.replace(job, stretch=task.stretch)
    if _program(job) != task.program:
        raise SweepError(
            message(
                "sweep",
                f"a worker traces another program from `fn` (jax {jax.__version__} "
                f"there, {task.program[1]} here).",
                "Give the workers the same versions of JAX, and of the modules that "
                "`fn` uses.",
            )
        )
    rows: Work = job
    if task.reduce is not None:
        rows = Blocks(job, as_many("sweep", task.reduce))
    # Threads may come here together: all of them use one.
    return _jobs.setdefault(name, rows)


def _program(job: Job) -> tuple[str, str]:
    """What tells the program of a sweep, and the version of JAX."""
    # The programs alone: a callable among static values may lose its name on its way.
    writer = Writer()
    texts = [writer.program(traced.jaxpr) for traced in job.traced]
    return digest("\n".join([*texts, *writer.constants])), jax.__version__


def _portable(error: Exception) -> Exception:
    """An error that arrives as what it is, or else as its text."""
    import cloudpickle

    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return SweepError(f"{type(error).__name__}: {error}")
    return error


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
