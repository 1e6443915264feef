"""The compiled part of a sweep: on every device, a loop of vectorised microbatches.

The host asks for points from some start, and tells each device how many batches fall to
it. All of that is data: with a loop of fixed length XLA removes the loop where there is
one microbatch, and the same point rounds differently. So are the axes' values and the
arrays that the function closes over. No device waits for another: there is no
communication.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from ..._jaxprs import evaluate
from ..._spaces import advance, point_key
from ..._tree import as_data
from ..._types import Key
from ..._vmap import batch_of, filled, flat_mesh, over_devices
from .partition import (
    COUNT,
    DIGITS,
    FIRST,
    LAST,
    SHIFT,
    Layout,
    each_its_row,
    everywhere,
    is_narrow,
)


def build(jaxpr: Any, outputs: Sequence[jax.ShapeDtypeStruct], layout: Layout) -> Any:
    """The function to compile, under `jax.jit`.

    `outputs` are the output leaves as they are stored: a PRNG key cannot be written
    into a buffer, its data can. The function is called as
    `kernel(control, table, arrays, constants, key)`, and gives for each output leaf an
    array in which device d's points are the d-th block. `table` holds the points
    where they are listed.
    """
    batch, partition = layout.batch_size, layout.partition(0)

    def on_device(
        ctl: UInt32[Array, "1 control"],
        table: UInt32[Array, "rows columns"] | None,
        arrays: list[Array],
        constants: list[Array],
        key: Key | None,
    ) -> list[Array]:
        at = point_function(jaxpr, layout, ctl, arrays, constants, key)

        def lane(point_id: UInt32[Array, "..."]) -> list[Array]:
            # An output that is a constant comes out as a literal.
            return [
                jnp.asarray(as_data(out), leaf.dtype)
                for out, leaf in zip(at(point_id), outputs, strict=True)
            ]

        def microbatch(number: UInt32[Array, ""]) -> list[Array]:
            first = partition.begin(told(ctl, FIRST), told(ctl, SHIFT), number)
            if layout.listed and partition.stride == 1:
                assert table is not None  # a tail has the last row again
                size = batch, table.shape[1]
                rows = jax.lax.dynamic_slice(table, (first, np.uint32(0)), size)
                return batch_of(lane, rows)
            offsets = lanes(first, batch, partition.stride)
            chosen = up_to(told(ctl, LAST), offsets)
            if layout.listed:
                assert table is not None
                chosen = table.at[chosen].get(mode="promise_in_bounds")
            return batch_of(lane, chosen)

        empty = [
            jax.lax.full((layout.capacity * batch, *leaf.shape), 0, leaf.dtype)
            for leaf in outputs
        ]
        return filled(
            microbatch,
            lambda: told(ctl, COUNT),
            empty,
            lambda number: jax.lax.mul(number, np.uint32(batch)),
        )

    return on_each(on_device, layout, 5)


# What is read of `control` is read within the loop, where XLA makes it a part of other
# steps. Outside each number would be a step of its own to compile.


def told(ctl: UInt32[Array, "1 control"], column: int) -> UInt32[Array, ""]:
    """A number that a device is told, from its row of `control`."""
    return jax.lax.squeeze(
        jax.lax.slice_in_dim(ctl, column, column + 1, axis=1), [0, 1]
    )


def lanes(
    first: UInt32[Array, ""], batch: int, stride: int = 1
) -> UInt32[Array, " batch"]:
    """The offsets of the points of a batch."""
    within = jax.lax.iota(np.uint32, batch)
    if stride > 1:
        within = jax.lax.mul(within, np.full(batch, stride, np.uint32))
    return jax.lax.add(jax.lax.broadcast(first, (batch,)), within)


def up_to(
    last: UInt32[Array, ""], offsets: UInt32[Array, " batch"]
) -> UInt32[Array, " batch"]:
    """The same where a tail repeats the last point; the host cuts it off."""
    return jax.lax.min(offsets, jax.lax.broadcast(last, offsets.shape))


def on_each(
    on_device: Callable[..., list[Array]], layout: Layout, arguments: int
) -> Any:
    """A function that every device runs by itself, under `jax.jit`.

    `on_device` takes so many arguments: its row of `control`, and others that are the
    same for all. What the devices give is put together in their order.
    """
    own, same = each_its_row(layout), everywhere(layout)
    mapped = over_devices(on_device, flat_mesh(layout.devices), arguments)
    return jax.jit(mapped, in_shardings=(own, *[same] * (arguments - 1)))


def point_function(
    jaxpr: Any,
    layout: Layout,
    ctl: UInt32[Array, "1 control"],
    arrays: list[Array],
    constants: list[Array],
    key: Key | None,
) -> Callable[[UInt32[Array, "..."]], list[Any]]:
    """Return the output leaves as a function of a point: its offset, or its row."""

    def at(point_id: UInt32[Array, "..."]) -> list[Any]:
        dims = range(len(layout.lengths))
        if layout.listed and is_narrow(layout):
            zeros = [np.uint32(0)] * len(dims)
            digits = advance(zeros, point_id[0], layout.lengths)
        elif layout.listed:
            digits = [point_id[k] for k in dims]
        else:
            start = [told(ctl, DIGITS + k) for k in dims]
            digits = advance(start, point_id, layout.lengths)
        positions = [jax.lax.convert_element_type(d, np.int32) for d in digits]
        args = [*arrays, *positions]
        if key is not None:
            args.append(point_key(key, [digits[k] for k in layout.key_dims]))
        return evaluate(jaxpr, constants, args)

    return at
