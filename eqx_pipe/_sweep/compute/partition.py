"""The points that each device computes in a call of a kernel.

Where points may take longer than others, they go round the devices one by one: if cost
rises or falls along the points, no device gets the expensive half. Else a device has a
run of neighbours, and their outputs are copied in one piece.
"""

import dataclasses
import functools as ft
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import UInt32

from ..._vmap import flat_mesh


@dataclasses.dataclass(frozen=True)
class Partition:
    """The points of each device: neighbours in a `run` of batches, or dealt in turn."""

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
        """Return the number of batches of a device; the last may not be a full one."""
        return -(-len(range(points)[self.own(device)]) // self.batch_size)


@dataclasses.dataclass(frozen=True)
class Layout:
    """All of a sweep that is compiled in, besides the function.

    `lengths` are those of the grid's dims, of which the keys of points are made of
    `key_dims`; `capacity` is the most microbatches that one call computes on one
    device; `listed` says that points are handed in one by one. Points are `dealt` to
    the devices in turn, or in runs of neighbours. Each device is `unsplit`, kept to one
    thread, where there is work for every core.

    Where blocks of points are computed, in batches of `within` points, a block is what
    a point is elsewhere.
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

    @property
    def points_at_once(self) -> int:
        """The number of points that a device vectorises."""
        return self.batch_size if self.within is None else self.within

    def partition(self, points: int) -> Partition:
        """Return which device gets which of some points."""
        across = self.batch_size * len(self.devices)
        # In integers: `jnp.ceil` of a quotient is float32, and wrong from 2^24 on.
        run = None if self.dealt else (points + (across - 1)) // across
        return Partition(self.batch_size, len(self.devices), run)


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


def each_its_rows(layout: Layout) -> NamedSharding:
    """The placement of an array that has rows for each device."""
    mesh = flat_mesh(layout.devices)
    return NamedSharding(mesh, P(mesh.axis_names))


FIRST, COUNT, LAST, DIGITS = range(4)
"""The columns of `control`: the first point of a device, how many batches it gets, the
last point of the call, and the digits of the first.
"""


def control(
    partition: Partition, points: int, digits: Sequence[int]
) -> UInt32[np.ndarray, "devices control"]:
    """Return the control of a call of a kernel: a row for each device.

    All of it is computed here, since for XLA a few divisions of single numbers are as
    much to compile as a small function of the user's.
    """
    told = np.empty((partition.num_devices, DIGITS + len(digits)), np.uint32)
    told[:, :LAST] = _shares(partition, points)
    told[:, LAST] = (points - 1) % 2**32
    told[:, DIGITS:] = digits
    return told


@ft.lru_cache(maxsize=256)
def _shares(partition: Partition, points: int) -> UInt32[np.ndarray, "devices 2"]:
    devices = range(partition.num_devices)
    own = [(partition.own(d).start, partition.count(d, points)) for d in devices]
    return np.array(own, np.uint32)
