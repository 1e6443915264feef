"""A heat map over two dims."""

from typing import Any

import numpy as np

from .marks import kinds, marks_in
from .roles import Roles
from .scale import scale_of


def heat(ax: Any, array: Any, roles: Roles, log: frozenset[str], colours: Any) -> None:
    """Draws a `DataArray` of two dims; what is no number has a filling of its own."""
    from matplotlib.colors import ListedColormap

    assert roles.y is not None, "please report"
    array = array.transpose(roles.y.dim, roles.x.dim)
    x, y = (scale_of(array, p.dim, p.column, log) for p in (roles.x, roles.y))
    found = kinds(array)[np.ix_(y.order, x.order)]
    values = np.asarray(array.values)[np.ix_(y.order, x.order)]
    shown = np.ma.masked_where(found > 0, values)
    ax.pcolormesh(x.edges, y.edges, shown, norm=colours.norm, cmap=colours.cmap)
    for kind, mark in marks_in(found):
        where = np.ma.masked_where(found != kind, np.zeros(found.shape))
        cells = mark.cell()
        cells["cmap"] = ListedColormap([cells.pop("facecolor")])
        # Not `pcolormesh`, which has no hatches.
        ax.pcolor(x.edges, y.edges, where, **cells)
    x.show(ax, "x")
    y.show(ax, "y")
