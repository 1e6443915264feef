"""The order of points in a call of a kernel, and the device that computes each.

Where points may take longer than others, each device gets one batch in each round, in
one round from the first device to the last, in the next the other way: if cost rises or
falls along the points, no device gets the more expensive half. Where a loop refills its
lanes a device has but a few large batches, and points go round one by one. Else all
batches of a device are neighbours, and their outputs are copied in one piece.
"""

import dataclasses
import functools as ft
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import UInt32

from ..._vmap import flat_mesh


@dataclasses.dataclass(frozen=True)
class Partition:
    """The points of each device: batches in turn, or `singly` point by point.

    With `run` every device gets so many batches at once, which are neighbours. In the
    methods the numbers of a device and of its batches may be arrays.
    """

    batch_size: int
    num_devices: int
    run: int | None = None
    singly: bool = False

    @property
    def stride(self) -> int:
        """The distance between two points of a batch."""
        return self.num_devices if self.singly else 1

    def place(self, device: Any, turn: Any) -> Any:
        """The place of a device in a round, or the device of that place."""
        # `num_devices - 1 - device` in odd rounds, written without a condition.
        return device + turn % 2 * (self.num_devices - 1 - 2 * device)

    def start(self, device: Any, number: Any) -> Any:
        """The first point of a device's batch with some number."""
        if self.singly:
            return number * (self.batch_size * self.num_devices) + device
        if self.run is not None:
            return (device * self.run + number) * self.batch_size
        place = number * self.num_devices + self.place(device, number)
        return place * self.batch_size

    def count(self, device: Any, points: int) -> Any:
        """Return the number of batches of a device; the last may not be a full one."""
        if self.run is not None:
            turns, most = 0, self.run
        else:
            turns, most = points // (self.batch_size * self.num_devices), 1
        left = points - self.start(device, turns)
        more = (left + self.stride * self.batch_size - 1) // (
            self.stride * self.batch_size
        )
        return turns + np.clip(more, 0, most)

    @property
    def turns(self) -> bool:
        """True if a device has another place in odd rounds than in even ones."""
        return self.num_devices > 1 and self.run is None and not self.singly

    def begin(self, first: Any, shift: Any, number: Any) -> Any:
        """`start` as a device works it out, from its row of `control`."""
        pace = self.batch_size * (1 if self.run is not None else self.num_devices)
        at = first + number * np.uint32(pace)
        return at + (number & np.uint32(1)) * shift if self.turns else at

    def stretches(
        self, rows: np.ndarray, given: np.ndarray, device: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Views of the rows that a device gets, with those of what it gave for them.

        `rows` has one row for each point, in order, `given` one for each point of the
        device, batch after batch.
        """
        each, others = self.batch_size, self.num_devices
        if others == 1:
            yield rows, given[: len(rows)]
            return
        if self.run is not None:
            first = self.start(device, 0)
            mine = rows[first : first + each * self.run]
            yield mine, given[: len(mine)]
            return
        turns = len(rows) // (each * others)
        order = (each, others) if self.singly else (others, each)
        rounds = rows[: turns * each * others].reshape(turns, *order, *rows.shape[1:])
        mine = given[: turns * each].reshape(turns, each, *given.shape[1:])
        if self.singly:
            yield rounds[:, :, device], mine
        else:
            # In all rounds of one direction a device has the same place, so two strided
            # views do, and not one for each round.
            for odd in (0, 1):
                yield rounds[odd::2, self.place(device, odd)], mine[odd::2]
        first = self.start(device, turns)
        last = rows[first : first + each * self.stride : self.stride]
        yield last, given[turns * each : turns * each + len(last)]


@dataclasses.dataclass(frozen=True)
class Layout:
    """All of a sweep that is compiled in, besides the function.

    `lengths` are those of the grid's dims, of which the keys of points are made of
    `key_dims`; `capacity` is the most microbatches that
    one call computes on one device; `listed` says that points are handed in
    one by one. Devices get runs of batches, batches, or points; each is `unsplit`, kept
    to one thread, where there is work for every core.
    """

    lengths: tuple[int, ...]
    key_dims: tuple[int, ...]
    batch_size: int
    capacity: int
    devices: tuple[Any, ...]
    listed: bool = False
    split: Literal["runs", "batches", "points"] = "batches"
    unsplit: bool = False

    def partition(self, points: int) -> Partition:
        """Return which device gets which of some points."""
        across = self.batch_size * len(self.devices)
        # In integers: `jnp.ceil` of a quotient is float32, and wrong from 2^24 on.
        run = (points + (across - 1)) // across if self.split == "runs" else None
        return Partition(
            self.batch_size, len(self.devices), run, self.split == "points"
        )


def is_narrow(layout: Layout) -> bool:
    """Return whether 32 bits are enough for the index of any point of the grid."""
    return math.prod(layout.lengths) <= 2**32


def row_width(layout: Layout) -> int:
    """Return how many numbers a listed point has.

    Its index in the grid; or, where 32 bits are not enough, the positions on its dims.
    """
    return 1 if is_narrow(layout) else len(layout.lengths)


def everywhere(layout: Layout) -> NamedSharding:
    """The placement of the kernel's arguments: a copy on every device.

    The mesh is our own, whatever the user's looks like.
    """
    return NamedSharding(flat_mesh(layout.devices), P())


def each_its_row(layout: Layout) -> NamedSharding:
    """The placement of an array that has a row for each device."""
    mesh = flat_mesh(layout.devices)
    return NamedSharding(mesh, P(mesh.axis_names))


FIRST, COUNT, SHIFT, LAST, DIGITS = range(5)
"""The columns of `control`: where a device's first batch begins, how many it gets, how
far odd ones are from where they would be if it kept its place; the last point, and the
digits of the first.
"""


def control(
    partition: Partition, points: int, digits: Sequence[int], split: int | None = None
) -> UInt32[np.ndarray, "devices control"]:
    """Return the control of a call of a kernel: a row for each device.

    `split` is the number of what is split over devices, if that is not the points. All
    of it is worked out here, since for XLA a few divisions of single numbers are
    as much to compile as a small function of the user's.
    """
    told = np.empty((partition.num_devices, DIGITS + len(digits)), np.uint32)
    told[:, :LAST] = _shares(partition, points if split is None else split)
    told[:, LAST] = (points - 1) % 2**32
    told[:, DIGITS:] = digits
    return told


@ft.lru_cache(maxsize=256)
def _shares(partition: Partition, points: int) -> UInt32[np.ndarray, "devices 3"]:
    device = np.arange(partition.num_devices)
    away = partition.num_devices - 1 - 2 * device
    columns = (
        partition.start(device, 0),
        partition.count(device, points),
        away * partition.batch_size,
    )
    # Modulo 2^32, as the device adds them.
    return np.stack(np.broadcast_arrays(*columns), axis=1).astype(np.uint32)
