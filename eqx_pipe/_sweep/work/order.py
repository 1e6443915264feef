"""The order in which the points of a grid share batches.

A `while_loop` of a batch runs until its slowest lane has finished. On a grid the number
of steps often varies along some dims, and hardly along others. So the steps of points
on a few lines along each dim are counted, and the dims along which lanes wait least
vary fastest among the points that are computed together.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int64, UInt32

from ..._jaxprs import work
from ..trace.trace import Traced

# The order must not depend on devices or batch sizes, so that all processes find the
# same. A line extends over about as many points as a few batches.
_LINES = 8
_POINTS, _EXTENT = 16, 256

# Steps are counted from as many points on, with as much work in all. To compile a
# program that counts takes as long as the first call, and longer than it saves there.
_COUNTED = ((2**15, 2**32), (2**13, 2**42))

_WORTH = 1.1
"""The ratio of executed steps from which on another order is worth a table of points.

Points in another order are listed, which takes up to a tenth of the time of a cheap
point.
"""


def may_wait(traced: Traced, lengths: Sequence[int]) -> bool:
    """Return whether lanes may wait on a grid for longer than it takes to count."""
    size, is_grid = math.prod(lengths), sum(n > 1 for n in lengths) > 1
    if not (is_grid and traced.analysis.waits) or traced.has_effects:
        return False
    enough = (size >= n and size * work(traced.jaxpr) >= w for n, w in _COUNTED)
    return any(enough)


def lines(lengths: Sequence[int]) -> Int64[np.ndarray, "dims lines _points"]:
    """Return the indices of the points of some lines along each dim of a grid."""
    dims, number = np.arange(len(lengths)), np.arange(_LINES)[:, None]
    # Odd multiples permute the lines, so that those of two dims do not rise together.
    part = 2 * (number * (2 * dims + 1) % _LINES) + 1
    middle = part * np.array(lengths, np.int64) // (2 * _LINES)
    at = np.tile(middle[:, None], (len(lengths), 1, _POINTS, 1))
    for dim, length in enumerate(lengths):
        extent = min(length, _EXTENT)
        first = np.minimum(middle[:, dim, None], length - extent)
        at[dim, ..., dim] = first + np.arange(_POINTS) * extent // _POINTS
    return np.asarray(np.ravel_multi_index(tuple(np.moveaxis(at, -1, 0)), lengths))


def order_of(
    lengths: Sequence[int], steps: UInt32[np.ndarray, "dims lines _points"]
) -> list[int] | None:
    """Return the dims of a grid, the one that should vary fastest last.

    `steps` has the steps of points on lines along each dim. The result is `None` if no
    dim should vary faster than one that varies within a batch as written.
    """
    lanes = steps + 1.0
    waits = lanes.max(axis=2).sum(axis=1) / lanes.mean(axis=2).sum(axis=1)
    dims = [dim for dim, length in enumerate(lengths) if length > 1]
    within = [dim for dim in dims if math.prod(lengths[dim + 1 :]) < _EXTENT]
    pairs = [(slow, fast) for fast in within for slow in dims if slow < fast]
    is_worth = any(_WORTH * waits[slow] < waits[fast] for slow, fast in pairs)
    return np.argsort(-waits, kind="stable").tolist() if is_worth else None


def ranks(
    lengths: Sequence[int], order: Sequence[int], index: Int64[np.ndarray, " points"]
) -> Float[np.ndarray, " points"]:
    """Return numbers that rise along some points of a grid whose dims are in order."""
    digits = np.unravel_index(index, lengths)
    turned = [digits[dim] for dim in order], [lengths[dim] for dim in order]
    return np.ravel_multi_index(*turned).astype(np.float64)
