"""In what order a kernel gets the points of a part, and where their outputs go.

Neighbours in the grid are counted off on the device. Others are listed, a row for each
point, dealt to the devices batch by batch: so points that were sorted by their cost
are a fair share for every device.
"""

import dataclasses
from typing import Any

import numpy as np

from .._spaces.geometry import Geometry
from .._spaces.index import digits_of, strides
from .kernel import Layout, control, is_narrow, row_width
from .select import Part, grid_indices


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """`size` points from the grid index `start` on, `step` apart."""

    start: int
    step: int
    size: int

    def told(self, first: int, points: int, count: int, layout: Layout) -> Any:
        """What the kernel is told to compute `points` points from `first` on."""
        digits = digits_of(self.start + self.step * first, layout.lengths)
        table = strides(self.step, layout.lengths) if layout.strided else None
        return control(points, count, first, digits), table

    def places(
        self, first: int, points: int, count: int, layout: Layout, device: int
    ) -> Any:
        """Where in the values the outputs of a device go."""
        full = count * layout.batch_size
        return slice(
            first + min(device * full, points), first + min((device + 1) * full, points)
        )

    def indices(self, first: int, last: int) -> np.ndarray:
        """The indices in the space of some points."""
        return np.arange(first, last)


@dataclasses.dataclass(frozen=True)
class Listed:
    """The points of a part of a space."""

    geometry: Geometry
    part: Part

    @property
    def size(self) -> int:
        """How many points there are."""
        return self.part.size

    def told(self, first: int, points: int, count: int, layout: Layout) -> Any:
        """As for neighbours, with a row of numbers for each point."""
        rows = layout.capacity * layout.batch_size
        table = np.zeros((rows * len(layout.devices), row_width(layout)), np.uint32)
        for device in range(len(layout.devices)):
            index = self._dealt(first, points, layout, device)
            flat = grid_indices(self.geometry, index)
            at = device * count * layout.batch_size
            into = table[at : at + len(index)]
            if is_narrow(layout):
                into[:, 0], into[:, 1] = flat, index
                continue
            into[:, -2] = (index % 2**32).astype(np.uint32)
            into[:, -1] = (index // 2**32).astype(np.uint32)
            for k in reversed(range(len(layout.lengths))):
                into[:, k] = (flat % layout.lengths[k]).astype(np.uint32)
                flat = flat // layout.lengths[k]
        return control(points, count, 0, [0] * len(layout.lengths)), table

    def places(
        self, first: int, points: int, count: int, layout: Layout, device: int
    ) -> Any:
        """As for neighbours; a tail that repeats a point writes its value again."""
        return self._dealt(first, points, layout, device)

    def indices(self, first: int, last: int) -> np.ndarray:
        """The indices in the space of some points."""
        return self.part.indices(first, last)

    def _dealt(
        self, first: int, points: int, layout: Layout, device: int
    ) -> np.ndarray:
        """The points of one device.

        Batches are dealt to the devices to and fro, so that where each costs more than
        the one before, no device always gets the dearer one.
        """
        batch_size, num_devices = layout.batch_size, len(layout.devices)
        index = self.part.indices(first, first + points)
        batches = -(-points // batch_size)
        if over := batches * batch_size - points:
            index = np.concatenate([index, np.repeat(index[-1:], over)])
        rounds = np.arange(-(-batches // num_devices))
        turn = np.where(rounds % 2 == 0, device, num_devices - 1 - device)
        mine = rounds * num_devices + turn
        return index.reshape(batches, batch_size)[mine[mine < batches]].reshape(-1)
