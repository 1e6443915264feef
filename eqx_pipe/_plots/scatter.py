"""Points in a plane, coloured by their value."""

from typing import Any

import numpy as np

from .marks import kinds, marks_in
from .roles import Roles
from .scale import scale_of


def scatter(
    ax: Any, array: Any, roles: Roles, log: frozenset[str], colours: Any
) -> None:
    """Draws a `DataArray` of one dim over two of its coordinates.

    The largest values lie on top; what is no number has a marker of its own.
    """
    dim, columns = roles.x.dim, roles.x.columns
    names = (roles.x.column, roles.y.column) if roles.y else columns[:2]
    x, y = (scale_of(array, dim, name, log, spread=True) for name in names)
    values, found = np.asarray(array.values), kinds(array)
    size = float(np.clip(3000 / len(values), 6, 50))
    good = np.flatnonzero(found == 0)
    good = good[np.argsort(values[good], kind="stable")]
    ax.scatter(
        x.at[good],
        y.at[good],
        size,
        values[good],
        norm=colours.norm,
        cmap=colours.cmap,
        linewidths=0.3,
        edgecolors="0.3",
    )
    for kind, mark in marks_in(found):
        here = found == kind
        ax.scatter(x.at[here], y.at[here], **mark.dots(max(size, 16.0)))
    x.show(ax, "x")
    y.show(ax, "y")
