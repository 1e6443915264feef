"""A heat map over two dims."""

import numpy as np
from jaxtyping import Bool, Float

from .marks import Mark, kinds, marks_in
from .roles import Roles, place_scale
from .types import Axes, Colours, DataArray

MOST_HATCHED = 2000


def heat(
    ax: Axes, array: DataArray, roles: Roles, log: frozenset[str], colours: Colours
) -> None:
    """Draws a `DataArray` of two dims; what is no number has a filling of its own."""
    from matplotlib.colors import ListedColormap

    assert roles.y is not None, "please report"
    array = array.transpose(roles.y.dim, roles.x.dim)
    x, y = (place_scale(array, place, log) for place in (roles.x, roles.y))
    found = kinds(array)[np.ix_(y.order, x.order)]
    values = np.asarray(array.values)[np.ix_(y.order, x.order)]
    shown = np.ma.masked_where(found > 0, values)
    ax.pcolormesh(x.edges, y.edges, shown, norm=colours.norm, cmap=colours.cmap)
    for kind, mark in marks_in(found):
        where = np.ma.masked_where(found != kind, np.zeros(found.shape))
        ax.pcolormesh(x.edges, y.edges, where, cmap=ListedColormap([mark.face]))
        if mark.hatch:
            _hatch(ax, x.edges, y.edges, found == kind, mark)
    x.show(ax, "x")
    y.show(ax, "y")


def _hatch(
    ax: Axes,
    x: Float[np.ndarray, " x_edges"],
    y: Float[np.ndarray, " y_edges"],
    where: Bool[np.ndarray, "rows columns"],
    mark: Mark,
) -> None:
    """Hatches cells, neighbours in a row as one; not if that would take seconds."""
    from matplotlib.collections import PolyCollection

    ends = np.diff(np.pad(where, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    (rows, starts), (_, stops) = np.nonzero(ends == 1), np.nonzero(ends == -1)
    if len(rows) > MOST_HATCHED:
        return
    left, right, low, high = x[starts], x[stops], y[rows], y[rows + 1]
    x_, y_ = [left, right, right, left], [low, low, high, high]
    corners = list(np.stack([x_, y_]).transpose(2, 1, 0))
    style = {"facecolors": "none", "edgecolors": mark.color, "linewidths": 0.0}
    ax.add_collection(PolyCollection(corners, hatch=mark.hatch, **style))
