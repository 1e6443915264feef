"""What is drawn: one variable, cut down to what is selected; which dim goes where."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .._check import is_integer
from .._errors import describe_value, nearest, quoted, type_error, value_error
from .scale import (
    FEW,
    FUNCTION,
    KIND,
    DataArray,
    Dataset,
    Place,
    columns_of,
    find,
    is_number,
    value_text,
)

MOST_ENTRIES = 20

_ROUNDING = 1e-6


def pick(
    data: Dataset,
    variable: str | None,
    sel: Mapping[str, object] | None,
    asked: Iterable[str | None],
) -> tuple[DataArray, list[str]]:
    """A real `DataArray` of at least one dim, with the coordinate `KIND`.

    And the texts of what was selected. Dims of length 1 are selected by themselves,
    unless `asked` names them.
    """
    array, chosen = _variable(data, variable), list[str]()
    if sel is not None and not isinstance(sel, Mapping):
        cure = "Give a dict from names to values: `sel={'rate': 0.5}`."
        raise type_error(FUNCTION, f"`sel` is {describe_value(sel)}.", cure)
    for name, value in (sel or {}).items():
        array, text = _select(array, name, value)
        chosen.append(text)
    kept = set(asked)
    for dim in map(str, array.dims):
        if array.sizes[dim] == 1 and array.ndim > 1:
            if not kept & {dim, *columns_of(array, dim)}:
                array, text = _at(array, dim, 0)
                chosen.append(text)
    if not array.ndim:
        wrong = f"one value of `{array.name}` is left, {value_text(array.values)}."
        raise value_error(FUNCTION, wrong, "Leave a dim out of `sel=`.")
    return array, chosen


def _variable(data: Dataset, variable: str | None) -> DataArray:
    names = [str(name) for name in data.data_vars]
    name = names[0] if variable is None and len(names) == 1 else variable
    if name not in names:
        wrong = f"`variable` is {describe_value(variable)}."
        if variable is None:
            wrong = f"there are {len(names)} outputs and `variable` is not given."
        raise value_error(FUNCTION, wrong, nearest(variable, names))
    array = data[name].assign_coords(_entries(data, data[name].dims))
    if array.dtype.kind not in "biuf":
        raise value_error(
            FUNCTION,
            f"`{name}` is {array.dtype}, which has no order.",
            "Sweep a function that gives a real number, such as the absolute "
            "value, or draw it from `result.to_xarray()`.",
        )
    array = array.astype(array.dtype if array.dtype.kind == "f" else np.float64)
    own = "sweep.status" if "sweep.status" in data.coords else "status"
    status = data[own].broadcast_like(array).transpose(*array.dims).values
    values = array.values
    found = [status == 2, status == 0, np.isnan(values), values == np.inf]
    kind = np.select([*found, values == -np.inf], [1, 5, 2, 3, 4])
    shown = array.where(status == 1).drop_vars(own)
    return shown.assign_coords({KIND: (array.dims, kind)})


def _entries(data: Dataset, dims: Iterable[Any]) -> dict[str, Any]:
    """Coordinates that are arrays at each point, which a variable does not keep.

    There is one for each entry; of many, the position alone. Raw data of PRNG keys,
    which mean nothing, are left out.
    """
    found: dict[str, Any] = {}
    for name, coordinate in data.coords.items():
        values, place, attrs = coordinate.values, coordinate.dims[:1], coordinate.attrs
        is_key = values.dtype == np.uint32
        if set(coordinate.dims) <= set(dims) or place[0] not in dims or is_key:
            continue
        entries = list(np.ndindex(values.shape[1:]))
        if len(entries) > MOST_ENTRIES:
            found[str(name)] = (place, np.arange(len(values)), attrs)
            continue
        for entry in entries:
            at = ".".join(map(str, entry))
            label = f"{attrs.get('long_name', name)}.{at}"
            column = values[(slice(None), *entry)]
            found[f"{name}.{at}"] = (place, column, {**attrs, "long_name": label})
    return found


def _select(array: DataArray, name: str, value: Any) -> tuple[DataArray, str]:
    """The part of an array where a coordinate is nearest to a value.

    On a dim without a coordinate of its name the value is a position.
    """
    dim, column = find(array, "`sel` names", name)
    what, n = f"`sel[{name!r}]` is {describe_value(value)}", array.sizes[dim]
    values = np.arange(n) if column is None else column
    if column is None:
        if not is_integer(value):
            cure = "Give a position, an integer."
            raise type_error(FUNCTION, f"{what}, and `{name}` has no values.", cure)
        value += n * (-n <= value < 0)  # a position may count from the end
    asked = np.asarray(value)
    if asked.ndim or not {values.dtype.kind, asked.dtype.kind} <= set("iufb"):
        equal = np.flatnonzero([v == value for v in values.tolist()])
        if not len(equal):
            raise value_error(FUNCTION, f"{what}.", nearest(value, values.tolist()))
        return _at(array, dim, int(equal[0]), name)
    numbers, number = values.astype(float), float(value)
    least, most = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    # A number that was given as a decimal is not quite the coordinate's.
    margin = _ROUNDING * max(abs(least), abs(most))
    if not least - margin <= number <= most + margin:
        raise value_error(
            FUNCTION,
            f"`sel[{name!r}]` is {number:.6g}, and `{name}` goes from {least:.6g} "
            f"to {most:.6g}.",
            "Give a value in this range: the point nearest to it is drawn.",
        )
    place = int(np.nanargmin(np.abs(numbers - number)))
    return _at(array, dim, place, None if column is None else name)


def _at(
    array: DataArray, dim: str, at: int, name: str | None = None
) -> tuple[DataArray, str]:
    """The part at a position, and the text that names it."""
    label = name or next(iter(columns_of(array, dim)), None)
    part = array.isel({dim: at})
    if label is None:
        return part, f"{dim} = {at}"
    attrs = array[label].attrs
    unit = f" {attrs['units']}" if attrs.get("units") else ""
    shown = value_text(part[label].values)
    return part, f"{attrs.get('long_name') or label} = {shown}{unit}"


def places_of(array: DataArray, given: Mapping[str, str | None]) -> dict[str, Place]:
    """The places of all dims of an array by role: `x`, `y`, `hue`, `row` and `col`.

    `given` names dims or coordinates. A dim whose points have several coordinates of
    their own (a design) is a cloud of points; where each point is an array, it is a
    curve; a dim that only PRNG keys vary along repeats the others; a few names beside
    many numbers are lines. What is left are the axes of a line or a heat map.
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
        cure = "Leave out one of " + quoted(f"{role}=" for role in found) + "."
        raise value_error(FUNCTION, "no dim is left for the x axis.", cure)
    x = found["x"]
    if x.cloud and not x.chosen and not {"y", "hue"} & set(found):
        first, second, *others = x.columns
        if others:
            raise value_error(
                FUNCTION,
                f"`{x.dim}` has {len(x.columns)} coordinates, and a picture has two "
                "axes.",
                f"Say which coordinates they show: `x={first!r}`, `y={second!r}`.",
            )
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
    value = value if is_number(values) else repr(value)
    return value_error(
        FUNCTION,
        f"{what} ({sizes}); a picture shows three unless it is told where others go.",
        f"Select a value first, `sel={{{name!r}: {value}}}`, or say where: `x=`, "
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
        elif not found and (names := _names_beside_numbers(array, free)):
            put("hue", names)
        elif cloud and "x" not in found:
            long = [d for d in free if d != cloud and array.sizes[d] > FEW]
            put("x", long[0] if long else cloud)
            put("hue", cloud if long else None)
    x = found["x"].dim if "x" in found else slots.get("x")
    lines = "hue" in found or "hue" in slots or (x is not None and _is_cloud(array, x))
    for role in ("x", "col") if lines else ("x", "y", "col"):
        put(role, free[0] if free else None)
    return slots


def _names_beside_numbers(array: DataArray, free: list[str]) -> str | None:
    """Of two dims the one whose few names are best told apart as lines, if any."""
    if len(free) != 2:
        return None
    columns = [next(iter(columns_of(array, dim).values()), None) for dim in free]
    numbers = [column is not None and is_number(column) for column in columns]
    if sum(numbers) != 1 or any(_is_cloud(array, dim) for dim in free):
        return None
    names, other = (free[numbers.index(k)] for k in (False, True))
    few = array.sizes[names] <= FEW < array.sizes[other]
    return names if few else None


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
