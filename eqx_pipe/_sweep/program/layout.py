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
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, UInt32

from ..._jaxprs import Literals, evaluate, filled_in
from ..._run import SMALL_BYTES, copies_of
from ..._spaces import LONGEST, advance, point_key, take
from ..._tree import as_data
from ..._types import Key
from ..._vmap import batch_of, filled, flat_mesh, over_devices

Place: TypeAlias = slice | np.ndarray
"""Some rows, as a NumPy index."""

CHUNK_BYTES = 64 * 1024 * 1024
"""The approximate size of the outputs of one call of the kernel, over all devices.

A point counts as at least one byte, so that offsets within a call are below 2^31 (one
batch on each device may be larger, but has at most 2^30 points).
"""


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

    `row_dims` are the dims of the axes whose values are in tables, and `row_sizes` the
    numbers in a value. `literals` are the
    small arrays that the function closes over; if they are `None`, all are arguments.
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
    row_dims: tuple[int, ...] = ()
    row_sizes: tuple[int, ...] = ()
    literals: Literals | None = None

    def constants(self, args: "Arguments") -> list[Any]:
        """Return the arrays that the function closes over."""
        if self.literals is None:
            return list(args.constants)
        return filled_in(self.literals, args.constants)

    @property
    def points_at_once(self) -> int:
        """The number of points that a device vectorises."""
        return self.batch_size if self.within is None else self.within

    @property
    def reach(self) -> int:
        """The number of consecutive points from the first to after the last lane."""
        return self.points_at_once * (1 if self.within else self.partition(0).stride)

    @ft.cached_property
    def together(self) -> int | None:
        """The first of the dims whose values are written out in columns, or `None`."""
        if self.listed:
            return None
        points = 1
        for dim in reversed(range(len(self.lengths))):
            points *= self.lengths[dim]
            if points + self.reach > LONGEST:
                return None
            if dim == 0 or 3 * points >= self.reach:
                return dim
        return None

    @property
    def run(self) -> int:
        """The number of points of a column."""
        return math.prod(self.lengths[self.together :]) + self.reach - 1

    def has_column(self, k: int) -> bool:
        """Return whether the values of an axis are written out for each point.

        If they are large arrays, each point reads its own from the table.
        """
        dim, first = self.row_dims[k], self.together
        wide = self.run * self.row_sizes[k] > _WIDEST
        return first is not None and dim >= first and not wide

    def row_shape(self, k: int, column: Any) -> tuple[int, ...]:
        """Return the shape of a value of an axis, from its column or table."""
        return column.shape[:-1] if self.has_column(k) else column.shape[1:]

    def columns(self, tables: Sequence[Any]) -> list[Any]:
        """Return what a program reads of some tables, one for each of `row_dims`."""
        if self.together is None:
            return list(tables)
        return [
            _column(table, math.prod(self.lengths[self.row_dims[k] + 1 :]), self.run)
            if self.has_column(k)
            else table
            for k, table in enumerate(tables)
        ]

    def partition(self, points: int) -> Partition:
        """Return the partition of some points over the devices."""
        across = self.batch_size * len(self.devices)
        # Use integers: `jnp.ceil` of a quotient is float32, and wrong from 2^24 on.
        run = None if self.dealt else (points + (across - 1)) // across
        return Partition(self.batch_size, len(self.devices), run)


def _column(table: Any, each: int, run: int) -> Any:
    """Return the values of `run` points, of which `each` share a position.

    The points are the last axis, since a TPU pads a short last axis to 128 numbers.
    """
    copies = copies_of(table) if isinstance(table, jax.Array) else {}
    if (each, run) in copies:
        return copies[each, run]
    made = np.repeat(np.moveaxis(np.asarray(table), 0, -1), each, axis=-1)
    count, rest = divmod(run, made.shape[-1])
    made = np.concatenate([*[made] * count, made[..., :rest]], axis=-1)
    if isinstance(table, jax.Array) and made.nbytes <= SMALL_BYTES:
        # A call copies no arrays of JAX that are on the devices.
        made = copies[each, run] = jnp.asarray(made)
    return made


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


_WIDEST = 2**24
"""The maximum of numbers of a column: 64 MiB of 32 bits."""

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
    shares = [(partition.own(d).start, partition.count(d, points)) for d in devices]
    return np.array(shares, np.uint32)


Row: TypeAlias = tuple[UInt32[Array, "..."], list[Array]]
"""The offset of a row in the call, or its row in the table, and values of axes there.

There are no values if the lane takes them from the tables.
"""

Lane: TypeAlias = Callable[[Row], list[Any]]
"""The function that returns the leaves of a row."""


class Arguments(NamedTuple):
    """The arguments of a program, which are the same for all devices."""

    arrays: list[Any]
    constants: list[Any]
    key: Key | None
    init: Sequence[Any] = ()
    reducer_constants: Sequence[Any] = ()
    key_digits: Sequence[Any] = ()
    columns: Sequence[Any] = ()


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
        control: UInt32[Array, "1 control"],
        table: UInt32[Array, "rows columns"] | None,
        args: Arguments,
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
    table: UInt32[Array, "rows columns"] | None,
    number: UInt32[Array, ""],
    args: Arguments,
) -> Row:
    """Return the rows of a batch: offsets in the call, or rows of the table."""
    batch, stride = layout.batch_size, layout.partition(0).stride
    if table is not None:
        size, zero = (batch, table.shape[1]), np.uint32(0)
        return jax.lax.dynamic_slice(table, (begin_of(layout, number), zero), size), []
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
            origin = [*[jnp.uint32(0)] * len(size), within]
            row = jax.lax.dynamic_slice(column, origin, (*size, layout.reach))
            row = row[..., :: layout.reach // batch]
            rows.append(jnp.moveaxis(jnp.where(valid, row, row[..., :1]), -1, 0))
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


def nbytes(leaves: Iterable[Any]) -> int:
    """Return the bytes of arrays or structs, which may have PRNG keys."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def chunk_capacity(
    size: int,
    batch_size: int,
    num_devices: int,
    outputs: Sequence[jax.ShapeDtypeStruct],
) -> int:
    """Return the maximum number of microbatches in one call on each device."""
    batch_bytes = max(1, nbytes(outputs)) * batch_size * num_devices
    needed = -(-size // (batch_size * num_devices))
    return max(1, min(needed, CHUNK_BYTES // batch_bytes))
