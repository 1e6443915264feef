"""The results of a sweep that reduces some dims: one for each cell."""

import equinox as eqx
import numpy as np
from jaxtyping import Int64

from ..._types import PyTree


class CellPoints(eqx.Module):
    """The number of points in the reduction of each cell.

    `points` is the number of computed points, fewer than the cell has if a reducer
    stopped it; `failed` is the number of these that failed and are left out.
    """

    points: Int64[np.ndarray, " cells"]
    failed: Int64[np.ndarray, " cells"]


class CellValues(eqx.Module):
    """The reductions of cells and their numbers of points, as one output."""

    values: PyTree
    cells: PyTree
