"""What is drawn: one variable of a dataset, cut down to what is selected."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .._check import is_integer
from .._errors import describe_value, nearest, type_error, value_error
from .scale import FUNCTION, KIND, DataArray, Dataset, columns_of, find, value_text

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
