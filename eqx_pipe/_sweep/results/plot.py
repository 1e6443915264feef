"""The plot of one output over a space, by xarray's plotting.

The output becomes a table, each of whose dims gets a role in the plot. xarray draws
lines, meshes, points, panels, names, legends and labels. This module makes axes of a
`Geomspace` logarithmic, and adds marks for points that failed, have no number or are
not computed; bands for replicates; and colour bars for many lines.
"""

import math
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..._errors import nearest, optional, type_error, value_error
from ..._spaces import Axis, flat_columns
from ..._tree import is_key_array, static_text
from ..store import FAILED, MISSING, OK

_FUNCTION = "SweepResult.plot"

_KIND = "kind of point"
"""The name of an additional variable: 0, or the number of a mark."""

_SPREAD = "spread of replicates"
"""The name of an additional variable: the standard deviation of replicates."""

_MARKED = 40
"""Lines with more points than this have no markers."""

_MOST_LINES = 10
"""More lines than this have a colour bar and no legend."""

_MOST_PANELS = 36


def draw(
    data: Any,
    axes: Mapping[str, Axis],
    variable: str | None,
    num_outputs: int,
    sel: Mapping[str, object],
    roles: Mapping[str, str | None],
    options: dict[str, Any],
) -> Any:
    """Draw one output of a dataset; see `SweepResult.plot`.

    `axes` are the axes of the space; a reduction of all points has none.
    """
    plt = optional(_FUNCTION, "matplotlib.pyplot")
    asked = {role: name for role, name in roles.items() if name is not None}
    table, name, roles, is_cloud = _prepared(
        data, variable, sel, asked, axes, num_outputs
    )
    log = {path for path, axis in axes.items() if axis.is_log}
    for role in {"x", "y"} & set(roles):
        if roles[role] in log and float(table[roles[role]].min()) > 0:
            options.setdefault(f"{role}scale", "log")
    if not {"ax", "row", "col", "size", "figsize"} & {*roles, *options}:
        options["ax"] = plt.subplots(layout="constrained")[1]
    drawn = _draw(table, name, roles, is_cloud, dict(options))
    shown, panels = _panels_of(drawn)
    if _SPREAD in table and "y" not in roles:
        for panel, at in shown:
            _shade(panel, table.sel(at), name, roles)
    if _is_many(table, roles):
        _colour(shown, table[roles["hue"]], roles["hue"] in log, options.get("cmap"))
    _mark_points(shown, table, roles, is_cloud)
    return shown[0][0] if panels is None else panels


def _prepared(
    data: Any,
    variable: str | None,
    sel: Mapping[str, object],
    asked: Mapping[str, str],
    axes: Mapping[str, Axis],
    outputs: int,
) -> tuple[Any, str, dict[str, str], bool]:
    """Return the table to draw, with its variable and the role of each dim.

    The last value is whether two axes of one dim are drawn as points.
    """
    name = _variable_name(data, variable, outputs)
    if not data[name].dims:
        wrong = f"`{name}` is a single number, {data[name].item()}."
        raise value_error(_FUNCTION, wrong, "Plot an output that is an array.")
    status = None  # a reduction of all points has none, and no axes
    if axes:
        status = next(s for s in ("sweep.status", "status") if s in data.coords)
    table = _selected(_table_of(data, name, status), sel)
    for role, coord in asked.items():
        _check_known(f"`{role}` is {coord!r}.", coord, table)
    table = _averaged(_squeezed(table, asked), name, axes, asked)
    of_space = () if status is None else data[status].dims
    roles = _all_roles(table, name, asked, of_space)
    dims = {role: _dim_of(table, coord) for role, coord in roles.items()}
    is_cloud = "y" in roles and dims.get("x") == dims["y"]
    _check_roles(table, roles, is_cloud)
    return _arranged(table, roles, is_cloud), name, roles, is_cloud


def _variable_name(data: Any, variable: str | None, outputs: int) -> str:
    """Return the name of the variable to draw."""
    names = list(map(str, data.data_vars))
    name = names[0] if variable is None and outputs == 1 else variable
    if name not in names:
        wrong = f"`variable` is {variable!r}, which is not an output."
        if variable is None:
            wrong = f"there are {outputs} outputs, and `variable` chooses none."
        raise value_error(_FUNCTION, wrong, nearest(name, names))
    if data[name].dtype.kind not in "biuf":
        wrong = f"`{name}` is of {data[name].dtype}."
        cure = "Draw real numbers: let the function return, say, the absolute value."
        raise value_error(_FUNCTION, wrong, cure)
    return name


