"""Points that go their own ways: in a plane, or as lines across parallel axes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from .marks import kinds, marks_in
from .roles import Roles
from .scale import FEW, Scale, label_of, scale_of, value_text
from .types import Axes, Colours, DataArray

MOST_AXES = 20


def scatter(
    ax: Axes, array: DataArray, roles: Roles, log: frozenset[str], colours: Colours
) -> None:
    """Draws a `DataArray` of one dim over two of its coordinates.

    The largest values lie on top; what is no number has a marker of its own.
    """
    dim, columns = roles.x.dim, roles.x.columns
    names = (roles.x.column, roles.y.column) if roles.y else columns[:2]
    x, y = (scale_of(array, dim, name, log, spread=True) for name in names)
    values, found = np.asarray(array.values), kinds(array)
    size = float(np.clip(3000 / len(values), 6, 50))
    good = _by_value(values, found)
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


def parallel(
    ax: Axes, array: DataArray, roles: Roles, log: frozenset[str], colours: Colours
) -> None:
    """Draws a line for each point across its coordinates and its value, in colour.

    The largest values lie on top. A point whose value is no number ends before it.
    """
    from matplotlib.collections import LineCollection

    dim, columns = roles.x.dim, roles.x.columns
    scales = [scale_of(array, dim, name, log, spread=True) for name in columns]
    values, found = np.asarray(array.values), kinds(array)
    good = _by_value(values, found)
    heights = np.stack([_heights(scale) for scale in scales], axis=1)
    last = np.clip(colours.norm(values[good]), 0, 1)
    lines = np.column_stack([heights[good], np.ma.filled(last, np.nan)])
    # One object for all lines: thousands of points are drawn at once.
    drawing = LineCollection(
        _paths(lines), cmap=colours.cmap, norm=colours.norm, linewidths=0.8, alpha=0.7
    )
    drawing.set_array(values[good])
    ax.add_collection(drawing)
    for kind, mark in marks_in(found):
        ends = heights[found == kind]
        dashed = {"linewidths": 0.8, "linestyles": "--", "alpha": 0.6, "zorder": 1}
        ax.add_collection(LineCollection(_paths(ends), colors=mark.color, **dashed))
        # Between two axes, where even points of one name are apart.
        at = np.full(len(ends), len(columns) - 1.5)
        ax.scatter(at, ends[:, -2:].mean(axis=1), zorder=3, **mark.dots(25.0))
    for k, scale in enumerate(scales):
        _upright(ax, k, scale)
    ax.axvline(len(columns), color="black", linewidth=0.6)
    if good.size:
        limits = colours.norm.vmin, colours.norm.vmax
        _ends(ax, len(columns), [value_text(np.float64(v)) for v in limits])
    labels = [*(label_of(array, name) for name in columns), label_of(array)]
    ax.set_xticks(range(len(labels)), labels)
    ax.tick_params(axis="x", pad=16, length=0)
    ax.set_yticks([])
    ax.set_ylim(-0.02, 1.02)
    ax.set_xlim(-0.1, len(columns) + 0.1)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _by_value(values: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Where the finite ones of some values are, the largest last and so on top."""
    good = np.flatnonzero(found == 0)
    return good[np.argsort(values[good], kind="stable")]


def _paths(heights: Float[np.ndarray, "points axes"]) -> list[np.ndarray]:
    x = np.arange(heights.shape[1])
    return [np.stack([x, row], axis=1) for row in heights]


def _heights(scale: Scale) -> Float[np.ndarray, " n"]:
    """The positions of points between 0 and 1."""
    x = np.log(scale.at) if scale.log else scale.at
    low, high = x.min(), x.max()
    return (x - low) / (high - low) if high > low else np.full(len(x), 0.5)


def _upright(ax: Axes, k: int, scale: Scale) -> None:
    """One of the axes: its line, and what stands at its ends or, of names, at each."""
    ax.axvline(k, color="black", linewidth=0.6)
    names = dict(zip(scale.texts, scale.positions, strict=True))
    if scale.ordered or len(names) > FEW:
        _ends(ax, k, (scale.texts[0], scale.texts[-1]))
        return
    for text, at in names.items():
        height = at / max(len(names) - 1, 1) if len(names) > 1 else 0.5
        box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}
        ax.annotate(
            text,
            (k, height),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            bbox=box,
        )


def _ends(ax: Axes, k: int, texts: Sequence[str]) -> None:
    for text, at, va in zip(texts, (0, 1), ("top", "bottom"), strict=True):
        ax.annotate(
            text,
            (k, at),
            (0, 8 * at - 4),
            textcoords="offset points",
            va=va,
            ha="center",
            fontsize="small",
        )
