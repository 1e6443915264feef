"""The roles of dims in a plot: along x and y, colours of lines, panels."""

import math
from collections.abc import Container, Mapping
from typing import Any

from ..._errors import value_error
from .marks import KIND

_FUNCTION = "SweepResult.plot"
_MOST_PANELS = 36


def dim_of(table: Any, name: str) -> str:
    """Return the dim of a coordinate, or `name` if it is a dim."""
    return str(table[name].dims[0]) if name in table.coords else name


def free_dims(table: Any, roles: Mapping[str, str]) -> list[str]:
    """Return the dims without a role."""
    placed = {dim_of(table, given) for given in roles.values()}
    return [str(dim) for dim in table[KIND].dims if dim not in placed]


def _along(table: Any, dim: str, kinds: str = "iuf") -> list[str]:
    """Return the coordinates along a dim, by default those of numbers."""
    found = [(str(n), c) for n, c in table.coords.items() if c.dims == (dim,)]
    return [name for name, coord in found if coord.dtype.kind in kinds]


def all_roles(
    table: Any, name: str, asked: Mapping[str, str], of_space: Container[str]
) -> dict[str, str]:
    """Return the requested roles, and default roles of the other dims, in order.

    Dims that are not `of_space` are dims of one value, such as a curve at each point.
    """
    free, roles = free_dims(table, asked), dict(asked)
    own = {"x", "y", "hue"} & set(asked)
    clouds = [d for d in free if d not in table.coords and len(_along(table, d)) > 1]
    curves = [dim for dim in free if dim not in of_space]
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
    free = free_dims(table, roles)
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


def check_roles(table: Any, roles: Mapping[str, str], is_cloud: bool) -> None:
    """Raise unless each role has a different dim, and there are few panels."""
    if "x" not in roles or {"hue", "y"} <= set(roles):
        wrong = f"{dict(roles)} leaves no dim for x, or has both `hue` and `y`."
        cure = "Leave one out: lines have `x` and `hue`, heat maps `x` and `y`."
        raise value_error(_FUNCTION, wrong, cure)
    places = [dim_of(table, given) for given in roles.values()]
    if len(set(places)) + (is_cloud and roles["x"] != roles["y"]) < len(places):
        wrong = f"two of {dict(roles)} are along the same dim."
        raise value_error(_FUNCTION, wrong, "Give each a different dim.")
    count = math.prod(table[roles[r]].size for r in ("row", "col") if r in roles)
    if count > _MOST_PANELS:
        wrong = f"there would be {count} panels, and at most {_MOST_PANELS} are drawn."
        raise value_error(_FUNCTION, wrong, "Select values by `sel=`.")


def arranged(table: Any, roles: Mapping[str, str], is_cloud: bool) -> Any:
    """Return the table with roles as dims, in order, and names as texts."""
    for role, given in roles.items():
        if is_cloud and role in ("x", "y"):
            continue
        dim = dim_of(table, given)
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
