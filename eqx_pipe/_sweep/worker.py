"""The part of a sweep that runs in a worker: it unpacks a sweep and computes a chunk.

The function, the space and the key are sent by cloudpickle. A worker traces and
compiles once, for its own devices.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from .._cache import LRUCache
from .._errors import SweepError, message, optional, type_error
from .._jaxprs import array_text, digest
from .._progress import Progress
from .._reduce import as_reducers
from .._spaces import Space
from .._types import Key, PyTree
from .compute.failure import Verdict
from .compute.points import Points
from .compute.prepare import prepare
from .compute.rows import Index, Rows, Work
from .compute.trace import no_mesh, settings
from .gather import CTRL_C, Interrupt
from .plan import Plan, work_of

# Keep few sweeps, since each holds the arrays that its function closes over.
_jobs = LRUCache(4)


@dataclasses.dataclass(frozen=True)
class Task:
    """A sweep as sent to a worker; `program` identifies the program traced here."""

    fn: Callable[..., Any]
    space: Space
    key: Key | None
    batch_size: int
    ordered: bool
    most: int
    isolated: bool
    adapts: bool
    reduce: PyTree
    settings: dict[str, Any]
    program: tuple[str, str]


def pack(plan: Plan) -> bytes:
    """Return a sweep as bytes for a worker."""
    cloudpickle = optional("sweep", "cloudpickle", "distributed")
    request, job = plan.request, plan.points
    task = Task(
        fn=request.fn,
        space=job.space,
        key=job.key,
        batch_size=job.batch_size,
        ordered=job.ordered,
        most=job.most,
        isolated=job.isolated,
        adapts=job.adapts,
        reduce=request.reduce,
        settings=settings(),
        program=_program(job),
    )
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
    packed: bytes,
    index: Index,
    costs: Float[np.ndarray, " rows"] | None,
) -> tuple[Rows | None, Verdict | None, Exception | None]:
    """Compute some rows in a worker; return the error of the function if it raises."""
    import cloudpickle

    name = digest(packed)
    try:
        # Do not unpickle a known sweep, which takes 0.3 s for 100 MB.
        task, job = _jobs.get(name) or (cloudpickle.loads(packed), None)
        # Ctrl-C also reaches the processes of a pool, which finish their chunks.
        with Interrupt(CTRL_C, loud=False), _under(task.settings):
            job = job or _prepared(name, task)
            values, verdict = job.compute(index, costs, Progress(False, len(index)))
    except Exception as error:
        return None, None, _portable(error)
    return values, verdict, None


def _prepared(name: str, task: Task) -> Work:
    devices = tuple(jax.local_devices())
    given = (task.fn, task.space, task.key, task.batch_size)
    job = prepare(*given, devices, ordered=task.ordered, isolated=task.isolated)
    job = dataclasses.replace(job, most=task.most, adapts=task.adapts)
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
    reducers = None if task.reduce is None else as_reducers("sweep", task.reduce)
    # Threads may arrive here at the same time: all use the first entry.
    return _jobs.setdefault(name, (task, work_of(job, reducers)))[1]


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


@contextlib.contextmanager
def _under(settings: dict[str, Any]) -> Iterator[None]:
    """Run under the settings of another process, without a mesh."""
    with contextlib.ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(getattr(jax, name)(value))
        stack.enter_context(no_mesh())
        yield
