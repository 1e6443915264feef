"""The points that a call of a program computes: consecutive, or listed in a table.

The device computes the indices of consecutive points from an offset.
"""

import dataclasses
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int64

from ..._spaces import Geometry, digits_of
from .layout import Layout, control_of


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
