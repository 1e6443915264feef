"""Lines over one dim: one, or one for each position on another dim."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from .._errors import message
from .colours import colours_of
from .marks import kinds, marks_in
from .roles import Place, Roles, is_inner
from .scale import FEW, Scale, label_of, scale_of

MOST_NAMES = 40


def line(ax: Any, array: Any, roles: Roles, log: frozenset[str], colours: Any) -> None:
    """Draws a `DataArray` of one dim, or of two: then a line for each `hue`.

    `colours` are those of the numbers on `hue`, `None` where lines are told apart by
    names, or not at all. Only numbers are joined; a gap is marked by what is there.
    """
    x = _x_scale(array, roles.x, log)
    dims = [place.dim for place in (roles.hue, roles.x) if place is not None]
    array = array.transpose(*dims)
    found = np.atleast_2d(kinds(array))[:, x.order]
    values = np.where(found > 0, np.nan, np.atleast_2d(array.values)[:, x.order])
    joined = x.ordered and not _is_loose(roles.x)
    gaps = bool(np.any(found))
    style: dict[str, Any] = {"linestyle": "-" if joined else ""}
    # Dots, since a point between two gaps has no line.
    if values.shape[1] <= 50 or gaps or not joined:
        style["marker"] = "." if joined else "o"
    if roles.hue is None:
        ax.plot(x.positions, values[0], **style)
    else:
        hue = hue_scale(array, roles.hue, log)
        if colours is not None:
            _bundle(ax, x.positions, values[hue.order], hue, colours, style)
        elif is_repeated(array, roles.hue):
            _repeated(ax, x.positions, values, style)
        else:
            _named(ax, x.positions, values[hue.order], hue, style)
    for kind, mark in marks_in(found):
        here = x.positions[np.any(found == kind, axis=0)]
        ax.scatter(
            here,
            np.full(len(here), mark.height),
            transform=ax.get_xaxis_transform(),
            zorder=3,
            clip_on=False,
            **mark.dots(30),
        )
    x.show(ax, "x")
    ax.set_ylabel(label_of(array))


def hue_colours(
    function: str, array: Any, roles: Roles, log: frozenset[str], options: Mapping
) -> Any:
    """The colours of many numbers on `hue`, or of few if any of `options` is given."""
    wanted = {name: value for name, value in options.items() if value is not None}
    scale = None if roles.hue is None else hue_scale(array, roles.hue, log)
    numbers = scale is not None and scale.values.dtype.kind in "iuf"
    repeated = roles.hue is not None and is_repeated(array, roles.hue)
    if scale is None or repeated or not numbers:
        if wanted:
            raise ValueError(
                message(
                    function,
                    f"`{next(iter(wanted))}` is given, and no number is shown by "
                    "colour.",
                    "Leave it out; for the height of lines set that of the `Axes`, "
                    "`ax.set_ylim(0, 1)` or `ax.set_yscale('log')`.",
                )
            )
        if scale is not None and not repeated and len(scale.texts) > MOST_NAMES:
            raise ValueError(
                message(
                    function,
                    f"`{scale.label}` has {len(scale.texts)} names, each a line.",
                    f"At most {MOST_NAMES} are told apart: select one in `sel=`, or "
                    "leave out `hue=`.",
                )
            )
        return None
    if len(scale.values) <= FEW and not wanted:
        return None
    if scale.log and options["norm"] is None:
        options = {**options, "norm": "log"}
    return colours_of(function, scale.values.astype(float), options)


def hue_scale(array: Any, place: Place, log: frozenset[str]) -> Scale:
    """The scale that colours stand for; of a cloud of points its first coordinate."""
    column = place.column or next(iter(place.columns), None)
    return scale_of(array, place.dim, column, log)


def is_repeated(array: Any, place: Place) -> bool:
    """Whether nothing is known of a dim but that it repeats the others."""
    return not place.columns and not is_inner(array, place.dim)


def _x_scale(array: Any, place: Place, log: frozenset[str]) -> Scale:
    scale = scale_of(array, place.dim, place.column, log, spread=_is_loose(place))
    others = [name for name in place.columns if name != place.column]
    if place.chosen or not others:
        return scale
    # They vary together, so that each tick can say all of them.
    names = ", ".join(label_of(array, name) for name in (place.column, *others))
    if not scale.ticks:
        return _with(scale, label=f"{scale.label} ({', '.join(others)} with it)")
    texts = list(scale.texts)
    for name in others:
        other = scale_of(array, place.dim, name, log)
        shown = dict(zip(other.order.tolist(), other.texts, strict=True))
        texts = [f"{t}\n{shown[i]}" for t, i in zip(texts, scale.order, strict=True)]
    return _with(scale, label=names, texts=texts)


def _with(scale: Scale, **changes: Any) -> Scale:
    import dataclasses

    return dataclasses.replace(scale, **changes)


def _is_loose(place: Place) -> bool:
    """Whether points have other coordinates too, on which their values depend."""
    return place.chosen and len(place.columns) > 1


def _named(
    ax: Any, x: Any, values: Float[np.ndarray, "h n"], hue: Scale, style: Any
) -> None:
    import matplotlib

    n = len(values)
    if hue.ordered:
        palette = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, n))
    elif n <= FEW:
        palette = matplotlib.colormaps["tab10"].colors[:n]
    else:
        palette = matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, n))
    for row, color, text in zip(values, palette, hue.texts, strict=True):
        ax.plot(x, row, color=color, label=text, **style)


def _bundle(
    ax: Any,
    x: Any,
    values: Float[np.ndarray, "h n"],
    hue: Scale,
    colours: Any,
    style: Any,
) -> None:
    for row, number in zip(values, hue.values.astype(float), strict=True):
        ax.plot(x, row, color=colours.to_rgba(number), linewidth=0.9, **style)


def _repeated(ax: Any, x: Any, values: Float[np.ndarray, "h n"], style: Any) -> None:
    thin = {**style, "marker": "" if style["linestyle"] else ".", "linewidth": 0.7}
    for k, row in enumerate(values):
        label = "each" if k == 0 else None
        ax.plot(x, row, color="tab:blue", alpha=0.4, label=label, **thin)
    count = np.isfinite(values).sum(axis=0)
    total = np.nansum(values, axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    label = f"mean of {len(values)}"
    ax.plot(x, mean, color="tab:blue", linewidth=2, label=label, **style)
