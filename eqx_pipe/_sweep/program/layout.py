"""The points of a call of a program: which ones, by which device, in which batches.

A call computes consecutive points, whose indices the device computes from an offset, or
points that are listed in a table.

If some points may take longer than others, points are dealt to the devices in turn: if
the cost rises or falls along the points, no device gets the expensive half. Otherwise a
device has consecutive points, whose outputs are copied in one piece.

The last dim of a grid changes fastest along the lanes (`digits_of` in
`_spaces/space.py`), as in NumPy.
"""

import dataclasses
import functools as ft
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Int64, UInt32

from ..._jaxprs import Literals, filled_in
from ..._run import SMALL_BYTES, copies_of
from ..._spaces import LONGEST, Geometry, digits_of
from ..._tree import nbytes
from ..._types import Key
from ..._vmap import flat_mesh

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
        # The dims of which a run has at least a third of a batch: the slower ones then
        # change a few times in it, and need no column.
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
        if self.listed:
            return self.row_sizes[k] <= NARROW
        dim, first = self.row_dims[k], self.together
        wide = self.run * self.row_sizes[k] > _WIDEST
        return first is not None and dim >= first and not wide

    def row_shape(self, k: int, column: Any) -> tuple[int, ...]:
        """Return the shape of a value of an axis, from its column or table."""
        written = self.has_column(k) and not self.listed
        return column.shape[:-1] if written else column.shape[1:]

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
    made = copies.get((each, run))
    if made is not None:
        # A call copies no arrays of JAX that are on the devices. Most tables are used
        # once, and a copy of its own would take longer.
        if isinstance(made, np.ndarray):
            made = copies[each, run] = jax.device_put(made)
        return made
    # The column goes on after its end as it began, for batches that cross it.
    values = np.asarray(table)
    values = values if values.ndim == 1 else np.moveaxis(values, 0, -1)
    made = np.repeat(values, each, axis=-1)
    count, rest = divmod(run, made.shape[-1])
    made = np.concatenate([*[made] * count, made[..., :rest]], axis=-1)
    if isinstance(table, jax.Array) and made.nbytes <= SMALL_BYTES:
        copies[each, run] = made
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


NARROW = 16
"""The maximum of numbers of a value of an axis that is listed for each point."""

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


@dataclasses.dataclass(frozen=True)
class ByOffset:
    """Consecutive points of the grid, beginning at the index `start`.

    With a layout for blocks they are blocks of `each` points, out of `size` points.
    """

    start: int = 0
    each: int = 1
    size: int = 0

    def kernel_args(self, first: int, points: int, layout: Layout) -> Any:
        """Return the control and the table for `points` points from `first` on.

        For blocks, the last point of the call and the batches of a block follow the
        digits.
        """
        begin = first * self.each
        columns = list(digits_of(self.start + begin, layout.lengths))
        if layout.within is not None:
            last = min(points * self.each, self.size - begin) - 1
            columns += [last, self.each // layout.within]
        return control_of(layout.partition(points), points, columns), None

    def rows(self, first: int, last: int) -> slice:
        """Return the rows of the values for the outputs of some points."""
        return slice(first, last)


@dataclasses.dataclass(frozen=True)
class ByTable:
    """The points with given indices in the space, whose outputs go to `places`."""

    geometry: Geometry
    index: Int64[np.ndarray, " points"]
    places: Int64[np.ndarray, " points"]

    def kernel_args(self, first: int, points: int, layout: Layout) -> Any:
        """Return the control and the table for `points` points from `first` on."""
        partition, start = layout.partition(points), [0] * len(layout.lengths)
        size = layout.capacity * layout.batch_size
        # Batches are whole: the last point is repeated at the end of one.
        lanes = np.full((len(layout.devices), size), first + points - 1)
        for device, into in enumerate(lanes):
            mine = np.arange(first, first + points)[partition.own(device)]
            into[: len(mine)] = mine
        digits = self.geometry.digits(self.index[lanes.ravel()])
        values = [
            np.asarray(table)[digits[:, dim]]
            for k, (_, dim, table) in enumerate(self.geometry.tabled)
            if layout.has_column(k)
        ]
        digits = digits.astype(np.uint32)
        return control_of(partition, points, start), (digits, values)

    def of(self, index: Int64[np.ndarray, " points"]) -> "ByTable":
        """Return other points of the same space."""
        return dataclasses.replace(self, index=index, places=index)

    def rows(self, first: int, last: int) -> Int64[np.ndarray, " points"]:
        """Return the rows of the values for the outputs of some points."""
        return self.places[first:last]


Selected: TypeAlias = ByOffset | ByTable
"""The points of a call: consecutive ones, or those of a table."""


class Arguments(NamedTuple):
    """The arguments of a program, which are the same for all devices."""

    arrays: list[Any]
    constants: list[Any]
    key: Key | None
    init: Sequence[Any] = ()
    reducer_constants: Sequence[Any] = ()
    key_digits: Sequence[Any] = ()
    columns: Sequence[Any] = ()


def chunk_capacity(
    size: int,
    batch_size: int,
    num_devices: int,
    outputs: Sequence[jax.ShapeDtypeStruct],
) -> int:
    """Return the maximum number of microbatches in one call on each device."""
    batch_bytes = max(1, sum(map(nbytes, outputs))) * batch_size * num_devices
    needed = -(-size // (batch_size * num_devices))
    return max(1, min(needed, CHUNK_BYTES // batch_bytes))
