"""The plot of one output over a space, by xarray's plotting.

xarray draws lines, meshes, points, panels, names, legends and labels. This module
assigns a role to each dim, makes axes of a `Geomspace` logarithmic, averages
replicates, and marks points that failed or have no number.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.tree_util as jtu
import numpy as np

from ..._errors import nearest, optional, type_error, value_error
from ..._spaces import Axis, Space
from ..._tree import is_key_array
from .marks import KIND, SPREAD, colour, mark_points, panels_of, shade
from .roles import all_roles, arranged, check_roles, dim_of, free_dims

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
    around lines a band shows one standard deviation.

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

    **Raises:** `ValueError` if there are more dims than a plot can show, or more than
    two axes of one dim without `x=` and `y=`. Needs
    `pip install 'eqx_pipe[sweep]'`.

    !!! example

        >>> import eqx_pipe as ep, matplotlib
        >>> matplotlib.use("agg")  # as on a machine without a screen
        >>> space = {"a": ep.Geomspace(0.01, 1, 5), "b": ep.Linspace(0, 1, 3)}
        >>> ax = ep.sweep(lambda p: p["a"] * p["b"], space).plot(sel={"b": 0.5})
        >>> ax.get_xscale(), ax.get_title()
        ('log', 'b = 0.5')
    """
    self._check_all_values("plot")
    data, space = self.to_xarray(), self.space
    asked = {"x": x, "y": y, "hue": hue, "row": row, "col": col}
    plt = optional(_FUNCTION, "matplotlib.pyplot")
    name = _variable(data, variable, len(jtu.tree_leaves(self.values)))
    table = _selected(_table(data, name), sel or {})
    roles = {role: given for role, given in asked.items() if given is not None}
    for role, given in roles.items():
        _check_known(f"`{role}` is {given!r}.", given, table)
    table = _averaged(_squeezed(table, roles), name, space, roles)
    roles = all_roles(table, name, roles, space.dims)
    is_cloud = "y" in roles and dim_of(table, roles["x"]) == dim_of(table, roles["y"])
    check_roles(table, roles, is_cloud)
    table = arranged(table, roles, is_cloud)
    log = {path for path, axis in space.axes().items() if axis.is_log}
    for role in {"x", "y"} & set(roles):
        if roles[role] in log and float(table[roles[role]].min()) > 0:
            options.setdefault(f"{role}scale", "log")
    if ax is not None:
        options["ax"] = ax
    elif not {"row", "col", "size", "figsize"} & {*roles, *options}:
        options["ax"] = plt.subplots(layout="constrained")[1]
    drawn = _draw(table, name, roles, is_cloud, dict(options))
    shown, panels = panels_of(drawn)
    if SPREAD in table and "y" not in roles:
        for panel, at in shown:
            shade(panel, table.sel(at), name, roles)
    if _is_many(table, roles):
        colour(shown, table[roles["hue"]], roles["hue"] in log, options.get("cmap"))
    mark_points(shown, table, roles, is_cloud)
    return shown[0][0] if panels is None else panels


def _variable(data: Any, variable: str | None, outputs: int) -> str:
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


def _table(data: Any, name: str) -> Any:
    """Return the variable as floats, NaN without a number, and the kinds of points.

    An axis of arrays gets a coordinate for each entry.
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
        table = table.isel({dim_of(table, key): value})
    return table


def _position(key: str, values: np.ndarray, value: Any) -> int:
    """Return the position of a value on its dim."""
    if values.dtype.kind not in "iuf":
        listed = values.tolist()
        if value in listed:
            return listed.index(value)
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
    single = [dim for dim in free_dims(table, roles) if table.sizes[dim] == 1]
    kept = len(single) == len(table.sizes)
    return table.isel(dict.fromkeys(single[kept:], 0))


def _averaged(table: Any, name: str, space: Space, roles: Mapping[str, str]) -> Any:
    """Return the mean over replicates without a role, and their spread."""
    repeats = {
        axis.dim or path for path, axis in space.axes().items() if _repeats(axis)
    }
    over = [dim for dim in free_dims(table, roles) if dim in repeats]
    if not over or len(over) == len(table.dims):
        return table
    mean = table[name].mean(over, keep_attrs=True)
    count = math.prod(table.sizes[dim] for dim in over)
    mean.attrs["long_name"] = f"{name}, mean of {count}"
    spread, kinds = table[name].std(over), table[KIND].max(over)
    return mean.to_dataset(name=name).assign({KIND: kinds, SPREAD: spread})


def _repeats(axis: Axis) -> bool:
    """Return whether the axis has replicates: `Seeds` and PRNG keys."""
    known = axis.known
    return axis.replicates is not None or (known is not None and is_key_array(known))


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
