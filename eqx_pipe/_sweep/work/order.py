"""The order in which the points of a grid share batches.

A `while_loop` of a batch runs until its slowest lane has finished. On a grid the number
of steps often varies along some dims, and hardly along others. So the steps of points
on a few lines along each dim are counted, and the dims along which lanes wait least
vary fastest among the points that are computed together.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64, UInt32

# The order must not depend on devices or batch sizes, so that all processes find the
# same. A line extends over about as many points as a few batches.
_LINES = 8
_POINTS, _EXTENT = 16, 256

_WORTH = 1.1
"""The ratio of executed steps from which on another order is worth a table of points.

Points in another order are listed, which takes up to a tenth of the time of a cheap
point.
"""


def lines(lengths: Sequence[int]) -> list[Int64[np.ndarray, "lines _points"]]:
    """Return the indices of the points of some lines along each dim of a grid."""
    dims, number = np.arange(len(lengths)), np.arange(_LINES)[:, None]
    # Odd multiples permute the lines, so that those of two dims do not rise together.
    part = 2 * (number * (2 * dims + 1) % _LINES) + 1
    middle = part * np.array(lengths, np.int64) // (2 * _LINES)
    found = []
    for dim, length in enumerate(lengths):
        extent = min(length, _EXTENT)
        count = min(extent, _POINTS)
        along = np.arange(count) * extent // count
        at = np.repeat(middle[:, None, :], count, axis=1)
        at[..., dim] = np.minimum(at[..., dim], length - extent) + along
        found.append(np.ravel_multi_index(tuple(np.moveaxis(at, -1, 0)), lengths))
    return found


def order_of(
    lengths: Sequence[int], steps: Sequence[UInt32[np.ndarray, "lines _points"]]
) -> tuple[int, ...] | None:
    """Return the dims of a grid, the one that should vary fastest last.

    `steps` has the steps of points on lines along each dim. The result is `None` if no
    dim should vary faster than one that varies within a batch as written.
    """
    waits: dict[int, float] = {}
    for dim, along in enumerate(steps):
        if lengths[dim] > 1:
            work = along.astype(np.float64) + 1
            waits[dim] = float(work.max(axis=1).sum() / work.mean(axis=1).sum())
    within = [dim for dim in waits if math.prod(lengths[dim + 1 :]) < _EXTENT]
    is_worth = any(
        slow < fast and _WORTH * waits[slow] < waits[fast]
        for slow in waits
        for fast in within
    )
    single = [dim for dim in range(len(lengths)) if dim not in waits]
    order = *single, *sorted(waits, key=waits.__getitem__, reverse=True)
    return order if is_worth else None


def turned(
    lengths: Sequence[int], order: Sequence[int], rows: range, most: int
) -> Iterator[Int64[np.ndarray, " points"]]:
    """Yield consecutive rows of a grid in parts of about `most`, each in an order.

    A part is a range of positions on one dim, at all positions of the dims after it.
    """
    each = [math.prod(lengths[dim + 1 :]) for dim in range(len(lengths))]
    first = rows.start

    def positions(dim: int) -> int:
        """Return the number of positions of a part on a dim; 1 or more on the last."""
        left = lengths[dim] - first // each[dim] % lengths[dim]
        room = min(rows.stop - first, max(1, most)) // each[dim]
        return 0 if first % each[dim] else min(left, room)

    while first < rows.stop:
        dim = next(dim for dim in range(len(lengths)) if positions(dim))
        box = [positions(dim), *lengths[dim + 1 :]]
        part = np.arange(first, first + math.prod(box)).reshape(box)
        yield part.transpose([k - dim for k in order if k >= dim]).ravel()
        first += part.size
