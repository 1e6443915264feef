"""Which dim of a variable goes where: along x, along y, by colour, in panels."""

from collections.abc import Mapping

import numpy as np

from .._errors import value_error
from .scale import (
    FEW,
    FUNCTION,
    DataArray,
    Place,
    columns_of,
    find,
    is_number,
    value_text,
)


def places_of(array: DataArray, given: Mapping[str, str | None]) -> dict[str, Place]:
    """The places of all dims of an array by role: `x`, `y`, `hue`, `row` and `col`.

    `given` names dims or coordinates. A dim whose points have several coordinates of
    their own (a design) is a cloud of points; where each point is an array, it is a
    curve; a dim that only PRNG keys vary along repeats the others. What is left are the
    axes of a line or a heat map.
    """
    found: dict[str, Place] = {}
    for role, name in given.items():
        if name is not None:
            dim, column = find(array, f"`{role}` is", name)
            found[role] = _place(array, dim, None if column is None else name)
    _check(found)
    used = {place.dim for place in found.values()}
    free = [str(dim) for dim in array.dims if dim not in used]
    slots = _slots(array, free, found)
    found |= {role: _place(array, dim) for role, dim in slots.items()}
    left = [dim for dim in free if dim not in slots.values()]
    if left:
        raise _too_many(array, left)
    if "x" not in found:  # `y` alone, of one dim: along which else?
        cure = "Leave out one of " + ", ".join(f"`{role}=`" for role in found) + "."
        raise value_error(FUNCTION, "no dim is left for the x axis.", cure)
    x = found["x"]
    if x.cloud and not x.chosen and not {"y", "hue"} & set(found):
        if len(x.columns) == 2:  # points in a plane
            first, second = x.columns
            found["x"] = _place(array, x.dim, first)
            found["y"] = _place(array, x.dim, second)
    return found


def _too_many(array: DataArray, left: list[str]) -> ValueError:
    """There is too much, and selecting a value on the last dim would be less."""
    what = f"`{array.name}` has {array.ndim} dims"
    if any(_is_inner(array, dim) for dim in left):
        what += " (it is an array at each point)"
    sizes = ", ".join(f"`{d}`: {n}" for d, n in array.sizes.items())
    columns = columns_of(array, left[-1])
    name, values = next(iter(columns.items()), (left[-1], np.arange(1)))
    value = value_text(values[0])
    quoted = value if is_number(values) else repr(value)
    return value_error(
        FUNCTION,
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

    inner = [dim for dim in free if _is_inner(array, dim)]
    cloud = next((dim for dim in free if _is_cloud(array, dim)), None)
    repeats = next((dim for dim in free if _place(array, dim).repeats), None)
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
    lines = "hue" in found or "hue" in slots or (x is not None and _is_cloud(array, x))
    for role in ("x", "col") if lines else ("x", "y", "col"):
        put(role, free[0] if free else None)
    return slots


def _place(array: DataArray, dim: str, chosen: str | None = None) -> Place:
    """A dim with the coordinate that was chosen, or that labels it: its own, or the
    first on it, numbers before names. That of a cloud of points is none.
    """
    columns, cloud = columns_of(array, dim), _is_cloud(array, dim)
    numbers = [name for name, values in columns.items() if is_number(values)]
    own = [dim] if dim in columns else [*numbers, *columns, None]
    column = chosen or (None if cloud else own[0])
    repeats = not columns and not _is_inner(array, dim)
    return Place(dim, column, tuple(columns), cloud, repeats, chosen is not None)


def _check(found: Mapping[str, Place]) -> None:
    if "hue" in found and "y" in found:
        raise value_error(
            FUNCTION,
            "`hue` and `y` are both given.",
            "`hue=` gives a line for each position, whose height is the value; "
            "`x=` and `y=` give a heat map. Leave one out.",
        )
    owners: dict[str, str] = {}
    for role, place in found.items():
        other = owners.setdefault(place.dim, role)
        if other == role:
            continue
        wrong = f"`{other}` and `{role}` are both along the dim `{place.dim}`."
        if (other, role) == ("x", "y"):  # points, over two of their coordinates
            if found["x"].column != place.column:
                continue
            wrong = f"`x` and `y` are both `{place.column or place.dim}`."
        raise value_error(FUNCTION, wrong, "Give different dims or coordinates.")


def _is_inner(array: DataArray, dim: str) -> bool:
    """Whether a dim is one of the arrays that the points have as values."""
    return dim.startswith(f"{array.name}.") and not columns_of(array, dim)


def _is_cloud(array: DataArray, dim: str) -> bool:
    """Whether the points of a dim have several coordinates that go their own ways.

    Those that rise or fall together, and different names, say the same of a point.
    """
    columns = columns_of(array, dim).values()
    if len(columns) < 2:
        return False
    numbers = [v.astype(float) for v in columns if is_number(v)]
    names = [v for v in columns if not is_number(v)]
    steps = [np.sign(np.diff(v)) for v in numbers]
    path = all(np.all(step > 0) or np.all(step < 0) for step in steps)
    return not (numbers and path and all(len(set(v)) == len(v) for v in names))
