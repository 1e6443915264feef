"""The plot of one output over a space, by xarray's plotting.

xarray draws lines, meshes, points, panels, names, legends and labels. This module makes
axes of a `Geomspace` logarithmic, and adds marks for points that failed, have no number
or are not computed; bands for replicates; and colour bars for many lines.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.tree_util as jtu
import numpy as np

from ..._errors import optional
from .plot_data import KIND, SPREAD, prepared

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .result import SweepResult
else:  # imported where they are used
    Axes = SweepResult = Any

_FUNCTION = "SweepResult.plot"
_MARKED = 40
"""Lines with more points than this have no markers."""

_MOST_LINES = 10
"""More lines than this have a colour bar in place of a legend."""


def plot(
    self: SweepResult,
    variable: str | None = None,
    *,
    sel: Mapping[str, object] | None = None,
    x: str | None = None,
    y: str | None = None,
    hue: str | None = None,
    row: str | None = None,
    col: str | None = None,
    ax: Axes | None = None,
    **options: Any,
) -> Axes | np.ndarray:
    """Draw one output over the space, by xarray and matplotlib.

    One dim is drawn as a line, two dims as a heat map with the first dim along x, and
    three or four dims as a heat map for each position on the others. An output that is
    an array at each point (a loss curve) is drawn as a line for each point, over the
    position in the array. Two axes of one dim (random draws, joint designs) are drawn
    as points coloured by the value. Replicates (`Seeds`, PRNG keys) are averaged;
    around lines a band shows one standard deviation. With `reduce=` over all points,
    the dims are those of the results: the mean of curves is a line, and quantiles of
    curves are a line for each level.

    Axes show their `label` and `unit`, a `Geomspace` is logarithmic, and names
    (`Static`, bools) are tick labels. Points that failed, are NaN or infinite, or are
    missing are marked, and a legend explains the marks.

    **Arguments:**

    - `variable`: the output's name in `to_xarray()`, its path; not needed for a single
      output.
    - `sel`: values to fix, as a dict from a dim, or a coordinate on it, to a value
      (numbers match the nearest one), or to a position on a dim without coordinates,
      such as the dims of arrays. (Keyword only.)
    - `x`, `y`, `hue`, `row`, `col`: the dim, or a coordinate on it, to show along x,
      along y, by the colour of lines, and in rows and columns of panels, as in xarray;
      by default as above. (Keyword only.)
    - `ax`: the matplotlib `Axes` to draw into; by default a new figure. (Keyword
      only.)
    - `options`: options of xarray's `plot.line`, `plot.pcolormesh` and
      `plot.scatter`, such as `cmap`, `norm`, `vmin`, `xscale`, `ylim`, `figsize` and
      `col_wrap`, and of the matplotlib functions that they call.

    **Returns:** the `Axes`; an array of them if there are panels. The figure is
    `ax.figure`.

    **Raises:** `ValueError` if there are more dims than a plot can show, more than two
    axes of one dim without `x=` and `y=`, or only one number. Needs
    `pip install 'eqx_pipe[sweep]'`.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = {"a": ep.Geomspace(0.01, 1, 5), "b": ep.Linspace(0, 1, 3)}
        >>> ax = ep.sweep(lambda p: p["a"] * p["b"], space).plot(sel={"b": 0.5})
        >>> ax.get_xscale(), ax.get_title()
        ('log', 'b = 0.5')
    """
    given = {"x": x, "y": y, "hue": hue, "row": row, "col": col}
    asked = {role: name for role, name in given.items() if name is not None}
    plt = optional(_FUNCTION, "matplotlib.pyplot")
    data = self.to_xarray()
    # A reduction of all points has no axes, and all of its outputs are variables.
    axes, outputs = self.space.axes(), len(jtu.tree_leaves(self.values))
    if self.points is not None:
        axes, outputs = {}, len(data.data_vars)
    table, name, roles, is_cloud = prepared(
        data, variable, sel or {}, asked, axes, outputs
    )
    log = {path for path, axis in axes.items() if axis.is_log}
    for role in {"x", "y"} & set(roles):
        if roles[role] in log and float(table[roles[role]].min()) > 0:
            options.setdefault(f"{role}scale", "log")
    if ax is not None:
        options["ax"] = ax
    elif not {"row", "col", "size", "figsize"} & {*roles, *options}:
        options["ax"] = plt.subplots(layout="constrained")[1]
    drawn = _draw(table, name, roles, is_cloud, dict(options))
    shown, panels = _panels_of(drawn)
    if SPREAD in table and "y" not in roles:
        for panel, at in shown:
            _shade(panel, table.sel(at), name, roles)
    if _is_many(table, roles):
        _colour(shown, table[roles["hue"]], roles["hue"] in log, options.get("cmap"))
    _mark_points(shown, table, roles, is_cloud)
    return shown[0][0] if panels is None else panels


def _is_many(table: Any, roles: Mapping[str, str]) -> bool:
    return "hue" in roles and table.sizes[roles["hue"]] > _MOST_LINES


def _draw(
    table: Any,
    name: str,
    roles: Mapping[str, str],
    is_cloud: bool,
    options: dict[str, Any],
) -> Any:
    """Let xarray draw lines, points or a mesh."""
    if "y" not in roles:
        x = table[roles["x"]]
        dots = {"marker": "." if x.size <= _MARKED else "", "linestyle": "-"}
        if x.dtype.kind == "U":  # do not connect names by a line
            dots = {"marker": "o", "linestyle": ""}
        if _is_many(table, roles):
            options["add_legend"] = False
            options.pop("cmap", None)
        return table[name].plot.line(**roles, **(dots | options))
    if not np.isfinite(table[name]).any():
        options = {"vmin": 0, "vmax": 1, "add_colorbar": False} | options
    if is_cloud:
        return table.plot.scatter(hue=name, **roles, **options)
    return table[name].plot.pcolormesh(**roles, **options)


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


def _mark_points(
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


def _panels_of(drawn: Any) -> tuple[list[tuple[Any, dict[str, Any]]], Any]:
    """Return each panel with its selection, and the array of panels if there is one."""
    panels = getattr(drawn, "axs", None)
    if panels is None:
        one = drawn[0] if isinstance(drawn, list) else drawn
        return [(one.axes, {})], None
    pairs = zip(panels.flat, drawn.name_dicts.flat, strict=True)
    return [(panel, at) for panel, at in pairs if at is not None], panels


def _shade(panel: Any, part: Any, name: str, roles: Mapping[str, str]) -> None:
    """Shade one standard deviation of replicates around each line."""
    lines = panel.get_lines()
    hues = part[roles["hue"]].size if "hue" in roles else 1
    for k, line in enumerate(lines[:hues]):
        one = part.isel({roles["hue"]: k}) if "hue" in roles else part
        low, high = one[name] - one[SPREAD], one[name] + one[SPREAD]
        x, color = one[roles["x"]].values, line.get_color()
        panel.fill_between(x, low.values, high.values, color=color, alpha=0.2)


def _colour(shown: Any, hue: Any, is_log: bool, cmap: Any) -> None:
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
