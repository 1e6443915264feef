"""The plot of one output over a space, by xarray's plotting.

Each dim of the output gets a role in the plot. xarray draws lines, meshes, points,
panels, names, legends and labels. This module makes axes of a `Geomspace` logarithmic,
and adds bands for replicates.
"""

import math
from collections.abc import Container, Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .._check import check_is
from .._errors import nearest, optional, value_error
from .._spaces import Axis
from .._store import OK
from .._tree import static_text

_FUNCTION = "SweepResult.plot"

_MARKED = 40
"""Lines with more points than this have no markers."""

_MOST_LINES = 10
"""More lines than this have no legend."""


def draw(
    result: Any, variable: str | None, sel: Any, roles: Any, options: dict[str, Any]
) -> Any:
    """Draw one output of a result; see `SweepResult.plot`."""
    data = result.to_xarray()
    # All variables of a reduction of all points are outputs, and it has no axes.
    axes, num_outputs = result.space.axes(), len(jtu.tree_leaves(result.values))
    if result.points is not None:
        axes, num_outputs = {}, len(data.data_vars)
    metric = dict(result.made).get("metric")  # of `train`, beside other curves
    if variable is None and metric in data.data_vars:
        variable = metric
    first = str(next(iter(data.data_vars), ""))
    if variable is None and num_outputs == 4 and _edges_of(data, first) is not None:
        variable = first  # the counts of a histogram
    plt = optional(_FUNCTION, "matplotlib.pyplot")
    asked = {role: name for role, name in roles.items() if name is not None}
    array, of_space = _array_of(data, variable, num_outputs, bool(axes))
    array = _selected(array, sel)
    for role, coord in asked.items():
        _check_known(f"`{role}` is {coord!r}.", coord, array)
    array, spread = _averaged(_squeezed(array, asked), axes, asked)
    roles = _all_roles(array, asked, of_space)
    is_cloud = len({_dim_of(array, roles.get(role, "")) for role in ("x", "y")}) == 1
    _check_roles(array, roles, is_cloud)
    array = _arranged(array, roles, is_cloud)
    for role in {"x", "y"} & set(roles):
        axis = axes.get(roles[role])
        if axis is not None and axis.is_log and float(array[roles[role]].min()) > 0:
            options.setdefault(f"{role}scale", "log")
    if not {"ax", "row", "col", "size", "figsize"} & {*roles, *options}:
        options["ax"] = plt.subplots(layout="constrained")[1]
    edges = None if "y" in roles else _edges_of(data, str(array.name))
    if edges is not None:
        options = {"drawstyle": "steps-post", "marker": "", **options}
    drawn = _draw(array, roles, is_cloud, options)
    panels = getattr(drawn, "axs", None)
    if panels is None:
        one = drawn[0] if isinstance(drawn, list) else drawn
        shown = [(one.axes, {})]
    else:
        pairs = zip(panels.flat, drawn.name_dicts.flat, strict=True)
        shown = [(panel, at) for panel, at in pairs if at is not None]
    for panel, _ in shown if edges is not None else []:
        for line in panel.get_lines():
            fill = {"fill": True, "alpha": 0.3, "color": line.get_color()}
            panel.stairs(line.get_ydata(), edges, **fill)
    if spread is not None and "y" not in roles:
        spread = _arranged(spread, roles, is_cloud)
        for panel, at in shown:
            _shade(panel, array.sel(at), spread.sel(at), roles)
    return shown[0][0] if panels is None else panels


def _edges_of(data: Any, name: str) -> np.ndarray | None:
    """Return the edges of the bins if a variable has the counts of a histogram."""
    edges = data.get(f"{name.removesuffix('counts')}edges")
    if edges is None or not "".join(edges.dims[-1:]).endswith("edge"):
        return None
    return edges.values.reshape(-1, edges.shape[-1])[0]


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


