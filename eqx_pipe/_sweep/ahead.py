"""`plan`: what a sweep would do, before it is run.

It takes the steps of a sweep up to the computation of its chunks.
"""

import math
from collections.abc import Callable
from typing import Any, Unpack

import jax

from .._jaxprs import live_bytes
from .._spaces import SpaceLike
from .._tree import is_key_array
from .._types import PyTree
from .compute.trace import no_mesh
from .options import SweepOptions
from .order_by import CostsBySpan
from .plan import Plan
from .request import request_of
from .results.planned import SweepPlan
from .sinks.left import Left, left_in
from .sinks.store_sink import StoreSink
from .sweep import planned


def plan(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    **options: Unpack[SweepOptions],
) -> SweepPlan:
    """Return what a sweep would compute, before it runs.

    It takes the arguments of `sweep`: write `plan` in the place of `sweep`, look, and
    write `sweep` again. The function is traced and the arguments are checked, so that
    most mistakes are found now; nothing is computed, compiled or written. What a store
    has already is read from its ledger.

    **Arguments:**

    - `fn`, `space` and `options`: as in `sweep`. With `batch_size="tune"` the size is
      the one that measuring begins with.

    **Returns:** a `SweepPlan`, whose fields are numbers, and which prints as a table:
    points done, missing and failed, programs to compile, batch size, memory on a
    device, bytes of values, and chunks.

    **Raises:** what `sweep` raises before it computes anything.

    The memory of a program that is not compiled yet is estimated from what it computes,
    as if no two operations were fused; that of compiled ones is known.

    **Laws:** `left` is how many points the sweep computes; `value_bytes` what its
    values take.

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
    # Under `jax.disable_jit()` too it describes the compiled sweep.
    with no_mesh("plan"), jax.disable_jit(False):
        made, costs = planned(request)
        return _said(made, costs)


def _said(coming: Plan, costs: Callable[[int], CostsBySpan] | None) -> SweepPlan:
    """What a plan comes to, in numbers."""
    request = coming.request
    index, count = request.shard or (0, 1)
    own = range(index, len(coming.chunks), count)
    found = Left(own, coming.count(own))
    if request.store is not None:
        sink = StoreSink(coming, write=False)
        coming, found = sink.plan, left_in(sink)
    left, stored = found.left, found.value_bytes
    _, size = coming.work.span(0, math.prod(coming.chunks.lengths))
    programs = _programs(coming, costs)
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
    """What is kept in memory: values, or states while they are merged."""
    chunks = coming.chunks
    rows = math.prod(chunks.lengths) if coming.blocks is None else chunks.points
    row = coming.work.row
    return rows * sum(math.prod(s.shape) * s.dtype.itemsize for s in row)


def _programs(coming: Plan, costs: Callable[[int], CostsBySpan] | None) -> list[Any]:
    """The programs that a sweep needs, each as it is compiled, or `None`."""
    if coming.points.size == 0:
        return []
    found = coming.work.programs()
    ordering = costs is not None and callable(coming.request.order_by)
    return [*found, *([None] * ordering)]


def _memory(coming: Plan) -> int | None:
    """The bytes that a device holds: of compiled programs, or about those of others."""
    job = coming.points
    if job.size == 0:
        return None
    programs = _programs(coming, None)
    known = map(_compiled_bytes, (there for there in programs if there is not None))
    found = [size for size in known if size is not None]
    if len(found) == len(programs):
        return max(found)
    for traced, layout in job.needed:
        given = [*job.arrays, *traced.program.constants]
        held = sum(_nbytes(leaf) for leaf in given)
        batch = layout.batch_size * live_bytes(traced.jaxpr)
        if coming.blocks is not None:
            kept = -(-coming.blocks.at_once // len(job.devices))
            out = kept * coming.blocks.row_bytes + layout.batch_size * job.row_bytes
        else:
            out = layout.capacity * layout.batch_size * job.row_bytes
        found.append(held + batch + out)
    return max(found)


def _nbytes(leaf: Any) -> int:
    if is_key_array(leaf):
        return math.prod(leaf.shape) * leaf.dtype.itemsize
    return int(getattr(leaf, "nbytes", 0))


def _compiled_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Return the bytes that a program holds on one device while it runs."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    parts = ("argument", "output", "temp")
    return sum(int(getattr(found, f"{part}_size_in_bytes", 0)) for part in parts)
