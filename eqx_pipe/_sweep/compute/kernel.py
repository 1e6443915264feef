"""The compiled part of a sweep: on every device, a loop of vectorised microbatches.

The host asks for points from some start, and tells each device how many batches it
gets. All of that is data: with a loop of fixed length XLA removes the loop where there
is one microbatch, and the same point rounds differently. So are the axes' values and
the arrays that the function closes over. No device waits for another: there is no
communication.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

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
    Layout,
    each_its_rows,
    everywhere,
    is_narrow,
)

Lane: TypeAlias = Callable[[UInt32[Array, "..."]], list[Any]]
"""The leaves of a row, from its offset in the call or its row in the table."""


class Given(NamedTuple):
    """The arguments of a program, which are the same for all devices."""

    arrays: list[Any]
    constants: list[Any]
    key: Key | None
    init: Sequence[Any] = ()
    reducer_constants: Sequence[Any] = ()


LaneOf: TypeAlias = Callable[[UInt32[Array, "1 control"], Given], Lane]
"""Makes a `Lane` of a device's row of `control` and the arguments."""


def build(
    lane_of: LaneOf, outputs: Sequence[jax.ShapeDtypeStruct], layout: Layout
) -> Any:
    """Return the function to compile, under `jax.jit`.

    `outputs` are the leaves of a row as they are stored: a PRNG key cannot be written
    into a buffer, its data can. The function is called as `kernel(control, table,
    given)`, and returns for each leaf an array in which device d's rows are the
    d-th block. Where points are listed `table` has those of each device, in whole
    batches.
    """
    batch, partition = layout.batch_size, layout.partition(0)

    def on_device(
        ctl: UInt32[Array, "1 control"],
        table: UInt32[Array, "rows columns"] | None,
        given: Given,
    ) -> list[Array]:
        at = lane_of(ctl, given)

        def lane(row: UInt32[Array, "..."]) -> list[Array]:
            # An output that is a constant comes out as a literal.
            return [
                jnp.asarray(as_data(out), leaf.dtype)
                for out, leaf in zip(at(row), outputs, strict=True)
            ]

        def begin(number: UInt32[Array, ""]) -> UInt32[Array, ""]:
            return jax.lax.mul(number, np.uint32(batch))

        def microbatch(number: UInt32[Array, ""]) -> list[Array]:
            if table is not None:
                size, zero = (batch, table.shape[1]), np.uint32(0)
                return batch_of(
                    lane, jax.lax.dynamic_slice(table, (begin(number), zero), size)
                )
            pace = np.uint32(batch * partition.stride)
            first = told(ctl, FIRST) + jax.lax.mul(number, pace)
            offsets = lanes(first, batch, partition.stride)
            return batch_of(lane, up_to(told(ctl, LAST), offsets))

        empty = [
            jax.lax.full((layout.capacity * batch, *leaf.shape), 0, leaf.dtype)
            for leaf in outputs
        ]
        return filled(microbatch, lambda: told(ctl, COUNT), empty, begin)

    own, same = each_its_rows(layout), everywhere(layout)
    mapped = over_devices(on_device, flat_mesh(layout.devices), (True, True, False))
    return jax.jit(mapped, in_shardings=(own, own, same))


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


def point_lane(jaxpr: Any, layout: Layout) -> LaneOf:
    """Return what makes the lane of a point."""

    def lane_of(ctl: UInt32[Array, "1 control"], given: Given) -> Lane:
        def at(row: UInt32[Array, "..."]) -> list[Any]:
            dims = range(len(layout.lengths))
            if layout.listed and is_narrow(layout):
                zeros = [np.uint32(0)] * len(dims)
                digits = advance(zeros, row[0], layout.lengths)
            elif layout.listed:
                digits = [row[k] for k in dims]
            else:
                start = [told(ctl, DIGITS + k) for k in dims]
                digits = advance(start, row, layout.lengths)
            positions = [jax.lax.convert_element_type(d, np.int32) for d in digits]
            args = [*given.arrays, *positions]
            if given.key is not None:
                args.append(point_key(given.key, [digits[k] for k in layout.key_dims]))
            return evaluate(jaxpr, given.constants, args)

        return at

    return lane_of
