"""The picture of one output over a space: xarray's own, with points without a number.

xarray draws lines, meshes, points, panels, legends and labels. Here each dim gets its
place, axes of a `Geomspace` are logarithmic, names stand at ticks, replicates are
averaged, and points that failed or have no number are marked.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..._errors import nearest, optional, type_error, value_error
from ..._spaces import Space
from ..._tree import is_key_array
from .marks import KIND, mark_points

_FUNCTION = "SweepResult.plot"
_MOST_PANELS = 36
_MARKED = 40
"""Lines over more positions than this have no dots."""

_DOTS = {"marker": "o", "linestyle": ""}  # names are not joined by a line
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
    table = _selected(_with_kinds(_with_entries(data, name), name), sel or {})
    roles = {role: given for role, given in asked.items() if given is not None}
    for role, given in roles.items():
        if given not in table.coords and given not in table.dims:
            known = [*table.dims, *(set(map(str, table.coords)) - set(table.dims))]
            wrong = f"`{role}` is {given!r}."
            raise value_error(_FUNCTION, wrong, nearest(given, known))
    table = _squeezed(table, roles)
    table = _averaged(table, name, _repeats(space, table), roles)
    roles |= _defaults(table, name, roles)
    is_cloud = "y" in roles and _dim(table, roles["x"]) == _dim(table, roles["y"])
    _check_roles(table, roles, is_cloud)
    table, ticks = _arranged(table, roles, is_cloud)
    log = {path for path, axis in space.axes().items() if axis.is_log}
    for role in {"x", "y"} & set(roles):
        if roles[role] in log and float(table[roles[role]].min()) > 0:
            options.setdefault(f"{role}scale", "log")
    if ax is not None:
        options["ax"] = ax
    elif not {"row", "col", "size", "figsize"} & {*roles, *options}:
        options["ax"] = plt.subplots(layout="constrained")[1]
    shown, panels = _draw(table, name, roles, is_cloud, ticks, options)
    if "hue" in roles and table.sizes[roles["hue"]] > _MOST_LINES:
        _colour(shown, table[roles["hue"]], roles["hue"] in log, options.get("cmap"))
    mark_points(shown, table, roles, is_cloud)
    for panel, _ in shown:
        for role, texts in ticks.items():
            getattr(panel, f"{role}axis").set_ticks(range(len(texts)), texts)
    return shown[0][0] if panels is None else panels


def _variable(data: Any, variable: str | None, outputs: int) -> str:
    """The name of the variable to draw."""
    names = list(map(str, data.data_vars))
    name = names[0] if variable is None and outputs == 1 else variable
    if name not in names:
        wrong = f"`variable` is {variable!r}, and there are {outputs} outputs."
        raise value_error(_FUNCTION, wrong, nearest(name, names))
    if data[name].dtype.kind not in "biuf":
        raise value_error(
            _FUNCTION,
            f"`{name}` is of {data[name].dtype}.",
            "Draw real numbers: let the function return, say, the absolute value.",
        )
    return name


def _with_entries(data: Any, name: str) -> Any:
    """The dataset with a coordinate for each entry of an axis of arrays."""
    entries = {}
    for path, coord in data.coords.items():
        if set(coord.dims) <= set(data[name].dims):  # numbers, or the status
            continue
        rows = coord.values.reshape(coord.shape[0], -1).T
        for place, row in zip(np.ndindex(coord.shape[1:]), rows, strict=True):
            entries[".".join([path, *map(str, place)])] = (coord.dims[0], row)
    return data.assign_coords(entries)


def _with_kinds(data: Any, name: str) -> Any:
    """The variable as floats, NaN where it has no number, and the kinds of points."""
    array = data[name].astype(float)
    status = next(s for s in ("sweep.status", "status") if s in data.coords)
    at = data[status].broadcast_like(array).transpose(*array.dims).values
    found = [at == 2, at == 0, np.isnan(array.values), np.isinf(array.values)]
    kind = array.copy(data=np.select(found, [1, 4, 2, 3], 0))
    table = array.where(kind == 0).to_dataset(name=name).drop_vars(status)
    return table.assign({KIND: (array.dims, kind.values)})


def _selected(table: Any, sel: Mapping[str, object]) -> Any:
    """The table at the values of `sel`, the nearest if they are numbers."""
    if not isinstance(sel, Mapping):
        wrong = f"`sel` is {sel!r}."
        raise type_error(_FUNCTION, wrong, "Give a dict: `sel={'rate': 0.5}`.")
    for key, value in sel.items():
        if key in table.coords:
            values = table[key].values
            if values.dtype.kind in "iuf":
                slack = 1e-6 * np.abs(values).max()  # of rounding to float32
                if not values.min() - slack <= value <= values.max() + slack:
                    ends = f"`{key}` goes from {values.min():.6g} to {values.max():.6g}"
                    wrong = f"`sel` has {value!r}, and {ends}."
                    raise value_error(_FUNCTION, wrong, "Give a value in this range.")
                value = int(np.argmin(np.abs(values - value)))
            elif value in values.tolist():
                value = values.tolist().index(value)
            else:
                wrong = f"`sel` has {value!r} for `{key}`."
                raise value_error(_FUNCTION, wrong, nearest(value, values.tolist()))
        elif key not in table.dims:
            known = [*table.dims, *table.coords]
            raise value_error(_FUNCTION, f"`sel` names {key!r}.", nearest(key, known))
        table = table.isel({_dim(table, key): value})
    return table


def _squeezed(table: Any, roles: Mapping[str, str]) -> Any:
    """The table without dims of length 1 that nobody asked for; one dim remains."""
    kept = {_dim(table, name) for name in roles.values()}
    single = [dim for dim, n in table.sizes.items() if n == 1 and dim not in kept]
    if not kept and len(single) == len(table.sizes):
        single = single[1:]
    if not table.sizes:
        wrong = "one value is left, which is no picture."
        raise value_error(_FUNCTION, wrong, "Leave a dim out of `sel=`.")
    return table.isel(dict.fromkeys(single, 0))


def _dim(table: Any, name: str) -> str:
    """The dim of a coordinate, or the dim of this name."""
    return str(table[name].dims[0]) if name in table.coords else name


def _repeats(space: Space, table: Any) -> list[str]:
    """The dims of replicates: of `Seeds`, and of PRNG keys."""
    axes = space.axes().items()
    found = [axis.dim or name for name, axis in axes if _is_repeat(axis)]
    return [dim for dim in found if dim in table.dims]


def _is_repeat(axis: Any) -> bool:
    known = axis.known
    return axis.replicates is not None or (known is not None and is_key_array(known))


def _averaged(
    table: Any, name: str, repeats: list[str], roles: Mapping[str, str]
) -> Any:
    """The mean over replicates that nobody asked to see, and their spread."""
    placed = {_dim(table, given) for given in roles.values()}
    over = [dim for dim in repeats if dim not in placed]
    if not over or len(over) == len(table.dims):
        return table
    count = int(np.prod([table.sizes[dim] for dim in over]))
    mean = table[name].mean(over, keep_attrs=True)
    mean.attrs["long_name"] = f"{name}, mean of {count}"
    kinds = table[KIND].max(over)
    found = mean.to_dataset(name=name)
    return found.assign({KIND: kinds, _SPREAD: table[name].std(over)})


def _numbers(table: Any, dim: str) -> list[str]:
    """The coordinates of numbers along a dim."""
    coords = table.coords.items()
    return [str(n) for n, c in coords if c.dims == (dim,) and c.dtype.kind in "iuf"]


def _defaults(table: Any, name: str, roles: Mapping[str, str]) -> dict[str, str]:
    """The place of each dim that nobody asked for, in order."""
    placed = {_dim(table, given) for given in roles.values()}
    free = [str(dim) for dim in table[name].dims if dim not in placed]
    clouds = [d for d in free if d not in table.coords and len(_numbers(table, d)) > 1]
    inner = [dim for dim in free if dim.startswith(f"{name}.")]
    found: dict[str, str] = {}
    if clouds and not inner and not {"x", "y", "hue"} & set(roles):
        free.remove(clouds[0])
        columns = _numbers(table, clouds[0])
        if len(columns) > 2:
            first, second = columns[:2]
            raise value_error(
                _FUNCTION,
                f"{len(columns)} coordinates vary along `{clouds[0]}`.",
                f"Name two of them: `x={first!r}, y={second!r}`.",
            )
        found, order = {"x": columns[0], "y": columns[1]}, ["col", "row"]
    elif inner and not {"x", "y", "hue"} & set(roles):  # a curve at each point
        free.remove(inner[0])
        found, order = {"x": inner[0]}, ["hue", "col", "row"]
    elif "hue" in roles or len(free) + len({"x", "y"} & set(roles)) < 2:
        order = ["x", "col", "row"]
    else:
        order = ["x", "y", "col", "row"]
    left = [role for role in order if role not in roles]
    if len(free) > len(left):
        raise value_error(
            _FUNCTION,
            f"{len(table[name].dims)} dims are too many for one picture.",
            f"Select values, `sel={{{free[-1]!r}: 0}}`, or give `hue=` for lines, "
            "`row=` and `col=` for panels.",
        )
    found |= {r: _column(table, d) for r, d in zip(left, free, strict=False)}
    if "x" not in {**roles, **found} or {"hue", "y"} <= {*roles, *found}:
        raise value_error(
            _FUNCTION,
            f"{dict(roles)} leaves no dim for x, or has both `hue` and `y`.",
            "Leave one out: lines have `x` and `hue`, heat maps `x` and `y`.",
        )
    return found


def _column(table: Any, dim: str) -> str:
    """The dim itself, or a coordinate in its place if it has none of its own."""
    if dim in table.coords:
        return dim
    names = [str(n) for n, c in table.coords.items() if c.dims == (dim,)]
    return next(iter([*_numbers(table, dim), *names]), dim)


def _check_roles(table: Any, roles: Mapping[str, str], is_cloud: bool) -> None:
    """Raise unless each role has a dim of its own, and there are few panels."""
    places = [_dim(table, given) for given in roles.values()]
    if len(set(places)) + (is_cloud and roles["x"] != roles["y"]) < len(places):
        wrong = f"two of {dict(roles)} are along the same dim."
        raise value_error(_FUNCTION, wrong, "Give each a different dim.")
    count = math.prod(table[roles[r]].size for r in ("row", "col") if r in roles)
    if count > _MOST_PANELS:
        raise value_error(
            _FUNCTION,
            f"there would be {count} panels, and at most {_MOST_PANELS} are drawn.",
            "Select values by `sel=`.",
        )


def _arranged(
    table: Any, roles: Mapping[str, str], is_cloud: bool
) -> tuple[Any, dict[str, list[str]]]:
    """The table with roles as dims, in order, and the names along x and y.

    xarray draws no axis of names: positions stand in their place.
    """
    ticks = {}
    for role, given in roles.items():
        on_axis = role in ("x", "y")
        if is_cloud and on_axis:
            continue
        dim = _dim(table, given)
        if dim != given:
            table = table.swap_dims({dim: given})
        if given not in table.coords:
            continue
        coord = table[given]
        if coord.dtype.kind in "iuf":
            table = table.sortby(given)
            if role == "hue":  # a legend shows all digits
                short = [float(f"{value:.4g}") for value in table[given].values]
                table = table.assign_coords({given: (given, short, coord.attrs)})
        elif on_axis:
            ticks[role] = [str(value) for value in coord.values]
            places = (given, np.arange(coord.size), coord.attrs)
            table = table.assign_coords({given: places})
    return table, ticks


def _draw(
    table: Any,
    name: str,
    roles: Mapping[str, str],
    is_cloud: bool,
    ticks: Mapping[str, Any],
    options: dict[str, Any],
) -> tuple[list[tuple[Any, dict[str, Any]]], Any]:
    """Let xarray draw; return each panel with its selection, and all panels or None."""
    if "y" not in roles:
        few = table[roles["x"]].size <= _MARKED
        lines = {"marker": "." if few else "", "linestyle": "-"}
        options = (_DOTS if "x" in ticks else lines) | options
        if "hue" in roles and table.sizes[roles["hue"]] > _MOST_LINES:
            options["add_legend"] = False
            options.pop("cmap", None)
        drawn = table[name].plot.line(**roles, **options)
    else:
        if not np.isfinite(table[name]).any():
            options = {"vmin": 0, "vmax": 1, "add_colorbar": False} | options
        if is_cloud:
            drawn = table.plot.scatter(hue=name, **roles, **options)
        else:
            drawn = table[name].plot.pcolormesh(**roles, **options)
    panels = getattr(drawn, "axs", None)
    if panels is None:
        one = drawn[0] if isinstance(drawn, list) else drawn
        shown = [(one.axes, {})]
    else:
        pairs = zip(panels.flat, drawn.name_dicts.flat, strict=True)
        shown = [(panel, at) for panel, at in pairs if at is not None]
    if _SPREAD in table and "y" not in roles:
        for panel, at in shown:
            _band(panel, table.sel(at), name, roles)
    return shown, panels


def _band(panel: Any, part: Any, name: str, roles: Mapping[str, str]) -> None:
    """Shade one standard deviation of replicates around each line."""
    x = part[roles["x"]].values
    hues = part[roles["hue"]].size if "hue" in roles else 1
    for k, line in enumerate(panel.get_lines()[:hues]):
        one = part.isel({roles["hue"]: k}) if "hue" in roles else part
        mean, spread = one[name].values, one[_SPREAD].values
        color = line.get_color()
        panel.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.2)


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
