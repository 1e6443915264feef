"""The program of a sweep: on every device, a loop of vectorised microbatches.

The host passes the first point, and the number of batches of each device. These numbers
are data, since XLA removes a loop of fixed length if there is one microbatch, and the
same point then rounds differently. The values of axes and the arrays that the function
closes over are data, too. Devices do not communicate, so none waits for another.
"""

import functools as ft
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from ..._jaxprs import evaluate
from ..._keys import point_key
from ..._spaces import advance, take
from ..._tree import as_data
from ..._vmap import batch_of, filled, flat_mesh, over_devices
from .layout import (
    COUNT,
    DIGITS,
    FIRST,
    LAST,
    NARROW,
    Arguments,
    Layout,
    each_its_rows,
    everywhere,
)

Row: TypeAlias = tuple[UInt32[Array, "..."], list[Array]]
"""The offset of a row in the call, or its row in the table, and values of axes there.

There are no values if the lane takes them from the tables.
"""

Table: TypeAlias = tuple[UInt32[Array, "rows columns"], list[Any]]
"""The digits of listed points, and the values of axes there."""

Lane: TypeAlias = Callable[[Row], list[Any]]
"""The function that returns the leaves of a row."""


LaneOf: TypeAlias = Callable[[UInt32[Array, "1 control"], Arguments], Lane]
"""A function that makes a `Lane` from a device's row of `control` and the arguments."""


def build(
    lane_of: LaneOf, outputs: Sequence[jax.ShapeDtypeStruct], layout: Layout
) -> Any:
    """Return the function to compile, under `jax.jit`.

    `outputs` are the leaves of a row as they are stored: PRNG keys as raw data, since
    keys cannot be written into a buffer. The function is called as `kernel(control,
    table, args)`, and returns an array for each leaf, in which block d has the
    rows of device d. If points are listed, `table` has those of each device, in whole
    batches.
    """

    def on_device(
        control: UInt32[Array, "1 control"], table: Table | None, args: Arguments
    ) -> list[Array]:
        at = lane_of(control, args)

        def lane(row: Row) -> list[Array]:
            return as_stored(at(row), outputs)

        def microbatch(number: UInt32[Array, ""]) -> list[Array]:
            return batch_of(lane, rows_of_batch(layout, control, table, number, args))

        empty, begin = buffers(layout, outputs), ft.partial(begin_of, layout)
        return filled(microbatch, lambda: read(control, COUNT), empty, begin)

    rows, same = each_its_rows(layout), everywhere(layout.devices)
    mapped = over_devices(on_device, flat_mesh(layout.devices), (True, True, False))
    return jax.jit(mapped, in_shardings=(rows, rows, same))


# Read `control` within the loop, where XLA fuses the reads with other steps. Outside of
# it, each number would be a separate step to compile.


def read(control: UInt32[Array, "1 control"], column: int) -> UInt32[Array, ""]:
    """Read a number from a device's row of `control`."""
    return jax.lax.squeeze(
        jax.lax.slice_in_dim(control, column, column + 1, axis=1), [0, 1]
    )


def begin_of(layout: Layout, number: UInt32[Array, ""]) -> UInt32[Array, ""]:
    """Return the first row of a device's batch."""
    return jax.lax.mul(number, np.uint32(layout.batch_size))


def rows_of_batch(
    layout: Layout,
    control: UInt32[Array, "1 control"],
    table: Table | None,
    number: UInt32[Array, ""],
    args: Arguments,
) -> Row:
    """Return the rows of a batch: offsets in the call, or rows of the table."""
    batch, stride = layout.batch_size, layout.partition(0).stride
    if table is not None:
        begin = begin_of(layout, number)
        digits, values = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, begin, batch), table
        )
        written, rows = iter(values), []
        for k, dim in enumerate(layout.row_dims):
            mine = ft.partial(take, args.columns[k])
            listed = layout.has_column(k)
            rows.append(next(written) if listed else jax.vmap(mine)(digits[:, dim]))
        return digits, rows
    pace = np.uint32(batch * stride)
    first = read(control, FIRST) + jax.lax.mul(number, pace)
    offsets = lanes(first, batch, stride)
    last = read(control, LAST)
    if layout.within is not None:  # a block has its own points
        return up_to(last, offsets), []
    return consecutive(layout, control, first, last, offsets, args)


