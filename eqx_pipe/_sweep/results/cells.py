"""The results of a sweep that reduces some dims: one for each cell of the others."""

import equinox as eqx
import numpy as np
from jaxtyping import Int64

from ..._types import PyTree


class CellPoints(eqx.Module):
    """The number of points that each cell of a sweep was reduced from.

    `points` is how many were computed, fewer than there are where a reducer stopped the
    cell; `failed` how many of these failed, and are left out.
    """

    points: Int64[np.ndarray, " cells"]
    failed: Int64[np.ndarray, " cells"]


class CellValues(eqx.Module):
    """The reductions of cells, and of how many points each is, as one output."""

    values: PyTree
    cells: PyTree
