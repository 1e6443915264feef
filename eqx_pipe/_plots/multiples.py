"""Small multiples: a heat map for each position on a third dim."""

import math
from typing import Any

import numpy as np

from .._errors import message
from .heat import heat
from .scale import scale_of, value_text

MOST_PANELS = 36


def multiples(function: str, plt: Any, array: Any, log: frozenset[str]) -> Any:
    """Draws a `DataArray` of three dims, all panels with the same colours.

    Gives the figure and its axes, an array of rows and columns.
    """
    dim = array.dims[2]
    scale = scale_of(array, dim, log)
    n = len(scale.positions)
    if n > MOST_PANELS:
        raise ValueError(
            message(
                function,
                f"`{dim}` has {n} positions, and each would be a panel.",
                f"Draw at most {MOST_PANELS}: let another dim be the last in `dims=`, "
                "or select a value in `sel=`.",
            )
        )
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
        figsize=(2.5 * columns + 1.5, 2.2 * rows + 0.6),
    )
    finite = array.values[np.isfinite(array.values)]
    bounds = (finite.min(), finite.max()) if finite.size else None
    mesh = None
    for k, at in enumerate(scale.order):
        ax = axes.flat[k]
        mesh = heat(ax, array.isel({dim: int(at)}), log, bounds)
        shown = scale.texts[at] if scale.texts else value_text(scale.positions[k])
        ax.set_title(f"{scale.label} = {shown}")
        ax.label_outer()
    for ax in axes.flat[n:]:
        ax.set_axis_off()
    figure.colorbar(mesh, ax=axes, label=str(array.name))
    return figure, axes
