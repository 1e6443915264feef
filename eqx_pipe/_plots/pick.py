"""What is drawn: one variable of a dataset, cut down to what is selected."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .._errors import describe_value, nearest, type_error, value_error
from .scale import columns_of, value_text
from .types import DataArray, Dataset

MOST_ENTRIES = 20

_ROUNDING = 1e-6


def pick(
    function: str,
    data: Dataset,
    variable: str | None,
    sel: Mapping[str, object] | None,
    asked: Iterable[str | None],
) -> tuple[DataArray, list[str]]:
    """A real `DataArray` of at least one dim, with NaN where there is no result.

    And the texts of what was selected. Dims of length 1 are selected by themselves,
    unless `asked` names them.
    """
    array = _masked(function, data, _variable(function, data, variable))
    chosen: list[str] = []
    for name, value in _mapping(function, sel).items():
        array, text = _select(function, array, name, value)
        chosen.append(text)
    kept = set(asked)
    for dim in array.dims:
        named = kept & {str(dim), *columns_of(array, str(dim))}
        if array.sizes[dim] == 1 and array.ndim > 1 and not named:
            array, text = _at(array, str(dim), 0)
            chosen.append(text)
    if not array.ndim:
        raise value_error(
            function,
            f"one value of `{array.name}` is left, {value_text(array.values)}.",
            "Leave a dim out of `sel=`.",
        )
    return array, chosen


def _variable(function: str, data: Dataset, variable: str | None) -> str:
    names = [str(name) for name in data.data_vars]
    if variable is None and len(names) == 1:
        return names[0]
    if variable in names:
        return variable
    wrong = f"`variable` is {describe_value(variable)}."
    if variable is None:
        wrong = f"there are {len(names)} outputs and `variable` is not given."
    raise value_error(function, wrong, nearest(variable, names))


def _masked(function: str, data: Dataset, name: str) -> DataArray:
    array = data[name].assign_coords(_entries(data, data[name].dims))
    if array.dtype.kind not in "biuf":
        raise value_error(
            function,
            f"`{name}` is {array.dtype}, which has no order.",
            "Sweep a function that gives a real number, such as the absolute "
            "value, or draw it from `result.to_xarray()`.",
        )
    status = "sweep.status" if "sweep.status" in data.coords else "status"
    wide = np.float64 if array.dtype.kind != "f" else array.dtype
    shown = array.astype(wide)
    return shown.where(data[status] == 1) if status in data.coords else shown


def _entries(data: Dataset, dims: Sequence[Any]) -> dict[str, Any]:
    """Coordinates that are arrays at each point, which a variable does not keep.

    There is one for each entry; of many, the position alone. Raw data of PRNG keys,
    which mean nothing, are left out.
    """
    found: dict[str, Any] = {}
    for name, coordinate in data.coords.items():
        values, place = np.asarray(coordinate.values), coordinate.dims[:1]
        is_key = values.dtype == np.uint32
        if set(coordinate.dims) <= set(dims) or place[0] not in dims or is_key:
            continue
        entries = list(np.ndindex(values.shape[1:]))
        if len(entries) > MOST_ENTRIES:
            found[str(name)] = (place, np.arange(len(values)), coordinate.attrs)
            continue
        for entry in entries:
            at = ".".join(map(str, entry))
            attrs = dict(coordinate.attrs)
            if "long_name" in attrs:
                attrs["long_name"] += f".{at}"
            column = values[(slice(None), *entry)]
            found[f"{name}.{at}"] = (place, column, attrs)
    return found


def _mapping(function: str, sel: object) -> Mapping[Any, Any]:
    if sel is None:
        return {}
    if isinstance(sel, Mapping):
        return sel
    raise type_error(
        function,
        f"`sel` is {describe_value(sel)}.",
        "Give a dict from names to values: `sel={'rate': 0.5}`.",
    )


def _select(
    function: str, array: DataArray, name: Any, value: Any
) -> tuple[DataArray, str]:
    """The part of an array where a coordinate is nearest to a value."""
    dim, values = name, None
    if name in array.coords and array[name].ndim == 1:
        dim, values = array[name].dims[0], np.asarray(array[name].values)
    elif name not in array.dims:
        known = [*array.dims, *(c for c in array.coords if array[c].ndim == 1)]
        known = [k for k in dict.fromkeys(map(str, known)) if "status" not in k]
        wrong = f"`sel` names {describe_value(name)}."
        raise value_error(function, wrong, nearest(name, known))
    if values is None:
        at, n = _index(function, name, value), array.sizes[dim]
        if not -n <= at < n:
            cure = f"Give a position from 0 to {n - 1}."
            raise value_error(function, f"`sel[{name!r}]` is {at}.", cure)
    elif values.dtype.kind in "iufb" and _is_number(value):
        at = _nearest(function, name, values.astype(float), float(value))
    else:
        found = np.flatnonzero([v == value for v in values.tolist()])
        if not len(found):
            wrong = f"`sel[{name!r}]` is {describe_value(value)}."
            raise value_error(function, wrong, nearest(value, values.tolist()))
        at = int(found[0])
    return _at(array, str(dim), at, None if values is None else str(name))


def _nearest(function: str, name: Any, values: Any, value: float) -> int:
    """The position of the nearest of some values, none of which is far outside."""
    least, most = float(np.nanmin(values)), float(np.nanmax(values))
    # A number that was given as a decimal is not quite the coordinate's.
    margin = _ROUNDING * max(abs(least), abs(most))
    if not least - margin <= value <= most + margin:
        raise value_error(
            function,
            f"`sel[{name!r}]` is {value:.6g}, and `{name}` goes from {least:.6g} "
            f"to {most:.6g}.",
            "Give a value in this range: the point nearest to it is drawn.",
        )
    return int(np.nanargmin(np.abs(values - value)))


def _at(
    array: DataArray, dim: str, at: int, name: str | None = None
) -> tuple[DataArray, str]:
    columns = columns_of(array, dim)
    label = name or next(iter(columns), None)
    part = array.isel({dim: at})
    if label is None:
        return part, f"{dim} = {at}"
    unit = array[label].attrs.get("units")
    shown = value_text(part[label].values) + (f" {unit}" if unit else "")
    return part, f"{array[label].attrs.get('long_name') or label} = {shown}"


def _index(function: str, name: Any, value: Any) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise type_error(
        function,
        f"`sel[{name!r}]` is {describe_value(value)}, and `{name}` has no values.",
        "Give a position, an integer.",
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.generic) or (
        hasattr(value, "dtype") and value.shape == ()
    )