def _array_of(
    data: Any, variable: str | None, outputs: int, has_axes: bool
) -> tuple[Any, tuple[str, ...]]:
    """Return the variable as floats or NaN, and the dims of the space."""
    name = _variable_name(data, variable, outputs)
    if not data[name].dims:
        wrong = f"`{name}` is a single number, {data[name].item()}."
        raise value_error(_FUNCTION, wrong, "Plot an output that is an array.")
    array = data[name].astype(float)
    array = array.where(np.isfinite(array))
    if not has_axes:  # a reduction of all points, which has no status
        return array, ()
    name = next(s for s in ("sweep.status", "status") if s in data.coords)
    status = data[name]
    return array.where(status == OK).drop_vars(name, errors="ignore"), status.dims


def _check_known(wrong: str, name: str, array: Any) -> None:
    """Raise unless `name` is a dim or a coordinate."""
    choices = [*array.dims, *(name for name in array.coords if name not in array.dims)]
    if name not in choices:
        raise value_error(_FUNCTION, wrong, nearest(name, choices))


def _selected(array: Any, sel: Mapping[str, object]) -> Any:
    """Return the array at the values of `sel`, the nearest if they are numbers."""
    check_is(_FUNCTION, "sel", sel, Mapping, "Give a dict: `sel={'rate': 0.5}`.")
    for key, value in sel.items():
        _check_known(f"`sel` names {key!r}.", key, array)
        if key in array.coords:
            value = _position(key, array[key].values, value)
        array = array.isel({_dim_of(array, key): value})
    return array


def _position(key: str, values: np.ndarray, value: object) -> int:
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


def _squeezed(array: Any, roles: Mapping[str, str]) -> Any:
    """Return the array without dims of length 1 and no role; keep at least one dim."""
    if not array.sizes:
        wrong = "only one value is left, which makes no plot."
        raise value_error(_FUNCTION, wrong, "Leave a dim out of `sel=`.")
    single = [dim for dim in _free_dims(array, roles) if array.sizes[dim] == 1]
    kept = len(single) == len(array.sizes)
    return array.isel(dict.fromkeys(single[kept:], 0))


def _averaged(
    array: Any, axes: Mapping[str, Axis], roles: Mapping[str, str]
) -> tuple[Any, Any]:
    """Return the mean over replicates without a role, and their spread, if any."""
    repeats = {axis.dim or path for path, axis in axes.items() if axis.is_replicate}
    over = [dim for dim in _free_dims(array, roles) if dim in repeats]
    if not over or len(over) == len(array.dims):
        return array, None
    mean = array.mean(over, keep_attrs=True)
    count = math.prod(array.sizes[dim] for dim in over)
    mean.attrs["long_name"] = f"{array.name}, mean of {count}"
    return mean, array.std(over)


def _dim_of(array: Any, name: str) -> str:
    """Return the dim of a coordinate, or `name` if it is a dim."""
    return str(array[name].dims[0]) if name in array.coords else name


def _free_dims(array: Any, roles: Mapping[str, str]) -> list[str]:
    """Return the dims without a role."""
    dims = {_dim_of(array, coord) for coord in roles.values()}
    return [str(dim) for dim in array.dims if dim not in dims]


def _along(array: Any, dim: str, kinds: str = "iuf") -> list[str]:
    """Return the coordinates along a dim, by default those of numbers."""
    coords = [(str(n), c) for n, c in array.coords.items() if c.dims == (dim,)]
    return [name for name, coord in coords if coord.dtype.kind in kinds]


