"""Marks in a picture for points that failed, have no number or are not computed."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..._errors import optional

KIND = "kind of point"
"""A variable beside the one that is drawn: 0, or the number of a mark."""

_FUNCTION = "SweepResult.plot"


class _Mark(NamedTuple):
    """One kind of point without a number: its colour, marker, and face of a cell."""

    label: str
    color: str
    marker: str
    face: str


_MARKS = {
    1: _Mark("failed", "tab:red", "X", "#f5b7b1"),
    2: _Mark("NaN", "dimgray", "o", "0.75"),
    3: _Mark("infinite", "black", "^", "0.35"),
    4: _Mark("not computed", "0.6", "s", "0.93"),
}


def mark_points(
    shown: Any, table: Any, roles: Mapping[str, str], is_cloud: bool
) -> None:
    """Mark the points without a number, and name the marks in a legend."""
    colors = optional(_FUNCTION, "matplotlib.colors")
    x, y = roles["x"], roles.get("y")
    found = set()
    for panel, at in shown:
        kinds = table[KIND].sel(at)
        scales = {"xscale": panel.get_xscale(), "yscale": panel.get_yscale()}
        for number, mark in _MARKS.items():
            there = kinds == number
            if not there.any():
                continue
            found.add(number)
            style = {"c": mark.color, "marker": mark.marker, "zorder": 3}
            if y is None:
                others = [dim for dim in kinds.dims if dim != x]
                some = kinds[x].values[there.any(others).values]
                style["transform"] = panel.get_xaxis_transform()
                panel.scatter(some, np.full(len(some), 0.03), **style)
            elif is_cloud:
                some = there.values
                panel.scatter(kinds[x].values[some], kinds[y].values[some], **style)
            else:
                cmap = colors.ListedColormap([mark.face])
                off = {"add_colorbar": False, "add_labels": False}
                cells = there.where(there)
                cells.plot.pcolormesh(ax=panel, x=x, y=y, cmap=cmap, **off, **scales)
    if found:
        are_cells = y is not None and not is_cloud
        handles = [_handle(_MARKS[number], are_cells) for number in sorted(found)]
        panel, texts = shown[-1][0], [handle.get_label() for handle in handles]
        title, before = None, panel.get_legend()
        if before is not None:
            title = before.get_title().get_text()
            handles = [*before.legend_handles, *handles]
            texts = [*(text.get_text() for text in before.get_texts()), *texts]
        panel.legend(handles, texts, title=title)


def _handle(mark: _Mark, is_cell: bool) -> Any:
    """What a legend shows of a mark."""
    if is_cell:
        patches = optional(_FUNCTION, "matplotlib.patches")
        return patches.Patch(facecolor=mark.face, label=mark.label)
    lines = optional(_FUNCTION, "matplotlib.lines")
    style = {"color": mark.color, "marker": mark.marker, "label": mark.label}
    return lines.Line2D([], [], linestyle="", **style)
