"""In what order a kernel gets the points of a part, and where their outputs go.

Neighbours in the grid are counted off on the device. Others are listed, a row for each
point.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int64

from ..._spaces.geometry import Geometry
from ..._spaces.index import digits_of
from .partition import Layout, control, is_narrow, row_width
from .select import Part, grid_indices


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """Points that follow each other in the grid from the index `start` on."""

    start: int = 0

    def kernel_args(self, first: int, points: int, layout: Layout) -> Any:
        """What the kernel is told to compute `points` points from `first` on."""
        return control(points, digits_of(self.start + first, layout.lengths)), None

    def places(self, first: int, last: int) -> slice | Int64[np.ndarray, " points"]:
        """Where in the values of all points the outputs of some go."""
        return slice(first, last)

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

    def kernel_args(self, first: int, points: int, layout: Layout) -> Any:
        """As for neighbours, with a row of numbers for each point."""
        flat = grid_indices(self.geometry, self.indices(first, first + points))
        rows = layout.capacity * layout.batch_size * len(layout.devices)
        table = np.zeros((rows, row_width(layout)), np.uint32)
        # Batches are whole: in the tail of one its last point is there again.
        ends = -(-points // layout.batch_size) * layout.batch_size
        into = table[:points]
        if is_narrow(layout):
            into[:, 0] = flat
        else:
            for k in reversed(range(len(layout.lengths))):
                into[:, k] = (flat % layout.lengths[k]).astype(np.uint32)
                flat = flat // layout.lengths[k]
        table[points:ends] = into[-1]
        return control(points, [0] * len(layout.lengths)), table

    def places(self, first: int, last: int) -> slice | Int64[np.ndarray, " points"]:
        """As for neighbours."""
        return self.indices(first, last)

    def indices(self, first: int, last: int) -> np.ndarray:
        """The indices in the space of some points."""
        return self.part.indices(first, last)
