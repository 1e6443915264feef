"""`plan`: what a sweep would do, before it is run.

It takes the steps of a sweep up to the computation of its chunks.
"""

import math
import os
from collections.abc import Callable
from typing import Any, Literal

from jax.sharding import Mesh

from .._jaxprs import live_bytes
from .._reduce import ReduceLike
from .._spaces import SpaceLike
from .._store.layout import StoreLayout
from .._tree import is_key_array
from .._types import Key, PyTree
from .compute.sizes import compiled_bytes
from .plan import CostsBySpan, Plan
from .reduced.blocks import Blocks
from .request import BatchSize, Costs, Executor, Shard, checked
from .results.output_coords import OutputCoords
from .results.planned import SweepPlan
from .run import planned
from .sinks.look import Looked, looked
from .tracing.trace import no_mesh


def plan(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    *,
    key: Key | None = None,
    batch_size: BatchSize = "auto",
    mesh: Mesh | None = None,
    order_by: Costs | None = None,
    reduce: ReduceLike | None = None,
    store: str | os.PathLike[str] | None = None,
    shard: Shard | None = None,
    executor: Executor | None = None,
    resume: Literal["force", "failed"] | None = None,
    on_error: Literal["raise", "mark"] = "raise",
    progress: bool | None = None,
    count_steps: bool = False,
    output_coords: OutputCoords | None = None,
) -> SweepPlan:
    """Return what a sweep would compute, before it runs.

    It takes the arguments of `sweep`: write `plan` in the place of `sweep`, look, and
    write `sweep` again. The function is traced and the arguments are checked, so that
    most mistakes are found now; nothing is computed, compiled or written. What a store
    has already is read from its ledger.

    **Arguments:**

    - `fn`, `space` and all others: as in `sweep`. With `batch_size="tune"` the size is
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
    request = checked(
        fn,
        space,
        key=key,
        batch_size=batch_size,
        mesh=mesh,
        order_by=order_by,
        reduce=reduce,
        store=store,
        shard=shard,
        executor=executor,
        resume=resume,
        on_error=on_error,
        progress=progress,
        count_steps=count_steps,
        output_coords=output_coords,
        function="plan",
    )
    with no_mesh("plan"):
        made, costs = planned(request)
        return _said(looked(made), costs)


def _said(found: Looked, costs: Callable[[int], CostsBySpan] | None) -> SweepPlan:
    """What a plan comes to, in numbers."""
    coming, left, layout = found.plan, found.left, found.layout
    request = coming.request
    _, size = coming.work.span(0, math.prod(coming.chunks.lengths))
    programs = _programs(coming, costs)
    compiled = sum(there is not None for there in programs)
    return SweepPlan(
        dims=dict((coming.job or request).space.dims),
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
        value_bytes=_value_bytes(coming) if layout is None else _stored(layout),
        memory_bytes=_memory(coming),
        store=None if request.store is None else str(request.store),
    )


def _value_bytes(coming: Plan) -> int | None:
    """What is kept in memory: values, or states while they are merged."""
    if coming.job is None:
        return None
    chunks = coming.chunks
    rows = math.prod(chunks.lengths) if coming.blocks is None else chunks.points
    row = coming.compiled.row
    return rows * sum(math.prod(s.shape) * s.dtype.itemsize for s in row)


def _stored(layout: StoreLayout) -> int:
    """The bytes of all values of a store, before they are compressed."""
    rows = [math.prod(v.inner) * v.dtype.itemsize for v in layout.variables]
    return math.prod(layout.chunks.lengths) * sum(rows)


def _programs(coming: Plan, costs: Callable[[int], CostsBySpan] | None) -> list[Any]:
    """The programs that a sweep needs, each as it is compiled, or `None`."""
    if coming.job is None or coming.job.geometry.size == 0:
        return []
    found = coming.compiled.programs(coming.chunks.points)
    ordering = costs is not None and callable(coming.request.order_by)
    return [*found, *([None] * ordering)]


def _memory(coming: Plan) -> int | None:
    """The bytes that a device holds: of compiled programs, or about those of others."""
    job = coming.job
    if job is None or job.geometry.size == 0:
        return None
    programs = _programs(coming, None)
    known = map(compiled_bytes, (there for there in programs if there is not None))
    found = [size for size in known if size is not None]
    if len(found) == len(programs):
        return max(found)
    for traced, layout in job.needed:
        given = [*job.arrays, *traced.program.constants]
        held = sum(_nbytes(leaf) for leaf in given)
        batch = layout.batch_size * live_bytes(traced.jaxpr)
        if isinstance(coming.blocks, Blocks):
            kept = -(-coming.blocks.most // len(job.devices))
            out = kept * coming.blocks.row_bytes + layout.batch_size * job.row_bytes
        else:
            out = layout.capacity * layout.batch_size * job.row_bytes
        found.append(held + batch + out)
    return max(found)


def _nbytes(leaf: Any) -> int:
    if is_key_array(leaf):
        return math.prod(leaf.shape) * leaf.dtype.itemsize
    return int(getattr(leaf, "nbytes", 0))
