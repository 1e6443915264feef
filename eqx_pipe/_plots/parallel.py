"""Parallel coordinates: many axes that vary together, a line for each point."""

from typing import Any

import numpy as np

from .._errors import message
from .scale import value_text

MOST_AXES = 20
_NOT_AXES = ("status", "sweep.status")


def columns_of(array: Any) -> dict[str, np.ndarray]:
    """The coordinates along the only dim, by name; arrays entry by entry."""
    dim = array.dims[0]
    columns: dict[str, np.ndarray] = {}
    for name, coordinate in array.coords.items():
        if coordinate.dims[:1] != (dim,) or name in _NOT_AXES:
            continue
        values = np.asarray(coordinate.values)
        for entry in np.ndindex(values.shape[1:]):
            label = ".".join(map(str, (name, *entry)))
            columns[label] = values[(slice(None), *entry)]
    return columns


def parallel(
    function: str, ax: Any, plt: Any, array: Any, columns: dict[str, np.ndarray]
) -> None:
    """Draws a line for each point across its coordinates and its value, in colour.

    Points without a value are left out; the largest values lie on top.
    """
    from matplotlib.collections import LineCollection

    if len(columns) > MOST_AXES:
        raise ValueError(
            message(
                function,
                f"`{array.dims[0]}` has {len(columns)} coordinates.",
                f"At most {MOST_AXES} fit a picture; draw them from "
                "`result.to_pandas()`.",
            )
        )
    values = np.asarray(array.values, float)
    axes = {**columns, str(array.name): values}
    heights, ticks = {}, {}
    for name, column in axes.items():
        heights[name], ticks[name] = _height(column)
    drawn = np.flatnonzero(np.isfinite(values))
    order = drawn[np.argsort(values[drawn], kind="stable")]
    lines = np.stack(list(heights.values()), axis=1)[order]
    x = np.arange(len(axes))
    finite = values[order]
    norm = plt.Normalize(*((finite[0], finite[-1]) if len(finite) else (0, 1)))
    paths = [np.stack([x, heights_of_one], axis=1) for heights_of_one in lines]
    # One object for all lines: thousands of points are drawn at once.
    drawing = LineCollection(
        paths, cmap="viridis", norm=norm, linewidths=0.8, alpha=0.7
    )
    drawing.set_array(finite)
    ax.add_collection(drawing)
    for k, (low, high) in enumerate(ticks.values()):
        ax.axvline(k, color="black", linewidth=0.6)
        for text, at, va in ((low, 0, "top"), (high, 1, "bottom")):
            ax.annotate(
                text,
                (k, at),
                (0, 8 * at - 4),
                textcoords="offset points",
                va=va,
                ha="center",
            )
    ax.set_xticks(x, list(axes))
    ax.tick_params(axis="x", pad=16)
    ax.set_yticks([])
    ax.set_ylim(-0.02, 1.02)
    ax.set_xlim(-0.1, len(axes) - 0.9)
    ax.figure.colorbar(drawing, ax=ax, label=str(array.name))


def _height(column: np.ndarray) -> tuple[np.ndarray, tuple[str, str]]:
    """A column between 0 and 1, and the texts of its ends."""
    if column.dtype.kind not in "iuf":
        texts, number = np.unique(column.astype(str), return_inverse=True)
        return number / max(len(texts) - 1, 1), (str(texts[0]), str(texts[-1]))
    x = column.astype(float)
    finite = x[np.isfinite(x)]
    if not len(finite):
        return np.full(len(x), 0.5), ("", "")
    low, high = finite.min(), finite.max()
    height = (x - low) / (high - low) if high > low else np.full(len(x), 0.5)
    return height, (value_text(low), value_text(high))
