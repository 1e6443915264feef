"""A line over one dim."""

from typing import Any

import numpy as np

from .scale import scale_of


def line(ax: Any, array: Any, log: frozenset[str]) -> None:
    """Draws a `DataArray` of one dim; a NaN is a gap."""
    scale = scale_of(array, array.dims[0], log)
    values = np.asarray(array.values)[scale.order]
    # Dots, since a point between two gaps has no line.
    few = len(values) <= 50 or bool(np.any(np.isnan(values)))
    ax.plot(scale.positions, values, marker="." if few else None)
    scale.show(ax, "x")
    ax.set_ylabel(str(array.name))