def _table_of(data: Any, name: str, status: str | None) -> Any:
    """Return the variable as floats, NaN without a number, and the kinds of points.

    An axis of arrays gets a coordinate for each entry.
    """
    entries = {}
    for path, coord in data.coords.items():
        if not set(coord.dims) <= set(data[name].dims):
            columns = flat_columns(path, coord.values).items()
            entries |= {column: (coord.dims[0], row) for column, row in columns}
    data = data.assign_coords(entries)
    array = data[name].astype(float)
    numbers, points = array.values, np.full(array.shape, OK)
    if status is not None:
        points = data[status].broadcast_like(array).transpose(*array.dims).values
        array = array.drop_vars(status)
    kinds = [points == FAILED, points == MISSING, np.isnan(numbers), np.isinf(numbers)]
    kind = array.copy(data=np.select(kinds, [1, 4, 2, 3], 0))
    table = array.where(kind == 0).to_dataset(name=name)
    return table.assign({_KIND: (array.dims, kind.values)})


def _check_known(wrong: str, name: str, table: Any) -> None:
    """Raise unless `name` is a dim or a coordinate."""
    known = [*table.dims, *(name for name in table.coords if name not in table.dims)]
    if name not in known:
        raise value_error(_FUNCTION, wrong, nearest(name, known))


def _selected(table: Any, sel: Mapping[str, object]) -> Any:
    """Return the table at the values of `sel`, the nearest if they are numbers."""
    if not isinstance(sel, Mapping):
        wrong = f"`sel` is {sel!r}."
        raise type_error(_FUNCTION, wrong, "Give a dict: `sel={'rate': 0.5}`.")
    for key, value in sel.items():
        _check_known(f"`sel` names {key!r}.", key, table)
        if key in table.coords:
            value = _position(key, table[key].values, value)
        table = table.isel({_dim_of(table, key): value})
    return table


def _position(key: str, values: np.ndarray, value: Any) -> int:
    """Return the position of a value on its dim."""
    if values.dtype.kind not in "iuf":
        listed = values.tolist()
        # A `Static` axis has the texts of its values.
        for shown in (value, static_text(value)):
            if shown in listed:
                return listed.index(shown)
        wrong = f"`sel` has {value!r} for `{key}`."
        raise value_error(_FUNCTION, wrong, nearest(value, listed))
    low, high = values.min().item(), values.max().item()
    slack = 1e-6 * max(abs(low), abs(high))  # for rounding to float32
    is_number = isinstance(value, int | float | np.number)
    if not is_number or not low - slack <= value <= high + slack:
        wrong = f"`sel` has {value!r}, but `{key}` goes from {low:.6g} to {high:.6g}."
        raise value_error(_FUNCTION, wrong, "Give a value in this range.")
    return int(np.argmin(np.abs(values - value)))


def _squeezed(table: Any, roles: Mapping[str, str]) -> Any:
    """Return the table without dims of length 1 and no role; keep at least one dim."""
    if not table.sizes:
        wrong = "only one value is left, which makes no plot."
        raise value_error(_FUNCTION, wrong, "Leave a dim out of `sel=`.")
    single = [dim for dim in _free_dims(table, roles) if table.sizes[dim] == 1]
    kept = len(single) == len(table.sizes)
    return table.isel(dict.fromkeys(single[kept:], 0))


def _averaged(
    table: Any, name: str, axes: Mapping[str, Axis], roles: Mapping[str, str]
) -> Any:
    """Return the mean over replicates without a role, and their spread."""
    repeats = {axis.dim or path for path, axis in axes.items() if _repeats(axis)}
    over = [dim for dim in _free_dims(table, roles) if dim in repeats]
    if not over or len(over) == len(table.dims):
        return table
    mean = table[name].mean(over, keep_attrs=True)
    count = math.prod(table.sizes[dim] for dim in over)
    mean.attrs["long_name"] = f"{name}, mean of {count}"
    spread, kinds = table[name].std(over), table[_KIND].max(over)
    return mean.to_dataset(name=name).assign({_KIND: kinds, _SPREAD: spread})


def _repeats(axis: Axis) -> bool:
    """Return whether the axis has replicates: `Seeds` and PRNG keys."""
    known = axis.known
    return axis.replicates is not None or (known is not None and is_key_array(known))


def _dim_of(table: Any, name: str) -> str:
    """Return the dim of a coordinate, or `name` if it is a dim."""
    return str(table[name].dims[0]) if name in table.coords else name


def _free_dims(table: Any, roles: Mapping[str, str]) -> list[str]:
    """Return the dims without a role."""
    dims = {_dim_of(table, coord) for coord in roles.values()}
    return [str(dim) for dim in table[_KIND].dims if dim not in dims]


def _along(table: Any, dim: str, kinds: str = "iuf") -> list[str]:
    """Return the coordinates along a dim, by default those of numbers."""
    coords = [(str(n), c) for n, c in table.coords.items() if c.dims == (dim,)]
    return [name for name, coord in coords if coord.dtype.kind in kinds]