def _all_roles(
    array: Any, asked: Mapping[str, str], of_space: Container[str]
) -> dict[str, str]:
    """Return the requested roles, and default roles of the other dims, in order.

    Dims that are not `of_space` are dims of one value, such as a curve at each point.
    """
    free, roles = _free_dims(array, asked), dict(asked)
    drawn = {"x", "y", "hue"} & set(asked)
    curves = [dim for dim in free if dim not in of_space]
    curves.sort(key=lambda dim: dim.endswith("quantile"))  # lines, not positions
    if drawn:
        lines = "hue" in drawn or len(free) + len(drawn) < 2
        order = ["x", "col", "row"] if lines else ["x", "y", "col", "row"]
    elif curves:
        roles["x"], order = curves[0], ["hue", "col", "row"]
    else:
        order = ["x", "col", "row"] if len(free) < 2 else ["x", "y", "col", "row"]
    for dim in _free_dims(array, roles):
        columns = _along(array, dim)
        if dim not in array.coords and len(columns) > 1:
            first, second = columns[:2]
            wrong = f"{len(columns)} coordinates vary along `{dim}`."
            cure = f"Name two of them: `x={first!r}, y={second!r}` draws points."
            if curves and not drawn:
                cure = f"Name it: `hue={dim!r}` draws a curve for each."
            raise value_error(_FUNCTION, wrong, cure)
    free = _free_dims(array, roles)
    left = [role for role in order if role not in roles]
    if len(free) > len(left):
        raise value_error(
            _FUNCTION,
            f"{len(array.dims)} dims are too many for one picture.",
            f"Select values, `sel={{{free[-1]!r}: 0}}`, or give `hue=` for lines, "
            "`row=` and `col=` for panels.",
        )
    for role, dim in zip(left, free, strict=False):
        # Use another coordinate if none has the name of the dim.
        coords = [*_along(array, dim), *_along(array, dim, "OUb"), dim]
        roles[role] = dim if dim in array.coords else coords[0]
    return roles


def _check_roles(array: Any, roles: Mapping[str, str], is_cloud: bool) -> None:
    """Raise unless each role has a different dim, and there is one for x."""
    dims = [_dim_of(array, coord) for coord in roles.values()]
    unlike = len(set(dims)) + (is_cloud and roles.get("x") != roles.get("y"))
    if "x" not in roles or {"hue", "y"} <= set(roles) or unlike < len(dims):
        wrong = f"{dict(roles)} leaves no dim for x, or names one dim twice."
        cure = "Lines have `x` and `hue`, heat maps `x` and `y`, each of another dim."
        raise value_error(_FUNCTION, wrong, cure)


def _arranged(array: Any, roles: Mapping[str, str], is_cloud: bool) -> Any:
    """Return the array with roles as dims, in order, and names as texts."""
    for role, name in roles.items():
        if is_cloud and role in ("x", "y"):
            continue
        dim = _dim_of(array, name)
        array = array if dim == name else array.swap_dims({dim: name})
        if name not in array.coords:
            continue
        coord = array[name]
        if coord.dtype.kind not in "iuf":
            texts = (name, coord.values.astype(str), coord.attrs)
            array = array.assign_coords({name: texts})
            continue
        array = array.sortby(name)
        if role == "hue":  # a legend shows all digits
            short = [float(f"{value:.4g}") for value in array[name].values]
            array = array.assign_coords({name: (name, short, coord.attrs)})
    return array


def _draw(
    array: Any, roles: Mapping[str, str], is_cloud: bool, options: dict[str, Any]
) -> Any:
    """Let xarray draw lines, points or a mesh."""
    if is_cloud:
        return array.to_dataset().plot.scatter(hue=array.name, **roles, **options)
    if "y" in roles:
        return array.plot.pcolormesh(**roles, **options)
    x = array[roles["x"]]
    marker = "." if x.size <= _MARKED else ""
    style: dict[str, Any] = {"marker": marker, "linestyle": "-"}
    if x.dtype.kind == "U":  # do not connect names by a line
        style = {"marker": "o", "linestyle": ""}
    if "hue" in roles and array.sizes[roles["hue"]] > _MOST_LINES:
        style["add_legend"] = False
    return array.plot.line(**roles, **(style | options))


def _shade(panel: Any, mean: Any, spread: Any, roles: Mapping[str, str]) -> None:
    """Shade one standard deviation of replicates around each line."""
    x, hue = roles["x"], roles.get("hue")
    for k, line in enumerate(panel.get_lines()[: 1 if hue is None else mean[hue].size]):
        at = {} if hue is None else {hue: k}
        y, width = mean.isel(at), spread.isel(at)
        low, high, color = (y - width).values, (y + width).values, line.get_color()
        panel.fill_between(y[x].values, low, high, color=color, alpha=0.2)
