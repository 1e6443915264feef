"""A sweep that is reduced as it runs: which way, and what comes back."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ..._reduce.many import Many, as_many
from ..._spaces.space import Space
from ..._types import Key, PyTree
from ..compute.failure import some_output
from ..compute.parts import prepare
from ..compute.progress import Progress
from ..results.result import SweepResult
from ..tracing.call import fn_name
from .kernel import block_batches
from .run import Reduced, run
from .states import Blocks


def sweep_reduced(
    reduce: Any,
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    batch_size: Any,
    devices: tuple[Any, ...],
    outputs: Callable[[int], PyTree],
    bar: Progress,
    on_error: str = "raise",
) -> SweepResult:
    """The result of a sweep that is reduced.

    `outputs(i)` is the output at one point, for the plain loop.
    """
    started = time.time()
    reducers = as_many("sweep", reduce)
    isolated = on_error == "isolate"
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        batch_size = 1
        done = _in_turn(outputs, space.size, reducers, bar, isolated)
    else:
        job = prepare(
            fn, space, key, batch_size, devices, costs=False, isolated=isolated
        )
        batch_size = job.batch_size
        done = run(Blocks(job, reducers), bar, isolated)
    ok = np.broadcast_to(np.True_, (done.points,))  # takes no memory
    if len(done.failed):
        ok = np.ones(done.points, bool)
        ok[done.failed] = False
    return SweepResult(
        values=done.values,
        space=space,
        ok=ok,
        batch_size=batch_size,
        num_devices=len(devices),
        started=started,
        seconds=time.time() - started,
        points=done.points,
        function=fn_name(fn),
    )


def _in_turn(
    outputs: Callable[[int], PyTree],
    size: int,
    reducers: Many,
    bar: Progress,
    isolated: bool,
) -> Reduced:
    """The same by the plain loop, one point after the other."""

    def attempt(i: int) -> PyTree | None:
        try:
            return outputs(i)
        except Exception:
            if not isolated:
                raise
            return None

    # Up to the first point that tells the form of an output; each is computed once.
    found = [attempt(0)]
    while found[-1] is None and len(found) < size:
        found.append(attempt(len(found)))
    first = some_output(outputs) if found[-1] is None else found[-1]
    failed: list[int] = []
    struct = jtu.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), first)
    state = empty = block = reducers.init(struct)
    length = block_batches(size, 1)
    for i in range(size):
        output = found[i] if i < len(found) else attempt(i)
        ok = output is not None
        if not ok:
            failed.append(i)
        batch = jtu.tree_map(lambda x: jnp.asarray(x)[None], output if ok else first)
        block = reducers.absorb(block, batch, jnp.array([ok]))
        bar.done(1)
        if (i + 1) % length == 0 or i + 1 == size:
            state, block = reducers.merge(state, block), empty
            if reducers.stops and reducers.stop(state):
                size = i + 1
                break
    return Reduced(reducers.finish(state), size, np.array(failed, np.int64))
