"""`plan`: the work of a sweep, in numbers, before it runs.

It performs the steps of a sweep up to the computation of chunks.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from .._jaxprs import live_bytes
from .._spaces import SpaceLike
from .._types import PyTree
from .compute.trace import no_mesh
from .options import SweepOptions
from .plan import Plan, plan_of
from .request import request_of
from .sinks.left import Left, left_in
from .sinks.store_sink import StoreSink


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
      missing. `copied` is the number of points in the store that are first moved to
      other files, once; it is 0 if all files stay, apart from chunks at the edge that
      get new points.
    - `programs` is the maximum number of programs to compile (fewer if a store has all
      points of a program), and `compiled` the number of programs already compiled.
    - `batch_size` is the number of points vectorised at once on each device, and
      `devices` the number of devices.
    - `chunks` is the number of chunks in which values are computed and kept, of at most
      `chunk_points` points, and `chunks_left` the number of chunks to compute.
    - `value_bytes` is the size in bytes of all values in memory, or in a store before
      compression. For a reduction it is the size of its states.
    - `memory_bytes` is the memory in bytes that a device needs: the maximum over the
      compiled programs, or an estimate if a program is not compiled yet.

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
    programs: int
    compiled: int
    batch_size: int
    devices: int
    chunks: int
    chunks_left: int
    chunk_points: int
    value_bytes: int
    memory_bytes: int | None = None
    store: str | None = None
    new: int = 0
    copied: int = 0

    def __repr__(self) -> str:
        dims = ", ".join(f"{name}: {n:,}" for name, n in self.dims.items())
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        lines = [f"  {name:<{width}}  {text}" for name, text in rows]
        return "\n".join([f"SweepPlan({self.points:,} points; {dims})", *lines])

    def _rows(self) -> list[tuple[str, str]]:
        there = f"{self.left:,} to compute"
        if self.store is not None:
            there += f"; {self.done:,} done, {self.missing:,} missing"
            there += f", {self.failed:,} failed"
        rows = [("points", there)]
        if self.new:
            grows = f"{_points(self.points - self.new)} become {self.points:,}; "
            moves = f"{self.copied:,} are copied once" if self.copied else "files stay"
            rows.append(("growth", grows + moves))
        programs = f"{self.programs:,} to compile"
        if self.compiled:
            programs += f", {self.compiled:,} compiled already"
        devices = "1 device" if self.devices == 1 else f"each of {self.devices} devices"
        batches = f"{_points(self.batch_size)} on {devices}"
        rows += [("programs", programs), ("batches", batches)]
        if self.memory_bytes is not None:
            about = "about " if self.programs else ""
            size = f"{about}{_bytes(self.memory_bytes)}"
            rows.append(("memory", f"{size} on {devices}"))
        rows.append(("values", _bytes(self.value_bytes)))
        if self.chunks > 1 or self.store is not None:
            left = f"{self.chunks_left:,} of {self.chunks:,}"
            rows.append(("chunks", f"{left}, of at most {_points(self.chunk_points)}"))
        return rows


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count:,} points"


def _bytes(size: int) -> str:
    """Return a number of bytes as text, in a suitable unit."""
    number, units = float(size), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while number >= 1000 and len(units) > 1:
        number /= 1000
        units.pop(0)
    return f"{number:.3g} {units[0]}"


def plan(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    **options: Unpack[SweepOptions],
) -> SweepPlan:
    """Describe the work of a sweep before it runs.

    `plan` takes the arguments of `sweep`: replace `sweep` by `plan`, inspect the
    result, and change it back. It traces the function and checks the arguments, which
    finds most mistakes, but it computes, compiles and writes nothing. If there is a
    store, it reads its files to count points.

    **Arguments:**

    - `fn`, `space` and `options`: as in `sweep`. With `batch_size="tune"`, the batch
      size is the first one that would be measured.

    **Returns:** a `SweepPlan`, which prints as a table: points done, missing and
    failed, programs to compile, batch size, memory on a device, bytes of values, and
    chunks.

    **Raises:** the errors that `sweep` raises before it computes anything.

    The memory of a program that is not compiled yet is estimated from its operations,
    as if XLA fused none of them; that of a compiled program is exact.

    **Laws:** the sweep computes `left` points, and its values take `value_bytes`.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> space = {"a": ep.Linspace(0, 1, 300), "b": ep.Linspace(0, 1, 200)}
        >>> coming = ep.plan(lambda p: p["a"] * jnp.ones(10) + p["b"], space)
        >>> coming.points, coming.left, coming.programs, coming.value_bytes
        (60000, 60000, 1, 2400000)
        >>> print(coming)
        SweepPlan(60,000 points; a: 300, b: 200)
          points    60,000 to compute
          ...
    """
    request = request_of("plan", fn, space, **options)
    # Describe the compiled sweep also under `jax.disable_jit()`.
    with no_mesh("plan"), jax.disable_jit(False):
        return _in_numbers(plan_of(request))


def _in_numbers(coming: Plan) -> SweepPlan:
    """Return the numbers of a plan, with the points of its store."""
    request = coming.request
    index, count = request.shard or (0, 1)
    own = range(index, len(coming.chunks), count)
    found = Left(own, coming.count(own))
    if request.store is not None:
        sink = StoreSink(coming, write=False)
        coming, found = sink.plan, left_in(sink)
    left, stored = found.left, found.value_bytes
    _, size = coming.work.span(0, math.prod(coming.chunks.lengths))
    programs = _programs(coming)
    if coming.costs is not None and callable(request.order_by) and coming.points.size:
        programs.append(None)
    compiled = sum(there is not None for there in programs)
    return SweepPlan(
        dims=dict(coming.points.space.dims),
        points=size,
        done=found.done - found.failed,
        failed=found.failed,
        missing=size - found.done,
        left=found.num_left,
        new=found.new,
        copied=found.copied,
        programs=len(programs) - compiled,
        compiled=compiled,
        batch_size=coming.batch_size,
        devices=len(coming.devices),
        chunks=len(coming.chunks) if size else 0,
        chunks_left=len(left) if size else 0,
        chunk_points=coming.count([0]) if size else 0,
        value_bytes=_value_bytes(coming) if stored is None else stored,
        memory_bytes=_memory(coming),
        store=None if request.store is None else str(request.store),
    )


def _value_bytes(coming: Plan) -> int:
    """Return the bytes of values in memory, or of states while they are merged."""
    chunks = coming.chunks
    rows = math.prod(chunks.lengths) if coming.blocks is None else chunks.points
    return rows * _nbytes(coming.work.row)


def _programs(coming: Plan) -> list[Any]:
    """Return the programs that a sweep needs, `None` for those not compiled yet."""
    return coming.work.programs() if coming.points.size else []


def _memory(coming: Plan) -> int | None:
    """Return the bytes that a device needs, an estimate if not all is compiled."""
    job = coming.points
    if job.size == 0:
        return None
    programs = _programs(coming)
    known = map(_compiled_bytes, (there for there in programs if there is not None))
    found = [size for size in known if size is not None]
    if len(found) == len(programs):
        return max(found)
    for traced, layout in job.needed:
        held = _nbytes(map(jnp.asarray, [*job.arrays, *traced.program.constants]))
        batch = layout.batch_size * live_bytes(traced.jaxpr)
        if coming.blocks is not None:
            kept = -(-coming.blocks.at_once // len(job.devices))
            out = kept * coming.blocks.row_bytes + layout.batch_size * job.row_bytes
        else:
            out = layout.capacity * layout.batch_size * job.row_bytes
        found.append(held + batch + out)
    return max(found)


def _nbytes(leaves: Iterable[Any]) -> int:
    """Return the bytes of arrays or structs, which may have PRNG keys."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)


def _compiled_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Return the bytes that a program needs on one device while it runs."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    parts = ("argument", "output", "temp")
    return sum(int(getattr(found, f"{part}_size_in_bytes", 0)) for part in parts)
