"""The kernel of a program with long loops: a call may also end inside of a batch.

The host passes the number of steps to compute; that is data, too, so one program
computes every point, however often it is stopped. The state of the batch in flight
leaves the device at the end of a call, and is donated to the next one. Leaves that do
not differ between the points of a batch exist once per device, so that a data set is
not copied for each lane: `batched` has which leaves do, exactly as JAX vectorises them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, UInt32

from ..._jaxprs import Split
from ..._vmap import flat_mesh, over_devices
from .layout import COUNT, DIGITS, Arguments, Layout, each_its_rows, everywhere
from .whole import (
    Table,
    as_stored,
    begin_of,
    buffers,
    point_inputs,
    read,
    rows_of_batch,
)

BATCH, LOOP, AT, BUDGET = range(4)
"""The columns of `place`: for each device the batch in flight, its loop, the steps of
that loop so far, and the number of steps to compute.
"""


def build_split(
    split: Split,
    outputs: Sequence[jax.ShapeDtypeStruct],
    layout: Layout,
    batched: Sequence[bool],
) -> Any:
    """Return the function to compile, under `jax.jit`.

    It is like that of `kernel.build`, but is called as `kernel(control, table, place,
    sources, state, args)` and returns a place, a state and the outputs. Rows of
    batches that did not end in the call are 0. In the batch in flight, lane k computes
    the point of the lane `sources[k]`, so that points that failed are left out; the
    state of lane k belongs to that point. `batched` comes from `batched_in`.
    """
    batch, inputs_of = layout.batch_size, point_inputs(layout)
    number_of_loops = len(split.loops)

    def on_device(
        control: UInt32[Array, "1 control"],
        table: Table | None,
        place: UInt32[Array, "1 4"],
        sources: UInt32[Array, " batch"],
        state: list[Array],
        args: Arguments,
    ) -> tuple[Array, list[Array], list[Array]]:
        inputs = inputs_of(control, args)

        def over(f: Callable[..., Any], ids: Any, state: Any, out: Any, *more: Any):
            return _over(f, batch, (ids, state, *more), batched, out)

        def run(k: int, s: Any) -> Any:
            """Begin a loop, or go on in it, for some steps."""
            ids, at, left, state = s
            mine, moving = split.place(k), split.moving(k)

            def begin() -> list[Array]:
                def f(row: Any, state: Any) -> list[Any]:
                    return split.begin(k, inputs(row), state)

                return over(f, ids, state, batched[mine])

            def f(row: Any, state: Any, at: Any, left: Any) -> list[Any]:
                new, steps = split.advance(k, inputs(row), state, at, left)
                return [*new, steps]

            # A loop may end in one call, and the next one begin in another: so whether
            # it begins is data. `state` has all loops; only the leaves of this change.
            now = jax.lax.cond(at == 0, begin, lambda: state[mine])
            state = [*state[: mine.start], *now, *state[mine.stop :]]
            marks = [*batched[moving], False]
            *new, steps = over(f, ids, state, marks, at, left)
            state = [*state[: moving.start], *new, *state[moving.stop :]]
            return state, steps[0]

        def step(s: Any) -> Any:
            number, loop, at, left, state, made = s
            ids = rows_of_batch(layout, control, table, number, args)
            lanes = jnp.arange(batch, dtype=jnp.uint32)
            # Lanes of failed points all repeat the same one, so nothing is gathered.
            moved = (number == place[0, BATCH]) & (sources != lanes)
            other = jnp.max(jnp.where(moved, sources, jnp.uint32(0)))

            def without_failed(x: Array) -> Array:
                one = jax.lax.dynamic_index_in_dim(x, other)
                return jnp.where(moved.reshape(-1, *[1] * (x.ndim - 1)), one, x)

            ids = jax.tree.map(without_failed, ids)
            runs = [lambda s, k=k: run(k, s) for k in range(number_of_loops)]
            now = ids, at, left, state
            if number_of_loops == 1:
                state, steps = runs[0](now)
            else:
                state, steps = jax.lax.switch(loop.astype(jnp.int32), runs, now)
            # A loop that ends with the budget counts as running: the next call finds
            # that it has ended, after no step.
            ended = steps < left
            loop = loop + ended.astype(jnp.uint32)
            done = loop == number_of_loops

            def rows() -> list[Array]:
                def f(row: Any, state: Any) -> list[Any]:
                    return as_stored(split.finish(inputs(row), state), outputs)

                return over(f, ids, state, [batch > 1] * len(outputs))

            def write() -> list[Array]:
                origin = [begin_of(layout, number), *[np.uint32(0)] * 64]
                return [
                    jax.lax.dynamic_update_slice(b, r, origin[: b.ndim])
                    for b, r in zip(made, rows(), strict=True)
                ]

            # Only when a batch is done: `finish` may take long, and its rows are final.
            made = jax.lax.cond(done, write, lambda: made)
            # It does not become 0 again: a `while_loop` may run longer than 2^32 steps.
            at = jnp.where(ended, jnp.uint32(0), jnp.maximum(at, at + steps))
            loop = jnp.where(done, jnp.uint32(0), loop)
            number = number + done.astype(jnp.uint32)
            return number, loop, at, left - steps, state, made

        def goes_on(s: Any) -> Array:
            return (s[0] < read(control, COUNT)) & (s[3] > 0)

        empty = buffers(layout, outputs)
        first = *(place[0, k] for k in (BATCH, LOOP, AT, BUDGET)), state, empty
        *now, state, made = jax.lax.while_loop(goes_on, step, first)
        return jnp.stack(now)[None], state, made

    mine, same = each_its_rows(layout), everywhere(layout.devices)
    parted = (True, True, True, True, True, False)
    mapped = over_devices(on_device, flat_mesh(layout.devices), parted)
    placed = tuple(mine if each else same for each in parted)
    return jax.jit(mapped, in_shardings=placed, donate_argnums=(4,))


def state_of(
    split: Split, layout: Layout, batched: Sequence[bool]
) -> list[jax.ShapeDtypeStruct]:
    """Return the structs of the state of all devices."""
    devices, batch = len(layout.devices), layout.batch_size
    return [
        jax.ShapeDtypeStruct(
            (devices * (batch if has_lanes else 1), *leaf.shape), leaf.dtype
        )
        for leaf, has_lanes in zip(split.state, batched, strict=True)
    ]


def _over(
    f: Callable[..., Any],
    batch: int,
    args: tuple[Any, ...],
    batched: Sequence[bool],
    out: Sequence[bool],
) -> list[Any]:
    """Return `f(row, state, *more)` over a batch of rows; only some leaves have lanes.

    Leaves without lanes have a leading axis of length 1.
    """
    ids, state, *more = args
    if batch == 1:
        one = jax.tree.map(lambda x: x[0], ids)
        made = f(one, [leaf[0] for leaf in state], *more)
        return [jnp.expand_dims(leaf, 0) for leaf in made]
    state = [
        leaf if has_lanes else leaf[0]
        for leaf, has_lanes in zip(state, batched, strict=True)
    ]
    axes = [0 if has_lanes else None for has_lanes in batched]
    ins = 0, axes, *[None] * len(more)
    outs = [0 if has_lanes else None for has_lanes in out]
    made = jax.vmap(f, in_axes=ins, out_axes=outs)(ids, state, *more)
    return [
        leaf if has_lanes else jnp.expand_dims(leaf, 0)
        for leaf, has_lanes in zip(made, out, strict=True)
    ]


def batched_in(split: Split, layout: Layout, args: Arguments) -> list[bool]:
    """Return for each leaf of the state whether JAX vectorises it over a batch.

    `args` has structs.

    JAX itself answers: a `custom_vmap` function gets to know which arguments it has
    with a batch axis. A mark too many would add lanes to values that libraries require
    to have none (`nonbatchable` of Equinox), and one too few would raise.
    """
    batch = layout.batch_size
    batched = [False] * len(split.slots)
    if batch == 1:
        return batched
    width = (len(layout.lengths),) if layout.listed else ()
    values = []
    if layout.listed or layout.together is not None:
        shapes = [(batch, *layout.row_shape(k, x)) for k, x in enumerate(args.columns)]
        pairs = zip(shapes, args.columns, strict=True)
        values = [jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in pairs]
    ids = jax.ShapeDtypeStruct((batch, *width), jnp.uint32), values
    number = jax.ShapeDtypeStruct((), jnp.uint32)
    control = jax.ShapeDtypeStruct((1, DIGITS + len(layout.lengths)), jnp.uint32)

    def marks(f: Callable[..., Any]) -> list[bool]:
        seen: list[bool] = []

        @custom_vmap
        def spy(*leaves: Any) -> Any:
            return leaves

        @spy.def_vmap
        def _(_: Any, batched: Any, *leaves: Any) -> Any:
            seen[:] = batched
            return leaves, tuple(batched)

        def vectorised(ids: Any, state: Any, control: Any, args: Any, *n: Any) -> Any:
            def lane(row: Any, state: Any) -> Any:
                leaves = f(point_inputs(layout)(control, args)(row), state, *n)
                seen[:] = [False] * len(leaves)
                return spy(*leaves)

            axes = [0 if has_lanes else None for has_lanes in batched]
            return jax.vmap(lane, in_axes=(0, axes))(ids, state)

        state = [
            jax.ShapeDtypeStruct(
                ((batch,) if has_lanes else ()) + leaf.shape, leaf.dtype
            )
            for leaf, has_lanes in zip(split.state, batched, strict=True)
        ]
        jax.eval_shape(vectorised, ids, state, control, args, number, number)
        return seen

    for k in range(len(split.loops)):

        def begin(inputs: Any, state: Any, at: Any, left: Any, k: int = k) -> Any:
            return split.begin(k, inputs, state)

        def advance(inputs: Any, state: Any, at: Any, left: Any, k: int = k) -> Any:
            return split.advance(k, inputs, state, at, left)[0]

        batched[split.place(k)] = marks(begin)
        while (now := marks(advance)) != batched[split.moving(k)]:
            batched[split.moving(k)] = now
    return batched
