"""The data of a plot: one output as a table, and a role in the plot for each dim."""

import math
from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from ..._errors import nearest, type_error, value_error
from ..._spaces import Axis
from ..._tree import is_key_array, static_text

KIND = "kind of point"
"""The name of an additional variable: 0, or the number of a mark."""

SPREAD = "spread of replicates"
"""The name of an additional variable: the standard deviation of replicates."""

_FUNCTION = "SweepResult.plot"
_MOST_PANELS = 36


def prepared(
    data: Any,
    variable: str | None,
    sel: Mapping[str, object],
    roles: Mapping[str, str],
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
    for role, given in roles.items():
        _check_known(f"`{role}` is {given!r}.", given, table)
    table = _averaged(_squeezed(table, roles), name, axes, roles)
    of_space = () if status is None else data[status].dims
    found = _all_roles(table, name, roles, of_space)
    dims = {role: _dim_of(table, given) for role, given in found.items()}
    is_cloud = "y" in found and dims.get("x") == dims["y"]
    _check_roles(table, found, is_cloud)
    return _arranged(table, found, is_cloud), name, found, is_cloud


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
            rows = coord.values.reshape(coord.shape[0], -1).T
            for place, row in zip(np.ndindex(coord.shape[1:]), rows, strict=True):
                entries[".".join([path, *map(str, place)])] = (coord.dims[0], row)
    data = data.assign_coords(entries)
    array = data[name].astype(float)
    if status is None:
        at = np.ones(array.shape)
    else:
        at = data[status].broadcast_like(array).transpose(*array.dims).values
        array = array.drop_vars(status)
    found = [at == 2, at == 0, np.isnan(array.values), np.isinf(array.values)]
    kind = array.copy(data=np.select(found, [1, 4, 2, 3], 0))
    table = array.where(kind == 0).to_dataset(name=name)
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
    spread, kinds = table[name].std(over), table[KIND].max(over)
    return mean.to_dataset(name=name).assign({KIND: kinds, SPREAD: spread})


def _repeats(axis: Axis) -> bool:
    """Return whether the axis has replicates: `Seeds` and PRNG keys."""
    known = axis.known
    return axis.replicates is not None or (known is not None and is_key_array(known))


def _dim_of(table: Any, name: str) -> str:
    """Return the dim of a coordinate, or `name` if it is a dim."""
    return str(table[name].dims[0]) if name in table.coords else name


def _free_dims(table: Any, roles: Mapping[str, str]) -> list[str]:
    """Return the dims without a role."""
    placed = {_dim_of(table, given) for given in roles.values()}
    return [str(dim) for dim in table[KIND].dims if dim not in placed]


def _along(table: Any, dim: str, kinds: str = "iuf") -> list[str]:
    """Return the coordinates along a dim, by default those of numbers."""
    found = [(str(n), c) for n, c in table.coords.items() if c.dims == (dim,)]
    return [name for name, coord in found if coord.dtype.kind in kinds]


def _all_roles(
    table: Any, name: str, asked: Mapping[str, str], of_space: Container[str]
) -> dict[str, str]:
    """Return the requested roles, and default roles of the other dims, in order.

    Dims that are not `of_space` are dims of one value, such as a curve at each point.
    """
    free, roles = _free_dims(table, asked), dict(asked)
    own = {"x", "y", "hue"} & set(asked)
    clouds = [d for d in free if d not in table.coords and len(_along(table, d)) > 1]
    curves = [dim for dim in free if dim not in of_space]
    curves.sort(key=lambda dim: dim.endswith("quantile"))  # lines, not positions
    if own:
        lines = "hue" in own or len(free) + len(own) < 2
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
        # Use another coordinate if the dim has no coordinate of its own name.
        known = [*_along(table, dim), *_along(table, dim, "OUb"), dim]
        roles[role] = dim if dim in table.coords else known[0]
    return roles


def _check_roles(table: Any, roles: Mapping[str, str], is_cloud: bool) -> None:
    """Raise unless each role has a different dim, and there are few panels."""
    if "x" not in roles or {"hue", "y"} <= set(roles):
        wrong = f"{dict(roles)} leaves no dim for x, or has both `hue` and `y`."
        cure = "Leave one out: lines have `x` and `hue`, heat maps `x` and `y`."
        raise value_error(_FUNCTION, wrong, cure)
    places = [_dim_of(table, given) for given in roles.values()]
    if len(set(places)) + (is_cloud and roles["x"] != roles["y"]) < len(places):
        wrong = f"two of {dict(roles)} are along the same dim."
        raise value_error(_FUNCTION, wrong, "Give each a different dim.")
    count = math.prod(table[roles[r]].size for r in ("row", "col") if r in roles)
    if count > _MOST_PANELS:
        wrong = f"there would be {count} panels, and at most {_MOST_PANELS} are drawn."
        raise value_error(_FUNCTION, wrong, "Select values by `sel=`.")


def _arranged(table: Any, roles: Mapping[str, str], is_cloud: bool) -> Any:
    """Return the table with roles as dims, in order, and names as texts."""
    for role, given in roles.items():
        if is_cloud and role in ("x", "y"):
            continue
        dim = _dim_of(table, given)
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