def _all_roles(
    table: Any, name: str, asked: Mapping[str, str], of_space: Container[str]
) -> dict[str, str]:
    """Return the requested roles, and default roles of the other dims, in order.

    Dims that are not `of_space` are dims of one value, such as a curve at each point.
    """
    free, roles = _free_dims(table, asked), dict(asked)
    drawn = {"x", "y", "hue"} & set(asked)
    clouds = [d for d in free if d not in table.coords and len(_along(table, d)) > 1]
    curves = [dim for dim in free if dim not in of_space]
    curves.sort(key=lambda dim: dim.endswith("quantile"))  # lines, not positions
    if drawn:
        lines = "hue" in drawn or len(free) + len(drawn) < 2
        order = ["x", "col", "row"] if lines else ["x", "y", "col", "row"]
    elif curves:
        roles["x"], order = curves[0], ["hue", "col", "row"]
    elif clouds:
        columns, order = _along(table, clouds[0]), ["col", "row"]
        if len(columns) > 2:
            wrong = f"{len(columns)} coordinates vary along `{clouds[0]}`."
            cure = f"Name two of them: `x={columns[0]!r}, y={columns[1]!r}`."
            raise value_error(_FUNCTION, wrong, cure)
        roles |= {"x": columns[0], "y": columns[1]}
    else:
        order = ["x", "col", "row"] if len(free) < 2 else ["x", "y", "col", "row"]
    free = _free_dims(table, roles)
    left = [role for role in order if role not in roles]
    if len(free) > len(left):
        raise value_error(
            _FUNCTION,
            f"{len(table[name].dims)} dims are too many for one picture.",
            f"Select values, `sel={{{free[-1]!r}: 0}}`, or give `hue=` for lines, "
            "`row=` and `col=` for panels.",
        )
    for role, dim in zip(left, free, strict=False):
        # Use another coordinate if none has the name of the dim.
        known = [*_along(table, dim), *_along(table, dim, "OUb"), dim]
        roles[role] = dim if dim in table.coords else known[0]
    return roles


def _check_roles(table: Any, roles: Mapping[str, str], is_cloud: bool) -> None:
    """Raise unless each role has a different dim, and there are few panels."""
    if "x" not in roles or {"hue", "y"} <= set(roles):
        wrong = f"{dict(roles)} leaves no dim for x, or has both `hue` and `y`."
        cure = "Leave one out: lines have `x` and `hue`, heat maps `x` and `y`."
        raise value_error(_FUNCTION, wrong, cure)
    dims = [_dim_of(table, coord) for coord in roles.values()]
    if len(set(dims)) + (is_cloud and roles["x"] != roles["y"]) < len(dims):
        wrong = f"two of {dict(roles)} are along the same dim."
        raise value_error(_FUNCTION, wrong, "Give each a different dim.")
    count = math.prod(table[roles[r]].size for r in ("row", "col") if r in roles)
    if count > _MOST_PANELS:
        wrong = f"there would be {count} panels, and at most {_MOST_PANELS} are drawn."
        raise value_error(_FUNCTION, wrong, "Select values by `sel=`.")


def _arranged(table: Any, roles: Mapping[str, str], is_cloud: bool) -> Any:
    """Return the table with roles as dims, in order, and names as texts."""
    for role, name in roles.items():
        if is_cloud and role in ("x", "y"):
            continue
        dim = _dim_of(table, name)
        table = table if dim == name else table.swap_dims({dim: name})
        if name not in table.coords:
            continue
        coord = table[name]
        if coord.dtype.kind not in "iuf":
            texts = (name, coord.values.astype(str), coord.attrs)
            table = table.assign_coords({name: texts})
            continue
        table = table.sortby(name)
        if role == "hue":  # a legend shows all digits
            short = [float(f"{value:.4g}") for value in table[name].values]
            table = table.assign_coords({name: (name, short, coord.attrs)})
    return table


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
        mask = table[_KIND] == number
        if not mask.any():
            continue
        for panel, at in shown:
            _mark(panel, mask.sel(at), mark, roles, are_cells)
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
    panel: Any, mask: Any, mark: _Mark, roles: Mapping[str, str], are_cells: bool
) -> None:
    """Mark the points of one kind in a panel."""
    if not mask.any():
        return
    x, y = roles["x"], roles.get("y")
    if are_cells:
        colors = optional(_FUNCTION, "matplotlib.colors")
        options = {"xscale": panel.get_xscale(), "yscale": panel.get_yscale()}
        options |= {"cmap": colors.ListedColormap([mark.face])}
        options |= {"add_colorbar": False, "add_labels": False}
        mask.where(mask).plot.pcolormesh(ax=panel, x=x, y=y, **options)
        return
    style = {"c": mark.color, "marker": mark.marker, "zorder": 3}
    if y is not None:
        panel.scatter(mask[x].values[mask.values], mask[y].values[mask.values], **style)
        return
    others = [dim for dim in mask.dims if dim != x]
    marked = mask[x].values[mask.any(others).values]
    # Place marks along the bottom, in fractions of the panel's height.
    style["transform"] = panel.get_xaxis_transform()
    panel.scatter(marked, np.full(len(marked), 0.03), **style)


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
        low, high = one[name] - one[_SPREAD], one[name] + one[_SPREAD]
        x, color = one[roles["x"]].values, line.get_color()
        panel.fill_between(x, low.values, high.values, color=color, alpha=0.2)


def _colour(shown: Any, hue: Any, is_log: bool, cmap: Any) -> None:
    """Colour many lines by their hue, with a colour bar and no legend."""
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
