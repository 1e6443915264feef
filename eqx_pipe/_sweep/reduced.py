"""The host's side of a sweep that is reduced as it runs."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._errors import message
from .._reduce.many import Many, as_many
from .._spaces.index import digits_of, strides
from .._spaces.space import Space
from .._types import Key
from .batching import choose_batch_size
from .execute import compiled_once, failures
from .kernel import Layout, control, everywhere
from .program import identify
from .progress import Progress
from .reduced_kernel import (
    Reducing,
    arguments_of,
    block_batches,
    block_rows,
    build_blocks,
    build_merge,
    call_blocks,
    trace_reducers,
)
from .result import SweepResult
from .trace import Traced, trace

_STOP_SECONDS = 0.02
"""About how much work may be done in vain when a reducer stops the sweep."""


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
    _check_plain(space, on_error)
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        batch_size = 1
        values, points = _in_turn(outputs, space.size, reducers, bar)
    else:
        traced = trace("sweep", fn, space, key)
        if batch_size == "auto":
            batch_size = choose_batch_size(traced.jaxpr, space.size, len(devices))
        batch_size = min(int(batch_size), space.size)
        values, points = _in_blocks(
            traced, reducers, space, key, batch_size, devices, bar
        )
    return SweepResult(
        values=values,
        space=space,
        ok=np.broadcast_to(np.True_, (points,)),  # takes no memory
        batch_size=batch_size,
        num_devices=len(devices),
        started=started,
        seconds=time.time() - started,
        points=points,
    )


def _in_blocks(
    traced: Traced,
    reducers: Many,
    space: Space,
    key: Key | None,
    batch_size: int,
    devices: tuple[Any, ...],
    bar: Progress,
) -> tuple[PyTree, int]:
    reducing = trace_reducers(reducers, traced, batch_size)
    batches = block_batches(space.size, batch_size)
    layout = Layout(
        lengths=tuple(space.grid_dims.values()),
        batch_size=batch_size,
        capacity=call_blocks(
            space.size, batch_size * batches, len(devices), reducing.state_bytes
        ),
        devices=devices,
        strided=space.window is not None and space.window[1] != 1,
        wide=space.size > 2**32,
    )
    state, points = _run(traced, reducing, reducers, space, key, layout, batches, bar)
    return reducers.finish(jtu.tree_unflatten(reducing.structure, state)), points


def _run(
    traced: Traced,
    reducing: Reducing,
    reducers: Many,
    space: Space,
    key: Key | None,
    layout: Layout,
    batches: int,
    bar: Progress,
) -> tuple[list[Any], int]:
    """The leaves of the state of all points, or of those up to a stop."""
    start, step, size = space.window or (0, 1, space.size)
    table = strides(step, layout.lengths) if layout.strided else None
    block_points = layout.batch_size * batches
    num_devices = len(layout.devices)

    def told(first: int, points: int, count: int) -> Any:
        digits = digits_of(start + step * first, layout.lengths)
        return control(points, count, first, digits), table, batches

    program = identify(traced.jaxpr)
    absorb, merge = identify(reducing.absorb), identify(reducing.merge)
    given = (traced.arrays, program.constants, key, reducing.init, absorb.constants)
    given = jax.device_put(given, everywhere(layout))
    compute = compiled_once(
        [program, absorb],
        ("blocks", layout),
        lambda: (
            build_blocks(traced, reducing, layout)
            .lower(*arguments_of(told(0, 1, 1), *given))
            .compile()
        ),
    )
    home = jax.sharding.SingleDeviceSharding(layout.devices[0])
    state = jax.device_put(reducing.init, home)
    constants = jax.device_put(merge.constants, home)
    total = layout.capacity * num_devices
    stacked = [jax.ShapeDtypeStruct((total, *s.shape), s.dtype) for s in state]
    rows = block_rows(0, 1, layout.capacity, num_devices)
    join = compiled_once(
        [merge],
        ("merge", total, layout.devices[0]),
        lambda: (
            build_merge(reducing)
            .lower(state, stacked, rows, np.int32(0), np.int32(0), constants)
            .compile()
        ),
    )
    done, pace = 0, 1
    while done < size:
        left = -(-(size - done) // block_points)
        count = min(layout.capacity, bar.count(-(-left // num_devices), block_points))
        count = min(count, pace) if reducers.stops else count
        began = time.perf_counter()
        points = min(size - done, count * num_devices * block_points)
        blocks = -(-points // block_points)
        count = min(count, -(-blocks // num_devices))
        rows = block_rows(blocks, count, layout.capacity, num_devices)
        with failures(done, points):
            states = compute(*arguments_of(told(done, points, count), *given))
            states = jax.block_until_ready(jax.device_put(states, home))
        for first, last in _stretches(blocks, reducers.stops):
            span = (np.int32(first), np.int32(last))
            state = join(state, states, rows, *span, constants)
            after = min(done + last * block_points, size)
            if reducers.stops and reducers.stop(
                jtu.tree_unflatten(reducing.structure, state)
            ):
                bar.done(after - done)
                return state, after
        done += points
        bar.done(points)
        if time.perf_counter() - began < _STOP_SECONDS:
            pace *= 2
    return state, size


def _stretches(blocks: int, one_by_one: bool) -> list[tuple[int, int]]:
    """What is merged at once: everything, or block by block where one may stop."""
    return [(i, i + 1) for i in range(blocks)] if one_by_one else [(0, blocks)]


def _in_turn(
    outputs: Callable[[int], PyTree], size: int, reducers: Many, bar: Progress
) -> tuple[PyTree, int]:
    """The same by the plain loop, one point after the other."""
    first = outputs(0)
    struct = jtu.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), first)
    state = empty = block = reducers.init(struct)
    length, one = block_batches(size, 1), jnp.ones(1, bool)
    for i in range(size):
        output = first if i == 0 else outputs(i)
        batch = jtu.tree_map(lambda x: jnp.asarray(x)[None], output)
        block = reducers.absorb(block, batch, one)
        bar.done(1)
        if (i + 1) % length == 0 or i + 1 == size:
            state, block = reducers.merge(state, block), empty
            if reducers.stops and reducers.stop(state):
                return reducers.finish(state), i + 1
    return reducers.finish(state), size


def _check_plain(space: Space, on_error: str) -> None:
    """Raises for what does not go together with reducers yet."""
    wrong, cure = None, ""
    if len(space.static_dims()) > 0:
        wrong = "the space has `Static` axes"
        cure = "Sweep over each of their values by itself."
    elif on_error != "raise":
        wrong = f'`on_error="{on_error}"` is given'
        cure = "Leave it out, or keep the values and reduce those that are `.ok`."
    if wrong is not None:
        text = f"{wrong} together with `reduce`, which is not possible yet."
        raise ValueError(message("sweep", text, cure))
