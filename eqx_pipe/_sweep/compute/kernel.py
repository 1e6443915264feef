"""The compiled part of a sweep: on every device, a loop of vectorised microbatches.

The host passes the first point, and the number of batches of each device. These numbers
are data, since XLA removes a loop of fixed length if there is one microbatch, and the
same point then rounds differently. The values of axes and the arrays that the function
closes over are data, too. Devices do not communicate, so none waits for another.

If some points may take longer than others, points are dealt to the devices in turn: if
the cost rises or falls along the points, no device gets the expensive half. Otherwise a
device has consecutive points, whose outputs are copied in one piece.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, UInt32

from ..._jaxprs import evaluate
from ..._spaces import advance, point_key
from ..._tree import as_data
from ..._types import Key
from ..._vmap import batch_of, filled, flat_mesh, over_devices


@dataclasses.dataclass(frozen=True)
class Partition:
    """The points of each device: a consecutive `run` of batches, or dealt in turn."""

    batch_size: int
    num_devices: int
    run: int | None = None

    @property
    def stride(self) -> int:
        """The distance between two points of a device."""
        return self.num_devices if self.run is None else 1

    def own(self, device: int) -> slice:
        """Return the points of a device."""
        if self.run is None:
            return slice(device, None, self.num_devices)
        each = self.run * self.batch_size
        return slice(device * each, (device + 1) * each)

    def count(self, device: int, points: int) -> int:
        """Return the number of batches of a device; the last may be partial."""
        return -(-len(range(points)[self.own(device)]) // self.batch_size)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Everything that is compiled into a program, besides the function.

    `lengths` are the lengths of the grid's dims, and `key_dims` the dims that are
    folded into keys of points. `capacity` is the maximum number of microbatches that
    one call computes on one device. `listed` is true if points are passed in a table.
    Points are `dealt` to the devices in turn, or else in runs of consecutive points.
    Each device is `unsplit`, that is, limited to one thread, if every core has work.

    If blocks of points are computed, in batches of `within` points, a block takes the
    place of a point. With `key_digits`, keys are folded with the digits in a table for
    each of the `key_dims`, not with the positions.
    """

    lengths: tuple[int, ...]
    key_dims: tuple[int, ...]
    batch_size: int
    capacity: int
    devices: tuple[Any, ...]
    listed: bool = False
    dealt: bool = True
    unsplit: bool = False
    within: int | None = None
    key_digits: bool = False

    @property
    def points_at_once(self) -> int:
        """The number of points that a device vectorises."""
        return self.batch_size if self.within is None else self.within

    def partition(self, points: int) -> Partition:
        """Return the partition of some points over the devices."""
        across = self.batch_size * len(self.devices)
        # Use integers: `jnp.ceil` of a quotient is float32, and wrong from 2^24 on.
        run = None if self.dealt else (points + (across - 1)) // across
        return Partition(self.batch_size, len(self.devices), run)


@ft.lru_cache(maxsize=256)
def everywhere(devices: tuple[Any, ...]) -> NamedSharding:
    """Return the placement of the kernel's arguments: a copy on every device.

    The mesh is internal, not the user's.
    """
    return NamedSharding(flat_mesh(devices), P())


def each_its_rows(layout: Layout) -> NamedSharding:
    """Return the placement of an array that has rows for each device."""
    mesh = flat_mesh(layout.devices)
    return NamedSharding(mesh, P(mesh.axis_names))


FIRST, COUNT, LAST, DIGITS = range(4)
"""The columns of `control`: the first point of a device, its number of batches, the
last point of the call, and the digits of the first point.
"""


def control_of(
    partition: Partition, points: int, digits: Sequence[int]
) -> UInt32[np.ndarray, "devices control"]:
    """Return the control of a call of a kernel: a row for each device.

    It is computed on the host, since a few divisions of scalars take XLA as long to
    compile as a small user function.
    """
    rows = np.empty((partition.num_devices, DIGITS + len(digits)), np.uint32)
    rows[:, :LAST] = _shares(partition, points)
    rows[:, LAST] = (points - 1) % 2**32
    rows[:, DIGITS:] = digits
    return rows


