"""`plan`: the work of a sweep, in numbers, before it runs.

It performs the steps of a sweep up to the computation of chunks.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Unpack

import jax

from .._check import check_bool
from .._compiled import ProgramPlan, as_bytes, free_bytes, padded, plan_of_program
from .._run import no_mesh
from .._same import record_of
from .._spaces import SpaceLike
from .._store import FAILED, MISSING, NO_GAPS, count_in
from .._tree import nbytes
from .._types import PyTree
from .identity import kernels_text
from .plan import Plan, Todo, plan_of
from .request import SweepOptions, request_of
from .sinks import StoreSink


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """The work that a sweep would do; prints as a table.

    - `dims` has the dims of the space with their lengths, and `points` is the number of
      points.
    - `done`, `failed` and `missing` are the numbers of points that have a value in the
      store, that failed, and that are not computed yet; without a store all points are
      missing. `left` is the number of points that the call would compute: the missing
      points of its shard, and with `resume="failed"` also the failed points.
    - `new` is the number of points that a store gains if its space grows; they count as
      missing.
    - `batch_size` is the number of points vectorised at once on each device, and
      `devices` the number of devices.
    - `chunks` is the number of chunks in which values are computed and kept, of at most
      `chunk_points` points, and `chunks_left` the number of chunks to compute.
    - `value_bytes` is the size in bytes of all values in memory, or in a store before
      compression. For a reduction it is the size of its states.
    - `interruptible` is true if the sweep can stop between two steps of the function's
      loops, and resume there. A function without long loops, or with effects (prints,
      callbacks), is computed in whole batches. `steps` is the number of steps of a
      point, `None` if it depends on values, and `flight_bytes` the size of the state of
      the points in flight, which a store keeps.
    - `kernels` describes the native code of `kernel`, or the platform that has none; it
      is empty if the function has no kernels.
    - `counts` has the names that the function reads, which a store compares: their
      values, and the code of functions, as they are in its program. `unsure` is the
      first value among them that a store cannot recognise, which counts by the program
      alone, and as changed if Python reads it while the program runs.
    - `program` is the description of the compiled program, if it was asked for.

    Under `jax.disable_jit()` it describes the compiled sweep.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> coming = ep.plan(jnp.sin, ep.Linspace(0, 1, 500))
        >>> coming.left, coming.value_bytes, coming.done
        (500, 2000, 0)
    """

    dims: dict[str, int]
    points: int
    done: int
    failed: int
    missing: int
    left: int
    batch_size: int
    devices: int
    chunks: int
    chunks_left: int
    chunk_points: int
    value_bytes: int
    store: str | None = None
    new: int = 0
    interruptible: bool = False
    steps: int | None = None
    flight_bytes: int = 0
    kernels: str = ""
    counts: tuple[str, ...] = ()
    unsure: str = ""
    program: ProgramPlan | None = None

    def __repr__(self) -> str:
        dims = ", ".join(f"{name}: {n:,}" for name, n in self.dims.items())
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        lines = [f"  {name:<{width}}  {text}" for name, text in rows]
        return "\n".join([f"SweepPlan({self.points:,} points; {dims})", *lines])

    def _rows(self) -> list[tuple[str, str]]:
        counts = f"{self.left:,} to compute"
        if self.store is not None:
            counts += f"; {self.done:,} done, {self.missing:,} missing"
            counts += f", {self.failed:,} failed"
        rows = [("points", counts)]
        if self.new:
            grows = f"{_points(self.points - self.new)} become {self.points:,}"
            rows.append(("growth", grows))
        devices = "1 device" if self.devices == 1 else f"each of {self.devices} devices"
        rows.append(("batches", f"{_points(self.batch_size)} on {devices}"))
        if self.interruptible:
            steps = "" if self.steps is None else f"{self.steps:,} steps, "
            flight = f"{as_bytes(self.flight_bytes)} in flight"
            rows.append(("loop", f"{steps}interruptible; {flight}"))
        if self.kernels:
            rows.append(("kernels", self.kernels))
        rows.append(("values", as_bytes(self.value_bytes)))
        if self.chunks > 1 or self.store is not None:
            left = f"{self.chunks_left:,} of {self.chunks:,}"
            rows.append(("chunks", f"{left}, of at most {_points(self.chunk_points)}"))
        if self.counts:
            more = ", ..." if len(self.counts) > _MOST_NAMES else ""
            rows.append(("counts", ", ".join(self.counts[:_MOST_NAMES]) + more))
        if self.unsure:
            rows.append(("unsure", self.unsure))
        return rows if self.program is None else rows + self.program.rows()


_MOST_NAMES = 12


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count:,} points"


def plan(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    *,
    compiled: bool = False,
    **options: Unpack[SweepOptions],
) -> SweepPlan:
    """Describe the work of a sweep before it runs.

    `plan` takes the arguments of `sweep`: replace `sweep` by `plan`, inspect the
    result, and change it back. It traces the function and checks the arguments, which
    finds most mistakes, but it computes and writes nothing, and compiles only if asked.
    If there is a store, it reads its files to count points.

    **Arguments:**

    - `fn`, `space` and `options`: as in `sweep`. `mesh` may also be a `topology` of
      devices that are not there.
    - `compiled`: whether to compile the program, too, and to describe it as `.program`:
      its memory and the largest batch that fits, kernels, loops, gathers, collectives,
      and remarks on what is unusual. These are the compiler's figures, and none of them
      is a time. `program` does the same for any function. (Keyword only.)

    **Returns:** a `SweepPlan`, which prints as a table: points done, missing and
    failed, batch size, bytes of values, and chunks.

    **Raises:** the errors that `sweep` raises before it computes anything.

    **Laws:** the sweep computes `left` points, and its values take `value_bytes`.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> space = {"a": ep.Linspace(0, 1, 300), "b": ep.Linspace(0, 1, 200)}
        >>> coming = ep.plan(lambda p: p["a"] * jnp.ones(10) + p["b"], space)
        >>> coming.points, coming.left, coming.value_bytes
        (60000, 60000, 2400000)
        >>> print(coming)
        SweepPlan(60,000 points; a: 300, b: 200)
          points   60,000 to compute
          ...

        For an H100, or a TPU with eight chips, that this machine does not have:

        ```py
        print(ep.plan(fn, space, mesh=ep.topology("h100"), compiled=True))
        print(ep.plan(fn, space, mesh=ep.topology("v5e:2x4"), compiled=True))
        ```
    """
    check_bool("plan", "compiled", compiled)
    request = request_of("plan", fn, space, **options)
    # Describe the compiled sweep also under `jax.disable_jit()`.
    with no_mesh("plan"), jax.disable_jit(False):
        coming = plan_of(request)
        if not compiled:
            return _in_numbers(coming)
        # As the sweep does, which finds the batch size by compiling.
        coming = dataclasses.replace(
            coming, work=coming.work.with_points(coming.points.fitted(2))
        )
        program = _program(coming)
        return dataclasses.replace(_in_numbers(coming), program=program)


def _program(coming: Plan) -> ProgramPlan:
    """Return the description of the program of the first case, on one device."""
    begun, points = time.perf_counter(), coming.points
    blocks = coming.blocks
    made = blocks.program() if blocks and blocks.in_order else points.program(0)
    seconds, devices = time.perf_counter() - begun, points.devices
    described = plan_of_program(made, seconds, devices[0].platform)
    free, alive = free_bytes(devices), points.traced[0].analysis.alive
    lane = described.temporary_bytes / points.batch_size
    remarks = [*described.remarks, *filter(None, [padded(lane, alive)])]
    largest = None
    if free is not None and points.size:
        most = -(-points.size // len(devices))
        largest = points.with_batch_size(most).largest_in(0, free)
    return dataclasses.replace(described, largest_batch=largest, remarks=tuple(remarks))


def _in_numbers(coming: Plan) -> SweepPlan:
    """Return the numbers of a plan, with the points of its store."""
    request, numbers = coming.request, range(len(coming.chunks))
    todo, gaps, had, value_bytes = Todo(numbers, numbers), NO_GAPS, 0, 0
    counts, unsure = {}, ""
    if request.store is None:
        # Those of all rows, or of the states of blocks while they are merged.
        rows = coming.chunks.size if coming.blocks is None else coming.chunks.points
        value_bytes = rows * sum(map(nbytes, coming.work.row))
    else:
        sink = StoreSink(coming, write=False)
        _, counts, unsure = record_of(request.fn)
        coming, store, todo = sink.plan, sink.store, sink.todo()
        gaps = store.account().gaps
        for gap in gaps:  # gaps of blocks, if points are reduced
            gap[:2] = coming.work.span(*gap[:2].tolist())
        _, had = coming.work.span(0, store.chunks.size)
        value_bytes = coming.chunks.size * store.row_bytes
    _, size = coming.work.span(0, math.prod(coming.chunks.lengths))
    failed = count_in(gaps, FAILED)
    done = had - failed - count_in(gaps, MISSING)
    loops = coming.points.loops()
    return SweepPlan(
        dims=dict(coming.points.space.dims),
        points=size,
        done=done,
        failed=failed,
        missing=size - done - failed,
        left=todo.left(coming),
        new=0 if request.store is None else size - had,
        batch_size=coming.points.batch_size,
        devices=len(coming.points.devices),
        chunks=len(coming.chunks) if size else 0,
        chunks_left=len(todo.chunks) if size else 0,
        chunk_points=coming.count([0]) if size else 0,
        value_bytes=value_bytes,
        store=None if request.store is None else request.store.path_of(),
        interruptible=loops is not None,
        steps=None if loops is None else loops[0],
        flight_bytes=0 if loops is None else loops[1],
        kernels=_kernels_of(coming),
        counts=tuple(name for name in counts if name and "<" not in name),
        unsure=unsure,
    )


def _kernels_of(coming: Plan) -> str:
    """Return which code the function's kernels are; "" if it has none."""
    points, platform = coming.points, coming.points.devices[0].platform
    if platform == "cpu" or not any(x.has_kernels for x in points.traced):
        return kernels_text(points.traced, platform)
    return f"none on {platform}: XLA runs `fn` itself"
