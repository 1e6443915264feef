"""Colours for numbers, the same in all panels, and their bar."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Shaped

from .._errors import value_error
from .types import Colours, Figure

COLOURS = ("cmap", "norm", "vmin", "vmax")


def colours_of(
    function: str, values: Shaped[np.ndarray, "..."], options: Mapping[str, Any]
) -> Any:
    """A matplotlib `ScalarMappable` from the finite ones of some values to colours.

    `options` are `cmap`, `norm`, `vmin` and `vmax`, `None` where they are left out.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    norm, ends = options["norm"], (options["vmin"], options["vmax"])
    if isinstance(norm, Normalize):
        if ends != (None, None):
            raise value_error(
                function,
                "`norm` is given together with `vmin` or `vmax`.",
                f"Give them to the norm: `{type(norm).__name__}(vmin=..., ...)`.",
            )
        norm = copy.copy(norm)  # the caller's keeps its own limits
    colours = ScalarMappable(norm, options["cmap"])
    if ends != (None, None):
        colours.set_clim(*ends)
    # A logarithm has no colour for zero, which is below all others.
    colours.set_cmap(colours.cmap.with_extremes(bad=colours.cmap(0.0)))
    finite = values[np.isfinite(values)]
    colours.norm.autoscale_None(finite if finite.size else np.array([0.0, 1.0]))
    colours.set_array(finite)
    return colours


def bar(figure: Figure, colours: Colours, axes: Any, label: str) -> None:
    """A colour bar, pointed where values lie beyond its ends."""
    values, norm = colours.get_array(), colours.norm
    below = bool(values.size and values.min() < norm.vmin)
    above = bool(values.size and values.max() > norm.vmax)
    extend = ("neither", "min", "max", "both")[below + 2 * above]
    figure.colorbar(colours, ax=axes, label=label, extend=extend)
