"""Details that xarray does not draw, added to its panels.

These are marks for points that failed, have no number or are not computed; bands for
replicates; and colour bars for many lines.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..._errors import optional

KIND = "kind of point"
"""The name of an additional variable: 0, or the number of a mark."""

SPREAD = "spread of replicates"
"""The name of an additional variable: the standard deviation of replicates."""

_FUNCTION = "SweepResult.plot"


class _Mark(NamedTuple):
    """A kind of point without a number: its colour, marker, and face of a cell."""

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
    lines = optional(_FUNCTION, "matplotlib.lines")
    are_cells = "y" in roles and not is_cloud
    handles = []
    for number, mark in _MARKS.items():
        there = table[KIND] == number
        if not there.any():
            continue
        for panel, at in shown:
            _mark(panel, there.sel(at), mark, roles, are_cells)
        color, marker = (mark.face, "s") if are_cells else (mark.color, mark.marker)
        style = {"color": color, "marker": marker, "linestyle": ""}
        handles.append(lines.Line2D([], [], label=mark.label, **style))
    if handles:
        panel = shown[-1][0]
        before, title = panel.get_legend(), None
        texts = [handle.get_label() for handle in handles]
        if before is not None:
            title = before.get_title().get_text()
            handles = [*before.legend_handles, *handles]
            texts = [*(text.get_text() for text in before.get_texts()), *texts]
        panel.legend(handles, texts, title=title)


def _mark(
    panel: Any, there: Any, mark: _Mark, roles: Mapping[str, str], are_cells: bool
) -> None:
    """Mark the points of one kind in a panel."""
    if not there.any():
        return
    x, y = roles["x"], roles.get("y")
    if are_cells:
        colors = optional(_FUNCTION, "matplotlib.colors")
        options = {"xscale": panel.get_xscale(), "yscale": panel.get_yscale()}
        options |= {"cmap": colors.ListedColormap([mark.face])}
        options |= {"add_colorbar": False, "add_labels": False}
        there.where(there).plot.pcolormesh(ax=panel, x=x, y=y, **options)
        return
    style = {"c": mark.color, "marker": mark.marker, "zorder": 3}
    if y is not None:
        some = there.values
        panel.scatter(there[x].values[some], there[y].values[some], **style)
        return
    others = [dim for dim in there.dims if dim != x]
    some = there[x].values[there.any(others).values]
    # Place marks along the bottom, in fractions of the panel's height.
    style["transform"] = panel.get_xaxis_transform()
    panel.scatter(some, np.full(len(some), 0.03), **style)


def panels_of(drawn: Any) -> tuple[list[tuple[Any, dict[str, Any]]], Any]:
    """Return each panel with its selection, and the array of panels if there is one."""
    panels = getattr(drawn, "axs", None)
    if panels is None:
        one = drawn[0] if isinstance(drawn, list) else drawn
        return [(one.axes, {})], None
    pairs = zip(panels.flat, drawn.name_dicts.flat, strict=True)
    return [(panel, at) for panel, at in pairs if at is not None], panels


def shade(panel: Any, part: Any, name: str, roles: Mapping[str, str]) -> None:
    """Shade one standard deviation of replicates around each line."""
    lines = panel.get_lines()
    hues = part[roles["hue"]].size if "hue" in roles else 1
    for k, line in enumerate(lines[:hues]):
        one = part.isel({roles["hue"]: k}) if "hue" in roles else part
        low, high = one[name] - one[SPREAD], one[name] + one[SPREAD]
        x, color = one[roles["x"]].values, line.get_color()
        panel.fill_between(x, low.values, high.values, color=color, alpha=0.2)


def colour(shown: Any, hue: Any, is_log: bool, cmap: Any) -> None:
    """Colour many lines by their hue, with a colour bar in place of a legend."""
    matplotlib = optional(_FUNCTION, "matplotlib")
    colors = optional(_FUNCTION, "matplotlib.colors")
    values = hue.values if hue.dtype.kind in "iuf" else np.arange(hue.size)
    kind = colors.LogNorm if is_log and values.min() > 0 else colors.Normalize
    scale = matplotlib.cm.ScalarMappable(kind(values.min(), values.max()), cmap)
    for panel, _ in shown:
        for line, value in zip(panel.get_lines(), values, strict=False):
            line.set_color(scale.to_rgba(value))
    label = hue.attrs.get("long_name", hue.name)
    label += f" [{hue.attrs['units']}]" if "units" in hue.attrs else ""
    panels = [panel for panel, _ in shown]
    panels[0].figure.colorbar(scale, ax=panels, label=label)
