"""The side of a worker: it unpacks a sweep, and computes chunks of it.

The function, the space and the key are sent by cloudpickle (`pack`). A worker traces
and compiles them once, for its own devices (`compute_in_worker`).
"""

import contextlib
import dataclasses
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from .._cache import LRUCache
from .._errors import SweepError, optional, sweep_error, type_error
from .._jaxprs import array_text, digest
from .._reduce import as_reducers
from .._results import versions
from .._run import CTRL_C, Interrupt, Stopped, Watch, no_mesh
from .._store import disk_errors
from .._types import PyTree
from .flight_files import Flights
from .identity import kernels_text
from .plan import Plan, work_of
from .target import Target
from .trace.trace import settings
from .work.buffer import Asked, Rows, Verdict, whole
from .work.points import Points
from .work.prepare import prepare
from .work.work import Work

Computed: TypeAlias = tuple[Rows, Verdict] | Exception
"""The rows of a chunk, `[]` if they are in the store, or an error of the function."""


class Answer(NamedTuple):
    """The answer of a worker: `computed`, or `None` if it lacks the function.

    A worker is a thread of a process. It took `seconds` for the chunks in `computed`,
    without the first if the call had the function. It ends with the first error.
    """

    worker: tuple[str, int]
    seconds: float
    computed: list[Computed] | None


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
) -> Answer:
    """Compute the rows of chunks in a worker.

    `name` identifies the packed sweep. Without `packed`, a worker that does not know
    the name computes nothing. A worker that sees the store writes the chunks there. If
    a signal stopped kernels of the call named `part_of`, no others begin here.
    """
    # A fork has the same `_PROCESS`.
    worker = f"{_PROCESS}.{os.getpid()}", threading.get_ident()
    sweep = _sweeps.get(name)
    if sweep is None and packed is None:
        return Answer(worker, 0.0, None)
    # Threads may arrive here at the same time: all use the first entry.
    sweep = sweep or _sweeps.setdefault(name, _Sweep(packed))
    begun, computed = time.monotonic(), list[Computed]()
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
    return Answer(worker, time.monotonic() - begun, computed)


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


def _computed(sweep: _Sweep, asked: Asked, target: Target | None) -> Computed:
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