@ft.lru_cache(maxsize=256)
def _shares(partition: Partition, points: int) -> UInt32[np.ndarray, "devices 2"]:
    devices = range(partition.num_devices)
    own = [(partition.own(d).start, partition.count(d, points)) for d in devices]
    return np.array(own, np.uint32)


Lane: TypeAlias = Callable[[UInt32[Array, "..."]], list[Any]]
"""The leaves of a row, from its offset in the call or its row in the table."""


class Given(NamedTuple):
    """The arguments of a program, which are the same for all devices."""

    arrays: list[Any]
    constants: list[Any]
    key: Key | None
    init: Sequence[Any] = ()
    reducer_constants: Sequence[Any] = ()
    key_digits: Sequence[Any] = ()


LaneOf: TypeAlias = Callable[[UInt32[Array, "1 control"], Given], Lane]
"""A function that makes a `Lane` from a device's row of `control` and the arguments."""


def build(
    lane_of: LaneOf, outputs: Sequence[jax.ShapeDtypeStruct], layout: Layout
) -> Any:
    """Return the function to compile, under `jax.jit`.

    `outputs` are the leaves of a row as they are stored: PRNG keys as raw data, since
    keys cannot be written into a buffer. The function is called as `kernel(control,
    table, given)`, and returns an array for each leaf, in which block d has the rows of
    device d. If points are listed, `table` has those of each device, in whole batches.
    """

    def on_device(
        control: UInt32[Array, "1 control"],
        table: UInt32[Array, "rows columns"] | None,
        given: Given,
    ) -> list[Array]:
        at = lane_of(control, given)

        def lane(row: UInt32[Array, "..."]) -> list[Array]:
            return as_stored(at(row), outputs)

        def microbatch(number: UInt32[Array, ""]) -> list[Array]:
            return batch_of(lane, rows_of_batch(layout, control, table, number))

        empty, begin = buffers(layout, outputs), ft.partial(begin_of, layout)
        return filled(microbatch, lambda: read(control, COUNT), empty, begin)

    own, same = each_its_rows(layout), everywhere(layout.devices)
    mapped = over_devices(on_device, flat_mesh(layout.devices), (True, True, False))
    return jax.jit(mapped, in_shardings=(own, own, same))


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
    table: UInt32[Array, "rows columns"] | None,
    number: UInt32[Array, ""],
) -> UInt32[Array, "batch ..."]:
    """Return the rows of a batch: offsets in the call, or rows of the table."""
    batch, stride = layout.batch_size, layout.partition(0).stride
    if table is not None:
        size, zero = (batch, table.shape[1]), np.uint32(0)
        return jax.lax.dynamic_slice(table, (begin_of(layout, number), zero), size)
    pace = np.uint32(batch * stride)
    first = read(control, FIRST) + jax.lax.mul(number, pace)
    offsets = lanes(first, batch, stride)
    return up_to(read(control, LAST), offsets)


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

    def lane_of(control: UInt32[Array, "1 control"], given: Given) -> Lane:
        inputs, n = inputs_of(control, given), len(given.constants)
        return lambda row: evaluate(jaxpr, given.constants, inputs(row)[n:])

    return lane_of


def point_inputs(layout: Layout) -> LaneOf:
    """Return the function that makes a lane of the inputs of a point's program.

    They are its constants, and then its arguments.
    """

    def inputs_of(control: UInt32[Array, "1 control"], given: Given) -> Lane:
        def at(row: UInt32[Array, "..."]) -> list[Any]:
            dims = range(len(layout.lengths))
            if layout.listed:
                digits = [row[k] for k in dims]
            else:
                start = [read(control, DIGITS + k) for k in dims]
                digits = advance(start, row, layout.lengths)
            positions = [jax.lax.convert_element_type(d, np.int32) for d in digits]
            args = [*given.arrays, *positions]
            if given.key is not None:
                folded = [digits[k] for k in layout.key_dims]
                if layout.key_digits:
                    pairs = zip(given.key_digits, folded, strict=True)
                    at = jax.lax.dynamic_index_in_dim
                    folded = [
                        at(table, digit, keepdims=False) for table, digit in pairs
                    ]
                args.append(point_key(given.key, folded))
            return [*given.constants, *args]

        return at

    return inputs_of
