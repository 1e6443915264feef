"""Which dim of a variable goes where: along x, along y, by colour, in panels."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from .._errors import describe_value, nearest, value_error
from .scale import FEW, Scale, columns_of, label_of, scale_of, value_text
from .types import DataArray

ROLES = ("x", "y", "hue", "row", "col")


@dataclasses.dataclass(frozen=True)
class Place:
    """A dim, the column that says what stands on it (or none), and all its columns.

    They are a `cloud` if they go their own ways; `chosen` says that a column was named.
    """

    dim: str
    column: str | None
    columns: tuple[str, ...]
    cloud: bool
    chosen: bool = False


@dataclasses.dataclass(frozen=True)
class Roles:
    """What each dim of a picture is for. `kind` names how a panel is drawn."""

    kind: str
    x: Place
    y: Place | None = None
    hue: Place | None = None
    row: Place | None = None
    col: Place | None = None


def roles_of(function: str, array: DataArray, given: Mapping[str, str | None]) -> Roles:
    """The roles of all dims of an array; `given` names dims or coordinates.

    A dim whose points have several coordinates of their own (a design) is a cloud of
    points; where each point is an array, it is a curve; a dim that only PRNG keys vary
    along repeats the others. What is left are the axes of a line or a heat map.
    """
    dims = [str(dim) for dim in array.dims]
    found = {
        role: _place(function, array, role, name)
        for role, name in given.items()
        if name is not None
    }
    _check(function, found)
    used = {place.dim for place in found.values()}
    free = [dim for dim in dims if dim not in used]
    slots = _slots(array, free, found)
    for role, dim in slots.items():
        found[role] = default_place(array, dim)
    left = [dim for dim in free if dim not in slots.values()]
    if left:
        what = f"`{array.name}` has {len(dims)} dims"
        if any(is_inner(array, dim) for dim in left):
            what += " (it is an array at each point)"
        _refuse(function, array, what, left[-1])
    if "x" not in found:  # `y` alone, of one dim: along which else?
        raise value_error(
            function,
            "no dim is left for the x axis.",
            "Leave out one of " + ", ".join(f"`{role}=`" for role in found) + ".",
        )
    return Roles(_kind(found), **found)


def _refuse(function: str, array: DataArray, what: str, dim: str) -> NoReturn:
    """Raises: there is too much, and selecting a value on `dim` would be less."""
    sizes = ", ".join(f"`{d}`: {n}" for d, n in array.sizes.items())
    columns = columns_of(array, dim)
    name, values = next(iter(columns.items()), (dim, np.arange(1)))
    value = value_text(values[0])
    quoted = value if values.dtype.kind in "iuf" else repr(value)
    raise value_error(
        function,
        f"{what} ({sizes}); a picture shows three unless it is told where others go.",
        f"Select a value first, `sel={{{name!r}: {quoted}}}`, or say where: `x=`, "
        "`y=` (or `hue=` for lines), `row=` and `col=`.",
    )


def _slots(
    array: DataArray, free: list[str], found: Mapping[str, Place]
) -> dict[str, str]:
    """The role of each free dim that gets one."""
    slots: dict[str, str] = {}
    free = list(free)

    def put(role: str, dim: str | None) -> None:
        if dim is not None and role not in found and role not in slots:
            slots[role] = dim
            free.remove(dim)

    inner = [dim for dim in free if is_inner(array, dim)]
    cloud = next((dim for dim in free if is_cloud(array, dim)), None)
    repeats = next((dim for dim in free if _is_repeat(array, dim)), None)
    if "y" not in found and "hue" not in found:
        if "x" not in found and len(inner) > 1:  # a picture at each point
            put("x", inner[-1])
            put("y", inner[-2])
        elif inner:
            put("x", inner[0])
            put("hue", next((dim for dim in free if dim not in inner), None))
        elif repeats and len(free) + ("x" in found) > 1:
            put("hue", repeats)
        elif cloud and "x" not in found:
            long = [d for d in free if d != cloud and array.sizes[d] > FEW]
            put("x", long[0] if long else cloud)
            put("hue", cloud if long else None)
    x = found["x"].dim if "x" in found else slots.get("x")
    lines = "hue" in found or "hue" in slots or (x is not None and is_cloud(array, x))
    for role in ("x", "col") if lines else ("x", "y", "col"):
        put(role, free[0] if free else None)
    return slots


def _kind(found: Mapping[str, Place]) -> str:
    x, y = found["x"], found.get("y")
    if y is not None:
        return "scatter" if y.dim == x.dim else "heat"
    if "hue" in found or x.chosen or not x.cloud:
        return "line"
    return "scatter" if len(x.columns) == 2 else "parallel"


def _place(function: str, array: DataArray, role: str, name: Any) -> Place:
    columns = {str(dim): columns_of(array, str(dim)) for dim in array.dims}
    for dim, known in columns.items():
        if name in known:
            return Place(dim, name, tuple(known), is_cloud(array, dim), True)
    if name in columns:
        return default_place(array, name)
    known = dict.fromkeys([*columns, *(c for found in columns.values() for c in found)])
    wrong = f"`{role}` is {describe_value(name)}."
    raise value_error(function, wrong, nearest(name, known))


def default_place(array: DataArray, dim: str) -> Place:
    """A dim with the coordinate that labels it: its own, or the first on it.

    That of a cloud of points is none.
    """
    columns, cloud = columns_of(array, dim), is_cloud(array, dim)
    first = next(iter(columns), None)
    if cloud:
        first = None
    elif first is not None and first != dim:  # of several, numbers before names
        numbers = [name for name, v in columns.items() if v.dtype.kind in "iuf"]
        first = next(iter(numbers), first)
    return Place(dim, first, tuple(columns), cloud)


def _check(function: str, found: Mapping[str, Place]) -> None:
    if "hue" in found and "y" in found:
        raise value_error(
            function,
            "`hue` and `y` are both given.",
            "`hue=` gives a line for each position, whose height is the value; "
            "`x=` and `y=` give a heat map. Leave one out.",
        )
    owners: dict[str, str] = {}
    for role, place in found.items():
        other = owners.setdefault(place.dim, role)
        if other != role and {other, role} != {"x", "y"}:
            wrong = f"`{other}` and `{role}` are both along the dim `{place.dim}`."
            raise value_error(function, wrong, "Give different dims.")
    x, y = found.get("x"), found.get("y")
    if x is not None and y is not None and x.dim == y.dim and x.column == y.column:
        wrong = f"`x` and `y` are both `{x.column or x.dim}`."
        raise value_error(function, wrong, "Give different dims or coordinates.")


def is_inner(array: DataArray, dim: str) -> bool:
    """Whether a dim is one of the arrays that the points have as values."""
    return dim.startswith(f"{array.name}.") and not columns_of(array, dim)


def is_cloud(array: DataArray, dim: str) -> bool:
    """Whether the points of a dim have several coordinates that go their own ways.

    Those that rise or fall together, and different names, say the same of a point.
    """
    columns = columns_of(array, dim)
    if len(columns) < 2:
        return False
    numbers = [v for v in columns.values() if v.dtype.kind in "iuf"]
    names = [v for v in columns.values() if v.dtype.kind not in "iuf"]
    steps = [np.diff(v.astype(float)) for v in numbers]
    path = all(np.all(step > 0) or np.all(step < 0) for step in steps)
    return not (numbers and path and all(len(set(v)) == len(v) for v in names))


def _is_repeat(array: DataArray, dim: str) -> bool:
    return not columns_of(array, dim) and not is_inner(array, dim)


def place_scale(array: DataArray, place: Place, log: frozenset[str]) -> Scale:
    """The scale of a dim by its column, and the others with it that rise and fall so.

    For a cloud of points, of which none was chosen, it is the first column.
    """
    column = place.column or next(iter(place.columns), None)
    scale = scale_of(array, place.dim, column, log, spread=place.cloud)
    others = [name for name in place.columns if name != column]
    if place.chosen or place.cloud or not others:
        return scale
    if len(scale.texts) > FEW:
        label = f"{scale.label} (with it {', '.join(others)})"
        return dataclasses.replace(scale, label=label)
    texts = list(scale.texts)
    for name in others:
        other = scale_of(array, place.dim, name, log)
        shown = dict(zip(other.order.tolist(), other.texts, strict=True))
        texts = [f"{t}, {shown[i]}" for t, i in zip(texts, scale.order, strict=True)]
    label = ", ".join(label_of(array, name) for name in (place.column, *others))
    return dataclasses.replace(scale, label=label, texts=texts, ticks=True)
