"""Lines over one dim: one, or one for each position on another dim."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from .._errors import value_error
from .colours import colours_of
from .marks import kinds, marks_in
from .roles import Place, Roles, is_inner, place_scale
from .scale import FEW, Scale, label_of
from .types import Axes, Colours, DataArray

MOST_NAMES = 40
MOST_DOTS = 50


def line(
    ax: Axes, array: DataArray, roles: Roles, log: frozenset[str], colours: Colours
) -> None:
    """Draws a `DataArray` of one dim, or of two: then a line for each `hue`.

    `colours` are those of the numbers on `hue`, `None` where lines are told apart by
    names, or not at all. Only numbers are joined; a gap is marked by what is there.
    """
    x = place_scale(array, roles.x, log)
    dims = [place.dim for place in (roles.hue, roles.x) if place is not None]
    array = array.transpose(*dims)
    found = np.atleast_2d(kinds(array))[:, x.order]
    values = np.where(found > 0, np.nan, np.atleast_2d(array.values)[:, x.order])
    apart = roles.x.cloud or is_repeated(array, roles.x)
    joined = x.ordered and not apart
    style: dict[str, Any] = {"linestyle": "-" if joined else ""}
    if values.shape[1] <= MOST_DOTS or not joined:
        style["marker"] = "." if joined else "o"
    if roles.hue is None:
        ax.plot(x.positions, values[0], **style)
    else:
        hue = place_scale(array, roles.hue, log)
        if colours is not None:
            _bundle(ax, x.positions, values[hue.order], hue, colours, style)
        elif is_repeated(array, roles.hue):
            _repeated(ax, x.positions, values, style)
        else:
            failed = np.all(found == 1, axis=1)[hue.order]
            _named(ax, x.positions, values[hue.order], hue, failed, style)
    # Also those where there is no number belong to the picture.
    ax.update_datalim(np.column_stack([x.positions, x.positions]), updatey=False)
    ax.autoscale_view(scaley=False)
    _mark(ax, x.positions, values, found, alone=roles.hue is None)
    x.show(ax, "x")
    ax.set_ylabel(label_of(array))


def _mark(
    ax: Axes,
    x: Float[np.ndarray, " n"],
    values: Float[np.ndarray, "h n"],
    found: Int[np.ndarray, "h n"],
    alone: bool,
) -> None:
    """Marks what is no number: each, or of many neighbours the first.

    One of several lines has its mark where the line ends, if it has begun.
    """
    before = np.concatenate([np.zeros_like(found[:, :1]), found[:, :-1]], axis=1)
    shown = found if len(x) <= MOST_DOTS else np.where(found == before, 0, found)
    for kind, mark in marks_in(shown):
        begun: list[tuple[float, float]] = []
        others: list[float] = []
        for row, k in np.argwhere(shown == kind).tolist():
            past = [] if alone else np.flatnonzero(found[row, :k] == 0).tolist()
            if not len(past):
                others.append(x[k])
            else:
                begun.append((x[k], values[row, past[-1]]))
        dots = {"zorder": 3, "clip_on": False, **mark.dots(30.0)}
        if others:
            place = ax.get_xaxis_transform()
            height = np.full(len(others), mark.height)
            ax.scatter(others, height, transform=place, **dots)
        if begun:
            ax.scatter(*np.transpose(begun), **dots)
    if len(x) > MOST_DOTS:  # a point between two gaps has no line
        edge = np.pad(found == 0, ((0, 0), (1, 1)))
        row, k = np.nonzero((found == 0) & ~edge[:, :-2] & ~edge[:, 2:])
        if len(k):
            ax.plot(x[k], values[row, k], ".", color="0.3")


def hue_colours(
    function: str, array: DataArray, roles: Roles, log: frozenset[str], options: Mapping
) -> Any:
    """The colours of many numbers on `hue`, or of few if any of `options` is given."""
    wanted = {name: value for name, value in options.items() if value is not None}
    scale = None if roles.hue is None else place_scale(array, roles.hue, log)
    numbers = scale is not None and scale.values.dtype.kind in "iuf"
    repeated = roles.hue is not None and is_repeated(array, roles.hue)
    if scale is None or repeated or not numbers:
        if wanted:
            raise value_error(
                function,
                f"`{next(iter(wanted))}` is given, and no number is shown by colour.",
                "Leave it out; for the height of lines set that of the `Axes`, "
                "`ax.set_ylim(0, 1)` or `ax.set_yscale('log')`.",
            )
        if scale is not None and not repeated and len(scale.texts) > MOST_NAMES:
            raise value_error(
                function,
                f"`{scale.label}` has {len(scale.texts)} names, each a line.",
                f"At most {MOST_NAMES} are told apart: select one in `sel=`, or "
                "leave out `hue=`.",
            )
        return None
    if len(scale.values) <= FEW and not wanted:
        return None
    if scale.log and options["norm"] is None:
        options = {**options, "norm": "log"}
    return colours_of(function, scale.values.astype(float), options)


def is_repeated(array: DataArray, place: Place) -> bool:
    """Whether nothing is known of a dim but that it repeats the others."""
    return not place.columns and not is_inner(array, place.dim)


def _named(
    ax: Axes,
    x: Any,
    values: Float[np.ndarray, "h n"],
    hue: Scale,
    failed: Bool[np.ndarray, " h"],
    style: Any,
) -> None:
    import matplotlib

    n = len(values)
    if hue.ordered:
        palette = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, n))
    elif n <= FEW:
        palette = matplotlib.colormaps["tab10"](np.arange(n))
    else:
        palette = matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, n))
    for row, color, text, none in zip(values, palette, hue.texts, failed, strict=True):
        label = f"{text} (failed)" if none else text
        ax.plot(x, row, color=color, label=label, **style)


def _bundle(
    ax: Axes,
    x: Any,
    values: Float[np.ndarray, "h n"],
    hue: Scale,
    colours: Colours,
    style: Any,
) -> None:
    if style["linestyle"]:
        style = {**style, "marker": ""}  # too many
    for row, number in zip(values, hue.values.astype(float), strict=True):
        ax.plot(x, row, color=colours.to_rgba(number), linewidth=0.9, **style)


def _repeated(ax: Axes, x: Any, values: Float[np.ndarray, "h n"], style: Any) -> None:
    thin = {**style, "marker": "" if style["linestyle"] else ".", "linewidth": 0.7}
    for k, row in enumerate(values):
        label = "each" if k == 0 else None
        ax.plot(x, row, color="tab:blue", alpha=0.4, label=label, **thin)
    count = np.isfinite(values).sum(axis=0)
    total = np.nansum(values, axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    label = f"mean of {len(values)}"
    ax.plot(x, mean, color="tab:blue", linewidth=2, label=label, **style)
