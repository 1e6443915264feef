"""A heat map over two dims."""

from typing import Any

import numpy as np

from .scale import scale_of


def heat(ax: Any, array: Any, log: frozenset[str], bounds: Any = None) -> Any:
    """Draws a `DataArray` of two dims, the first along x; a NaN is a blank cell.

    Gives what a colour bar is made of. `bounds` are those of the colours.
    """
    x, y = (scale_of(array, dim, log) for dim in array.dims)
    values = np.asarray(array.values)[np.ix_(x.order, y.order)]
    low, high = bounds or (None, None)
    mesh = ax.pcolormesh(
        x.edges, y.edges, np.ma.masked_invalid(values).T, vmin=low, vmax=high
    )
    x.show(ax, "x")
    y.show(ax, "y")
    return mesh
