"""A panel: lines, a heat map, or points.

What is no number has a look of its own: that a point failed, or is NaN, or infinite.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .scale import (
    FEW,
    KIND,
    Axes,
    Colours,
    DataArray,
    Scale,
    label_of,
)

MOST_DOTS = 50
MOST_HATCHED = 2000


class Panel(NamedTuple):
    """What is drawn into `ax`: a part of the array, the dims of which are sorted."""

    ax: Axes
    array: DataArray
    scales: Mapping[str, Scale]
    colours: Colours


class _Mark(NamedTuple):
    """One kind of point without a number, as a marker and as a filled cell.

    `height` is where it stands, as a share of the picture, if it is one of no height.
    """

    label: str
    color: str
    marker: str
    height: float
    face: str
    hatch: str | None = None

    def dots(self, size: float = 30.0) -> dict[str, Any]:
        """How markers are drawn."""
        face = "none" if self.marker in "os" else self.color
        style = {"c": face, "edgecolors": self.color, "zorder": 3}
        return {"marker": self.marker, "s": size, "label": self.label, **style}


_MARKS = (
    _Mark("failed", "tab:red", "X", 0.03, "#f9d9d9", "xxxx"),
    _Mark("NaN", "dimgray", "o", 0.03, "0.8"),
    _Mark("inf", "black", "^", 0.97, "black"),
    _Mark("-inf", "black", "v", 0.03, "0.45"),
    _Mark("not computed", "0.6", "s", 0.03, "white", "...."),
)


def _marks_in(kinds: Int[np.ndarray, "..."]) -> list[tuple[Any, _Mark]]:
    """The marks that there are, and where."""
    found = [(kinds == k, mark) for k, mark in enumerate(_MARKS, 1)]
    return [(where, mark) for where, mark in found if where.any()]


def heat(panel: Panel) -> None:
    """Draws an array over two dims."""
    from matplotlib.collections import PolyCollection

    ax, colours = panel.ax, panel.colours
    along, up = panel.scales["x"], panel.scales["y"]
    x, y = along.edges, up.edges
    array = panel.array.transpose(up.place.dim, along.place.dim)
    kinds = array[KIND].values
    # Masked and not NaN: an infinity would be painted in the last colour.
    shown = np.ma.masked_where(kinds > 0, array.values)
    ax.pcolormesh(x, y, shown, norm=colours.norm, cmap=colours.cmap)
    for where, mark in _marks_in(kinds):
        # Neighbours in a row are one polygon: those of each cell would take seconds.
        ends = np.diff(np.pad(where, ((0, 0), (1, 1))).astype(np.int8), axis=1)
        (row, start), (_, stop) = np.nonzero(ends == 1), np.nonzero(ends == -1)
        left, right, low, high = x[start], x[stop], y[row], y[row + 1]
        corners = np.stack([[left, right, right, left], [low, low, high, high]])
        cells = PolyCollection(
            list(corners.transpose(2, 1, 0)),
            facecolors=mark.face,
            edgecolors=mark.color,
            linewidths=0.0,
            antialiaseds=False,
            hatch=mark.hatch if len(row) <= MOST_HATCHED else None,
            label=mark.label,
        )
        ax.add_collection(cells)
    along.show(ax, "x")
    up.show(ax, "y")


def scatter(panel: Panel) -> None:
    """Draws an array of one dim over two of its coordinates."""
    ax, colours, kinds = panel.ax, panel.colours, panel.array[KIND].values
    x, y = panel.scales["x"], panel.scales["y"]
    size = float(np.clip(3000 / len(kinds), 6, 50))
    good = _by_value(panel.array)
    ax.scatter(
        x.at[good],
        y.at[good],
        size,
        panel.array.values[good],
        norm=colours.norm,
        cmap=colours.cmap,
        linewidths=0.3,
        edgecolors="0.3",
    )
    for where, mark in _marks_in(kinds):
        ax.scatter(x.at[where], y.at[where], **mark.dots(max(size, 16.0)))
    x.show(ax, "x")
    y.show(ax, "y")


def _by_value(array: DataArray) -> Int[np.ndarray, " finite"]:
    """Where the finite values are, the largest last and so on top."""
    good = np.flatnonzero(array[KIND].values == 0)
    return good[np.argsort(array.values[good], kind="stable")]


def line(panel: Panel) -> None:
    """Draws an array of one dim, or of two: then a line for each `hue`.

    Only numbers are joined; a gap is marked by what is there.
    """
    ax, x = panel.ax, panel.scales["x"]
    place, hue = x.place, panel.scales.get("hue")
    array = panel.array.transpose(..., place.dim)
    kinds = np.atleast_2d(array[KIND].values)
    values = np.where(kinds > 0, np.nan, np.atleast_2d(array.values))
    joined = x.ordered and not place.cloud and not place.repeats
    few = len(x.at) <= MOST_DOTS
    rows = list(values)
    if hue is not None and hue.place.repeats:
        rows.append(np.ma.masked_invalid(values).mean(axis=0).filled(np.nan))
    for row, look in zip(rows, _looks(panel, kinds), strict=True):
        style = {"linestyle": "", "marker": "o"}
        if joined:  # a point between two gaps has no line
            is_number = np.pad(np.isfinite(row), 1)
            dots = is_number[1:-1] & ~is_number[:-2] & ~is_number[2:]
            dots |= few and "linewidth" not in look
            style = {"marker": "." if dots.any() else "", "markevery": dots}
        ax.plot(x.at, row, **style, **look)
    # Also those where there is no number belong to the picture.
    ax.update_datalim(np.column_stack([x.at, x.at]), updatey=False)
    ax.autoscale_view(scaley=False)
    _mark_gaps(ax, x.at, values, kinds, few, alone=hue is None)
    x.show(ax, "x")
    ax.set_ylabel(label_of(array))


def _looks(panel: Panel, kinds: Int[np.ndarray, "h n"]) -> list[dict[str, Any]]:
    """The style of each line; of repeats also that of their mean, the last."""
    import matplotlib

    n, hue = len(kinds), panel.scales.get("hue")
    if hue is None:
        return [{}]
    if hue.place.repeats:
        thin = {"color": "tab:blue", "alpha": 0.4, "linewidth": 0.7}
        mean = {"color": "tab:blue", "label": f"mean of {n}", "lw": 2}
        return [{**thin, "label": "each"}, *[thin] * (n - 1), mean]
    if panel.colours is not None:
        colours = map(panel.colours.to_rgba, hue.values.astype(float))
        return [{"color": color, "linewidth": 0.9} for color in colours]
    palette = matplotlib.colormaps["tab10"](np.arange(n))
    if hue.ordered or n > FEW:  # not to the end of the map, which is faint on white
        name = "viridis" if hue.ordered else "turbo"
        palette = matplotlib.colormaps[name](np.linspace(0.0, 0.92, n))
    failed = [" (failed)" if np.all(row == 1) else "" for row in kinds]
    every = zip(palette, hue.texts, failed, strict=True)
    return [{"color": color, "label": text + end} for color, text, end in every]


def _mark_gaps(
    ax: Axes,
    x: Float[np.ndarray, " n"],
    values: Float[np.ndarray, "h n"],
    kinds: Int[np.ndarray, "h n"],
    few: bool,
    alone: bool,
) -> None:
    """Marks what is no number: each, or of many neighbours the first.

    One of several lines has its mark where the line ends, if it has begun.
    """
    before = np.pad(kinds, ((0, 0), (1, 0)))[:, :-1]
    shown = kinds if few else np.where(kinds == before, 0, kinds)
    if not alone:  # one mark for a line of which nothing is there
        lost = np.all(kinds > 0, axis=1, keepdims=True)
        shown = np.where(lost & (np.arange(len(x)) > 0), 0, shown)
    # The last number at or before each position, -1 if there is none.
    last = np.maximum.accumulate(np.where(kinds == 0, np.arange(len(x)), -1), axis=1)
    for where, mark in _marks_in(shown):
        row, k = np.nonzero(where)
        begun = (last[row, k] >= 0) & (not alone)
        height = np.where(begun, values[row, last[row, k]], mark.height)
        for chosen, transform in (
            (begun, ax.transData),
            (~begun, ax.get_xaxis_transform()),
        ):
            if chosen.any():
                place = {"transform": transform, "clip_on": False}
                ax.scatter(x[k[chosen]], height[chosen], **place, **mark.dots())