def consecutive(
    layout: Layout,
    control: UInt32[Array, "1 control"],
    first: UInt32[Array, ""],
    last: UInt32[Array, ""],
    offsets: UInt32[Array, " batch"],
    args: Arguments,
) -> Row:
    """Return some offsets up to the last point, and the values of axes there.

    The dims from `together` on have columns, of which consecutive points are a slice.
    The others change after each run of these dims, a few times in a batch.
    """
    whole = up_to(last, offsets)
    together, lengths = layout.together, layout.lengths
    if together is None or not layout.row_dims:
        return whole, []
    start = [read(control, DIGITS + k) for k in range(len(lengths))]
    digits = advance(start, first, lengths)
    within, inner = jnp.uint32(0), lengths[together:]
    for digit, length in zip(digits[together:], inner, strict=True):
        within = within * np.uint32(length) + digit
    run, batch = math.prod(inner), len(offsets)
    ahead = offsets - first
    runs = [digits]
    if together:
        for _ in range((layout.reach + 2 * run - 3) // run):
            runs.append(_next(runs[-1], lengths, together))
    valid, rows = offsets <= last, []
    for k, (column, dim) in enumerate(zip(args.columns, layout.row_dims, strict=True)):
        size = layout.row_shape(k, column)
        shape = (batch, *[1] * len(size))
        if layout.has_column(k):
            # Together, the numbers of a short vector would be padded on a TPU.
            alone = 0 < len(size) and math.prod(size) <= NARROW
            ends = np.ndindex(*size) if alone else [(0,) * len(size)]
            picked = []
            for at in ends:
                origin = [*map(jnp.uint32, at), within]
                shape = *((1,) * len(size) if alone else size), layout.reach
                row = jax.lax.dynamic_slice(column, origin, shape)
                row = row[..., :: layout.reach // batch]
                picked.append(jnp.where(valid, row, row[..., :1]))
            row = jnp.concatenate([x.ravel() for x in picked]) if alone else picked[0]
            rows.append(jnp.moveaxis(row.reshape(*size, batch), -1, 0))
            continue
        if dim >= together:
            value_at: Any = ft.partial(_from_table, column, dim, start, lengths)
            row = jax.vmap(value_at)(whole)
        else:
            row = take(column, runs[0][dim])[None]
            for n, each in enumerate(runs[1:], 1):
                begun = ahead >= np.uint32(n * run) - within
                later = take(column, each[dim])[None]
                row = jnp.where(begun.reshape(shape), later, row)
            row = jnp.broadcast_to(row, (batch, *size))
        rows.append(jnp.where(valid.reshape(shape), row, row[:1]))
    return whole, rows


def _from_table(
    table: Any, dim: int, start: list[Any], lengths: Sequence[int], offset: Any
) -> Any:
    """Return the value of an axis at a point, given the digits of the first one."""
    return take(table, advance(start, offset, lengths)[dim])


def _next(digits: list[Any], lengths: Sequence[int], end: int) -> list[Any]:
    """Return the digits one further on the dims before `end`."""
    return [*advance(digits[:end], jnp.uint32(1), lengths[:end]), *digits[end:]]


def buffers(layout: Layout, outputs: Sequence[jax.ShapeDtypeStruct]) -> list[Array]:
    """Return the arrays that receive the rows of a device."""
    size = layout.capacity * layout.batch_size
    return [jax.lax.full((size, *leaf.shape), 0, leaf.dtype) for leaf in outputs]


def as_stored(
    row: Sequence[Any], outputs: Sequence[jax.ShapeDtypeStruct]
) -> list[Array]:
    """Return the leaves of a row as they are stored; a constant output is a literal."""
    pairs = zip(row, outputs, strict=True)
    return [jnp.asarray(as_data(out), leaf.dtype) for out, leaf in pairs]


def lanes(
    first: UInt32[Array, ""], batch: int, stride: int = 1
) -> UInt32[Array, " batch"]:
    """Return the offsets of the points of a batch."""
    within = jax.lax.iota(np.uint32, batch)
    if stride > 1:
        within = jax.lax.mul(within, np.full(batch, stride, np.uint32))
    return jax.lax.add(jax.lax.broadcast(first, (batch,)), within)


def up_to(
    last: UInt32[Array, ""], offsets: UInt32[Array, " batch"]
) -> UInt32[Array, " batch"]:
    """Return offsets padded with the last point; the host drops the padding."""
    return jax.lax.min(offsets, jax.lax.broadcast(last, offsets.shape))


def point_lane(jaxpr: Any, layout: Layout) -> LaneOf:
    """Return the function that makes the lane of a point."""
    inputs_of = point_inputs(layout)

    def lane_of(control: UInt32[Array, "1 control"], args: Arguments) -> Lane:
        inputs, constants = inputs_of(control, args), layout.constants(args)
        n = len(constants)
        return lambda row: evaluate(jaxpr, constants, inputs(row)[n:])

    return lane_of


def point_inputs(layout: Layout) -> LaneOf:
    """Return the function that makes a lane of the inputs of a point's program.

    They are its constants, and then its arguments.
    """

    def inputs_of(control: UInt32[Array, "1 control"], args: Arguments) -> Lane:
        def at(of: Row) -> list[Any]:
            row, values = of
            dims = range(len(layout.lengths))
            if layout.listed:
                digits = [row[k] for k in dims]
            else:
                start = [read(control, DIGITS + k) for k in dims]
                digits = advance(start, row, layout.lengths)
            positions = [jax.lax.convert_element_type(d, np.int32) for d in digits]
            if not values:
                tables = zip(args.columns, layout.row_dims, strict=True)
                values = [take(table, positions[dim]) for table, dim in tables]
            inputs = [*args.arrays, *values, *positions]
            if args.key is not None:
                folded = [digits[k] for k in layout.key_dims]
                if layout.key_digits:
                    pairs = zip(args.key_digits, folded, strict=True)
                    at = jax.lax.dynamic_index_in_dim
                    folded = [
                        at(table, digit, keepdims=False) for table, digit in pairs
                    ]
                inputs.append(point_key(args.key, folded))
            return [*layout.constants(args), *inputs]

        return at

    return inputs_of
