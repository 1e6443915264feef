"""The plot of one output over a space, by xarray's own plotting.

xarray draws lines, meshes, points, panels, names, legends and labels. Here each dim
gets its role, axes of a `Geomspace` are logarithmic, replicates are averaged, and
points that failed or have no number are marked.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..._errors import nearest, optional, type_error, value_error
from ..._spaces import Axis, Space
from ..._tree import is_key_array
from .marks import KIND, mark_points

_FUNCTION = "SweepResult.plot"
_MOST_PANELS = 36
_MARKED = 40
"""Lines over more positions than this have no dots."""

_MOST_LINES = 10
"""More lines than this have a colour bar in the place of a legend."""

_SPREAD = "spread of replicates"
"""A variable beside the one that is drawn."""


def plot(
    space: Space,
    data: Any,
    outputs: int,
    variable: str | None,
    sel: Mapping[str, object] | None,
    asked: Mapping[str, str | None],
    ax: Any,
    options: dict[str, Any],
) -> Any:
    """Draw a variable of the dataset of a space; see `SweepResult.plot`.

    The first variables are the `outputs` of the function; the number of points in each
    cell of a reduction comes after them.
    """
    plt = optional(_FUNCTION, "matplotlib.pyplot")
    name = _variable(data, variable, outputs)
    table = _selected(_table(data, name), {} if sel is None else sel)
    roles = {role: given for role, given in asked.items() if given is not None}
    for role, given in roles.items():
        _check_known(f"`{role}` is {given!r}.", given, table)
    table = _averaged(_squeezed(table, roles), name, space, roles)
    roles = _all_roles(table, name, roles)
    is_cloud = "y" in roles and _dim(table, roles["x"]) == _dim(table, roles["y"])
    _check_roles(table, roles, is_cloud)
    table = _arranged(table, roles, is_cloud)
    log = {path for path, axis in space.axes().items() if axis.is_log}
    for role in {"x", "y"} & set(roles):
        if roles[role] in log and float(table[roles[role]].min()) > 0:
            options.setdefault(f"{role}scale", "log")
    if ax is not None:
        options["ax"] = ax
    elif not {"row", "col", "size", "figsize"} & {*roles, *options}:
        options["ax"] = plt.subplots(layout="constrained")[1]
    drawn = _draw(table, name, roles, is_cloud, dict(options))
    shown, panels = _panels_of(drawn)
    if _SPREAD in table and "y" not in roles:
        for panel, at in shown:
            _band(panel, table.sel(at), name, roles)
    if _is_many(table, roles):
        _colour(shown, table[roles["hue"]], roles["hue"] in log, options.get("cmap"))
    mark_points(shown, table, roles, is_cloud)
    return shown[0][0] if panels is None else panels


def _variable(data: Any, variable: str | None, outputs: int) -> str:
    """The name of the variable to draw."""
    names = list(map(str, data.data_vars))
    name = names[0] if variable is None and outputs == 1 else variable
    if name not in names:
        wrong = f"`variable` is {variable!r}, and there are {outputs} outputs."
        raise value_error(_FUNCTION, wrong, nearest(name, names))
    if data[name].dtype.kind not in "biuf":
        wrong = f"`{name}` is of {data[name].dtype}."
        cure = "Draw real numbers: let the function return, say, the absolute value."
        raise value_error(_FUNCTION, wrong, cure)
    return name


def _table(data: Any, name: str) -> Any:
    """The variable as floats, NaN where it has no number, and the kinds of points.

    An axis of arrays has a coordinate for each entry.
    """
    entries = {}
    for path, coord in data.coords.items():
        if not set(coord.dims) <= set(data[name].dims):
            rows = coord.values.reshape(coord.shape[0], -1).T
            for place, row in zip(np.ndindex(coord.shape[1:]), rows, strict=True):
                entries[".".join([path, *map(str, place)])] = (coord.dims[0], row)
    data = data.assign_coords(entries)
    array = data[name].astype(float)
    status = next(s for s in ("sweep.status", "status") if s in data.coords)
    at = data[status].broadcast_like(array).transpose(*array.dims).values
    found = [at == 2, at == 0, np.isnan(array.values), np.isinf(array.values)]
    kind = array.copy(data=np.select(found, [1, 4, 2, 3], 0))
    table = array.where(kind == 0).to_dataset(name=name).drop_vars(status)
    return table.assign({KIND: (array.dims, kind.values)})


def _check_known(wrong: str, name: str, table: Any) -> None:
    """Raise unless it is the name of a dim or of a coordinate."""
    known = [*table.dims, *(name for name in table.coords if name not in table.dims)]
    if name not in known:
        raise value_error(_FUNCTION, wrong, nearest(name, known))


def _selected(table: Any, sel: Mapping[str, object]) -> Any:
    """The table at the values of `sel`, the nearest if they are numbers."""
    if not isinstance(sel, Mapping):
        wrong = f"`sel` is {sel!r}."
        raise type_error(_FUNCTION, wrong, "Give a dict: `sel={'rate': 0.5}`.")
    for key, value in sel.items():
        _check_known(f"`sel` names {key!r}.", key, table)
        if key in table.coords:
            value = _position(key, table[key].values, value)
        table = table.isel({_dim(table, key): value})
    return table


def _position(key: str, values: np.ndarray, value: Any) -> int:
    """The position of a value on its dim."""
    listed = values.tolist()
    if values.dtype.kind not in "iuf":
        if value in listed:
            return listed.index(value)
        wrong = f"`sel` has {value!r} for `{key}`."
        raise value_error(_FUNCTION, wrong, nearest(value, listed))
    low, high = min(listed), max(listed)
    slack = 1e-6 * max(abs(low), abs(high))  # of rounding to float32
    if not low - slack <= value <= high + slack:
        wrong = f"`sel` has {value!r}, and `{key}` goes from {low:.6g} to {high:.6g}."
        raise value_error(_FUNCTION, wrong, "Give a value in this range.")
    return int(np.argmin(np.abs(values - value)))


def _squeezed(table: Any, roles: Mapping[str, str]) -> Any:
    """The table without dims of length 1 that nobody asked for; one dim remains."""
    if not table.sizes:
        wrong = "one value is left, which is no picture."
        raise value_error(_FUNCTION, wrong, "Leave a dim out of `sel=`.")
    single = [dim for dim in _free(table, roles) if table.sizes[dim] == 1]
    kept = len(single) == len(table.sizes)
    return table.isel(dict.fromkeys(single[kept:], 0))


def _dim(table: Any, name: str) -> str:
    """The dim of a coordinate, or the dim of this name."""
    return str(table[name].dims[0]) if name in table.coords else name


def _free(table: Any, roles: Mapping[str, str]) -> list[str]:
    """The dims without a role."""
    placed = {_dim(table, given) for given in roles.values()}
    return [str(dim) for dim in table[KIND].dims if dim not in placed]


def _averaged(table: Any, name: str, space: Space, roles: Mapping[str, str]) -> Any:
    """The mean over replicates without a role, and their spread."""
    repeats = {
        axis.dim or path for path, axis in space.axes().items() if _repeats(axis)
    }
    over = [dim for dim in _free(table, roles) if dim in repeats]
    if not over or len(over) == len(table.dims):
        return table
    mean = table[name].mean(over, keep_attrs=True)
    count = math.prod(table.sizes[dim] for dim in over)
    mean.attrs["long_name"] = f"{name}, mean of {count}"
    spread, kinds = table[name].std(over), table[KIND].max(over)
    return mean.to_dataset(name=name).assign({KIND: kinds, _SPREAD: spread})


def _repeats(axis: Axis) -> bool:
    """True if the axis has replicates: `Seeds` and PRNG keys."""
    known = axis.known
    return axis.replicates is not None or (known is not None and is_key_array(known))


def _along(table: Any, dim: str, kinds: str = "iuf") -> list[str]:
    """The coordinates along a dim, of numbers if not told otherwise."""
    found = [(str(n), c) for n, c in table.coords.items() if c.dims == (dim,)]
    return [name for name, coord in found if coord.dtype.kind in kinds]


def _all_roles(table: Any, name: str, asked: Mapping[str, str]) -> dict[str, str]:
    """The roles that were asked for, and those of the other dims, in order."""
    free, roles = _free(table, asked), dict(asked)
    own = {"x", "y", "hue"} & set(asked)
    clouds = [d for d in free if d not in table.coords and len(_along(table, d)) > 1]
    curves = [dim for dim in free if dim.startswith(f"{name}.")]
    if own:
        lines = "hue" in own or len(free) + len(own) < 2
        order = ["x", "col", "row"] if lines else ["x", "y", "col", "row"]
    elif curves:  # a curve at each point
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
    free = _free(table, roles)
    left = [role for role in order if role not in roles]
    if len(free) > len(left):
        raise value_error(
            _FUNCTION,
            f"{len(table[name].dims)} dims are too many for one picture.",
            f"Select values, `sel={{{free[-1]!r}: 0}}`, or give `hue=` for lines, "
            "`row=` and `col=` for panels.",
        )
    for role, dim in zip(left, free, strict=False):
        # A coordinate on the dim, if it has no values of its own.
        known = [*_along(table, dim), *_along(table, dim, "OUb"), dim]
        roles[role] = dim if dim in table.coords else known[0]
    return roles


def _check_roles(table: Any, roles: Mapping[str, str], is_cloud: bool) -> None:
    """Raise unless each role has a dim of its own, and there are few panels."""
    if "x" not in roles or {"hue", "y"} <= set(roles):
        wrong = f"{dict(roles)} leaves no dim for x, or has both `hue` and `y`."
        cure = "Leave one out: lines have `x` and `hue`, heat maps `x` and `y`."
        raise value_error(_FUNCTION, wrong, cure)
    places = [_dim(table, given) for given in roles.values()]
    if len(set(places)) + (is_cloud and roles["x"] != roles["y"]) < len(places):
        wrong = f"two of {dict(roles)} are along the same dim."
        raise value_error(_FUNCTION, wrong, "Give each a different dim.")
    count = math.prod(table[roles[r]].size for r in ("row", "col") if r in roles)
    if count > _MOST_PANELS:
        wrong = f"there would be {count} panels, and at most {_MOST_PANELS} are drawn."
        raise value_error(_FUNCTION, wrong, "Select values by `sel=`.")


def _arranged(table: Any, roles: Mapping[str, str], is_cloud: bool) -> Any:
    """The table with roles as dims, in order, and names as texts."""
    for role, given in roles.items():
        if is_cloud and role in ("x", "y"):
            continue
        dim = _dim(table, given)
        table = table if dim == given else table.swap_dims({dim: given})
        if given not in table.coords:
            continue
        coord = table[given]
        if coord.dtype.kind not in "iuf":
            texts = (given, coord.values.astype(str), coord.attrs)
            table = table.assign_coords({given: texts})
            continue
        table = table.sortby(given)
        if role == "hue":  # a legend shows all digits
            short = [float(f"{value:.4g}") for value in table[given].values]
            table = table.assign_coords({given: (given, short, coord.attrs)})
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
        if x.dtype.kind == "U":  # names are not joined by a line
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


def _panels_of(drawn: Any) -> tuple[list[tuple[Any, dict[str, Any]]], Any]:
    """Each panel with its selection, and the array of all panels, if there are any."""
    panels = getattr(drawn, "axs", None)
    if panels is None:
        one = drawn[0] if isinstance(drawn, list) else drawn
        return [(one.axes, {})], None
    pairs = zip(panels.flat, drawn.name_dicts.flat, strict=True)
    return [(panel, at) for panel, at in pairs if at is not None], panels


def _band(panel: Any, part: Any, name: str, roles: Mapping[str, str]) -> None:
    """Shade one standard deviation of replicates around each line."""
    lines = panel.get_lines()
    hues = part[roles["hue"]].size if "hue" in roles else 1
    for k, line in enumerate(lines[:hues]):
        one = part.isel({roles["hue"]: k}) if "hue" in roles else part
        low, high = one[name] - one[_SPREAD], one[name] + one[_SPREAD]
        x, color = one[roles["x"]].values, line.get_color()
        panel.fill_between(x, low.values, high.values, color=color, alpha=0.2)


def _colour(shown: Any, hue: Any, is_log: bool, cmap: Any) -> None:
    """Colour many lines by their hue, with a colour bar in the place of a legend."""
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
