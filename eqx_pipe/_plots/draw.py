"""The picture that fits a dataset: line, heat map or points, in panels."""

import copy
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Shaped

from .._errors import describe_value, nearest, optional, type_error, value_error
from .paint import Panel, heat, line, scatter
from .pick import pick, places_of
from .scale import (
    FEW,
    FUNCTION,
    KIND,
    Axes,
    Dataset,
    Scale,
    is_number,
    label_of,
    scale_of,
    sort,
)

MOST_NAMES = 40
MOST_PANELS = 36

_ROLES = ("x", "y", "hue", "row", "col")
_COLOURS = ("cmap", "norm", "vmin", "vmax")
_FLAGS = {"vmin": -0.5, "vmax": 1.5}
"""The ends of the colours of False and True, of which each has one."""

_WHERE = "Say where each dim goes: `x=`, `y=`, `hue=`, `row=`, `col=`."
_INSTEAD = {
    "dims": _WHERE,
    "dim": _WHERE,
    "log": 'Colours: `norm="log"`. Axes: `ax.set_xscale("log")` on what is returned.',
    "figsize": "Give an `ax` of that size: `ax=plt.subplots(figsize=(6, 4))[1]`.",
}


def draw(
    data: Dataset,
    variable: str | None,
    sel: Mapping[str, object] | None,
    options: Mapping[str, Any],
    others: Mapping[str, object],
    ax: Axes | None,
    log: frozenset[str],
) -> Any:
    """Draws one variable of a dataset and gives the matplotlib axes.

    `options` are the roles and colours that were asked for, `None` where they were
    not; `others` are no options. `log` names columns that are geometric.
    """
    plt = optional(FUNCTION, "matplotlib.pyplot")
    for name in others:
        cure = _INSTEAD.get(name) or nearest(name, ("sel", *options, "ax"))
        if hasattr(plt.Axes, f"set_{name}"):
            cure = f"Set it on what is returned: `ax.set_{name}(...)`."
        raise type_error(FUNCTION, f"there is no keyword `{name}`.", cure)
    asked = {role: options[role] for role in _ROLES}
    array, chosen = pick(data, variable, sel, asked.values())
    places = places_of(array, asked)
    for place in places.values():
        array = sort(array, place)
    scales = {role: scale_of(array, place, log) for role, place in places.items()}
    outer = [scales[role] for role in ("row", "col") if role in scales]
    x, y, hue = places["x"], places.get("y"), scales.get("hue")
    paint = line
    if y is not None:
        paint = scatter if x.dim == y.dim else heat
    _check(outer, ax)
    plain = all(options[name] is None for name in _COLOURS)
    flags = data[array.name].dtype.kind == "b" and paint is not line and plain
    if paint is line:
        colours = _line_colours(hue, options)
    else:
        shown = array.values[array[KIND].values == 0]
        colours = _colours_of(shown, {**options, **(_FLAGS if flags else {})})
        if flags:
            colours.set_cmap(colours.cmap.resampled(2))

    # A panel for each combination of positions on the outer dims, if there are any.
    positions = list(itertools.product(*(range(len(s.at)) for s in outer)))
    axes = np.array([[ax]])
    if ax is None:
        axes = _subplots(plt, scales, len(positions))
    figure = axes[0, 0].figure
    # Not strict: the last row of panels may have empty places.
    for panel, at in zip(axes.flat, positions, strict=False):
        known = list(zip(outer, at, strict=True))
        part = array.isel({scale.place.dim: k for scale, k in known})
        paint(Panel(panel, part, scales, colours))
        title = ", ".join(f"{scale.label} = {scale.texts[k]}" for scale, k in known)
        panel.set_title(title, fontsize="medium")
    has_marks = bool(np.any(array[KIND].values))
    if outer:
        _label_outer(axes, len(positions))
        figure.suptitle(", ".join(chosen))
    else:
        axes[0, 0].set_title(", ".join(chosen), pad=24 if has_marks else None)
    if colours is not None and colours.get_array().size:
        label = label_of(array) if hue is None else hue.label
        values, norm = colours.get_array(), colours.norm
        below, above = values.min() < norm.vmin, values.max() > norm.vmax
        extend = ("neither", "min", "max", "both")[below + 2 * above]
        bar = figure.colorbar(colours, ax=axes, label=label, extend=extend)
        if flags:
            bar.set_ticks([0, 1], labels=["False", "True"])
    _legends(axes, None if colours is not None else hue, has_marks)
    return axes if outer else axes[0, 0]


def _subplots(plt: Any, scales: Mapping[str, Scale], n: int) -> Any:
    """Places for `n` panels."""
    columns = n if n <= 3 else math.ceil(math.sqrt(n))
    width, height = 2.7, 2.3
    if "row" in scales:
        columns = len(scales["col"].at) if "col" in scales else 1
    elif "col" not in scales:
        width, height = 4.9, 4.2
    rows = math.ceil(n / columns)
    size = width * columns + 1.5, height * rows + 0.6
    shared = {"sharex": True, "sharey": True, "squeeze": False}
    return plt.subplots(rows, columns, figsize=size, layout="constrained", **shared)[1]


def _check(outer: list[Scale], ax: Axes | None) -> None:
    """Raises for an `ax` that cannot be drawn into, and where there is no room."""
    if ax is not None and not hasattr(ax, "pcolormesh"):
        raise type_error(
            FUNCTION,
            f"`ax` is {describe_value(ax)}.",
            "Give matplotlib `Axes`, such as `plt.subplots()[1]`, or leave it out.",
        )
    if ax is not None and outer:
        raise value_error(
            FUNCTION,
            "`ax` is given, and there are several panels.",
            "Leave it out, or select a value of one dim in `sel=`.",
        )
    if math.prod(len(scale.at) for scale in outer) > MOST_PANELS:
        sizes = " and ".join(f"`{s.place.dim}` has {len(s.at)}" for s in outer)
        raise value_error(
            FUNCTION,
            f"{sizes} positions, and each would be a panel.",
            f"Draw at most {MOST_PANELS}: let a shorter dim be `col=`, or select "
            "a value in `sel=`.",
        )


def _colours_of(values: Shaped[np.ndarray, "..."], options: Mapping[str, Any]) -> Any:
    """A matplotlib `ScalarMappable` from the finite ones of some values to colours."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    norm, ends = options["norm"], (options["vmin"], options["vmax"])
    if isinstance(norm, Normalize):
        if ends != (None, None):
            raise value_error(
                FUNCTION,
                "`norm` is given together with `vmin` or `vmax`.",
                f"Give them to the norm: `{type(norm).__name__}(vmin=..., ...)`.",
            )
        norm = copy.copy(norm)  # the caller's keeps its own limits
    colours = ScalarMappable(norm, options["cmap"])
    colours.set_clim(*ends)
    # A logarithm has no colour for zero, which is below all others.
    colours.set_cmap(colours.cmap.with_extremes(bad=colours.cmap(0.0)))
    finite = values[np.isfinite(values)]
    colours.norm.autoscale_None(finite if finite.size else np.array([0.0, 1.0]))
    colours.set_array(finite)
    return colours


def _line_colours(hue: Scale | None, options: Mapping[str, Any]) -> Any:
    """The colours of many numbers on `hue`, or of few if any of `options` is given."""
    wanted = [name for name in _COLOURS if options[name] is not None]
    named = None if hue is None or hue.place.repeats else hue
    if named is not None and is_number(named.values):
        if len(named.at) <= FEW and not wanted:
            return None
        norm = options["norm"] or ("log" if named.log else None)
        return _colours_of(named.values.astype(float), {**options, "norm": norm})
    if wanted:
        raise value_error(
            FUNCTION,
            f"`{wanted[0]}` is given, and no number is shown by colour.",
            "Leave it out; for the height of lines set that of the `Axes`, "
            "`ax.set_ylim(0, 1)` or `ax.set_yscale('log')`.",
        )
    if named is not None and len(named.at) > MOST_NAMES:
        raise value_error(
            FUNCTION,
            f"`{named.label}` has {len(named.at)} names, each a line.",
            f"At most {MOST_NAMES} are told apart: select one in `sel=`, or "
            "leave out `hue=`.",
        )
    return None


def _label_outer(axes: Any, n: int) -> None:
    """Leaves labels at the left, and below the last of the `n` panels in each column.

    Matplotlib's own `label_outer` leaves them in the last row, also of empty places.
    """
    columns = axes.shape[1]
    for k, ax in enumerate(axes.flat):
        below, left = n - columns <= k < n, k % columns == 0
        ax.tick_params(axis="x", labelbottom=below)
        ax.set_xlabel(ax.get_xlabel() if below else "")
        ax.set_ylabel(ax.get_ylabel() if left else "")
        if k >= n:
            ax.set_axis_off()


def _legends(axes: Any, hue: Scale | None, has_marks: bool) -> None:
    """Says beside the panels what lines are, and above or below what marks mean."""
    from matplotlib.lines import Line2D

    found = [ax.get_legend_handles_labels() for ax in axes.flat]
    every = {text: handle for pair in found for handle, text in zip(*pair, strict=True)}
    lines = [handle for handle in every.values() if isinstance(handle, Line2D)]
    marks = [handle for handle in every.values() if not isinstance(handle, Line2D)]
    first, style = axes[0, -1], {"frameon": False, "fontsize": "small"}
    if hue is not None:
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
        title = None if hue.place.repeats else hue.label
        columns = -(-len(lines) // 20)
        first.legend(handles=lines, title=title, ncols=columns, **place, **style)
    style |= {"handles": marks, "ncols": len(marks)}
    if has_marks and axes.size > 1:
        first.figure.legend(loc="outside lower center", **style)
    elif has_marks:
        beside = first.get_legend()
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1}
        first.legend(**place, **style)
        if beside is not None:
            first.add_artist(beside)
            beside.set_clip_on(False)  # or the layout has no room for it
