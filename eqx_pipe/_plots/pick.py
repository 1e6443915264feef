"""What is drawn: one variable of a dataset, cut down to the dims of a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._errors import describe_value, message, nearest
from .scale import coordinate_of, value_text

MOST_DIMS = 3


def pick(
    function: str, data: Any, variable: Any, sel: Any, dims: Any
) -> tuple[Any, list[str]]:
    """A real `DataArray` of one to three dims, with NaN where there is no result.

    And the texts of what was selected. Dims of length 1 are selected by themselves.
    """
    array = _masked(function, data, _variable(function, data, variable))
    chosen: list[str] = []
    for name, value in _mapping(function, sel).items():
        array, text = _select(function, array, name, value)
        chosen.append(text)
    wanted = _dims(function, array, dims)
    for dim in array.dims:
        if array.sizes[dim] == 1 and dim not in (wanted or ()) and array.ndim > 1:
            array, text = _at(array, str(dim), 0)
            chosen.append(text)
    inner = [d for d in array.dims if _is_inner(array, d)]
    if wanted is None and inner:
        _refuse(function, array, f"`{array.name}` is an array at each point", inner[0])
    if wanted is None and array.ndim > MOST_DIMS:
        _refuse(
            function, array, f"`{array.name}` has {array.ndim} dims", array.dims[-1]
        )
    wanted = wanted or [str(d) for d in array.dims]
    left = [d for d in array.dims if d not in wanted]
    if left:
        _refuse(function, array, f"`dims` leaves out `{left[0]}`", left[0])
    return array.transpose(*wanted), chosen


def _variable(function: str, data: Any, variable: Any) -> str:
    names = [str(name) for name in data.data_vars]
    if variable is None and len(names) == 1:
        return names[0]
    if variable in names:
        return variable
    wrong = f"`variable` is {describe_value(variable)}."
    if variable is None:
        wrong = f"there are {len(names)} outputs and `variable` is not given."
    raise ValueError(message(function, wrong, nearest(variable, names)))


def _masked(function: str, data: Any, name: str) -> Any:
    array = data[name]
    if array.dtype.kind not in "biuf":
        raise ValueError(
            message(
                function,
                f"`{name}` is {array.dtype}, which has no order.",
                "Sweep a function that gives a real number, such as the absolute "
                "value, or draw it from `result.to_xarray()`.",
            )
        )
    status = "sweep.status" if "sweep.status" in data.coords else "status"
    wide = np.float64 if array.dtype.kind != "f" else array.dtype
    shown = array.astype(wide)
    return shown.where(data[status] == 1) if status in data.coords else shown


def _mapping(function: str, sel: Any) -> Mapping[str, Any]:
    if sel is None:
        return {}
    if isinstance(sel, Mapping):
        return sel
    raise TypeError(
        message(
            function,
            f"`sel` is {describe_value(sel)}.",
            "Give a dict from names to values: `sel={'rate': 0.5}`.",
        )
    )


def _select(function: str, array: Any, name: Any, value: Any) -> tuple[Any, str]:
    """The part of an array where a coordinate is nearest to a value."""
    dim, values = name, None
    if name in array.coords and array[name].ndim == 1:
        dim, values = array[name].dims[0], np.asarray(array[name].values)
    elif name not in array.dims:
        known = [*array.dims, *(c for c in array.coords if array[c].ndim == 1)]
        known = [k for k in dict.fromkeys(map(str, known)) if "status" not in k]
        wrong = f"`sel` names {describe_value(name)}."
        raise ValueError(message(function, wrong, nearest(name, known)))
    if values is None:
        at, n = _index(function, name, value), array.sizes[dim]
        if not -n <= at < n:
            cure = f"Give a position from 0 to {n - 1}."
            raise ValueError(message(function, f"`sel[{name!r}]` is {at}.", cure))
    elif values.dtype.kind in "iufb" and _is_number(value):
        at = int(np.nanargmin(np.abs(values.astype(float) - float(value))))
    else:
        found = np.flatnonzero([v == value for v in values.tolist()])
        if not len(found):
            wrong = f"`sel[{name!r}]` is {describe_value(value)}."
            raise ValueError(message(function, wrong, nearest(value, values.tolist())))
        at = int(found[0])
    return _at(array, dim, at, None if values is None else str(name))


def _at(array: Any, dim: str, at: int, name: str | None = None) -> tuple[Any, str]:
    label = name or coordinate_of(array, dim)
    part = array.isel({dim: at})
    shown = at if label is None else value_text(part[label].values)
    return part, f"{label or dim} = {shown}"


def _index(function: str, name: Any, value: Any) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise TypeError(
        message(
            function,
            f"`sel[{name!r}]` is {describe_value(value)}, and `{name}` has no values.",
            "Give a position, an integer.",
        )
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.generic) or (
        hasattr(value, "dtype") and value.shape == ()
    )


def _dims(function: str, array: Any, dims: Any) -> list[str] | None:
    if dims is None:
        return None
    wanted = [dims] if isinstance(dims, str) else list(dims)
    for dim in wanted:
        if dim not in array.dims:
            wrong = f"`dims` names {describe_value(dim)}."
            raise ValueError(message(function, wrong, nearest(dim, array.dims)))
    if not 1 <= len(wanted) <= MOST_DIMS or len(set(wanted)) < len(wanted):
        raise ValueError(
            message(
                function,
                f"`dims` is {wanted}.",
                "Give one to three different dims: that of the x axis, of the y axis, "
                "and of the panels.",
            )
        )
    return wanted


def _is_inner(array: Any, dim: Any) -> bool:
    return str(dim).startswith(f"{array.name}.") and str(dim) not in array.coords


def _refuse(function: str, array: Any, what: str, dim: Any) -> None:
    sizes = ", ".join(f"`{d}`: {n}" for d, n in array.sizes.items())
    name = coordinate_of(array, str(dim))
    value = 0 if name is None else value_text(array[name].values[0])
    quoted = repr(value) if name and array[name].dtype.kind not in "iuf" else value
    some: Sequence[str] = [repr(str(d)) for d in array.dims][:2]
    raise ValueError(
        message(
            function,
            f"{what} ({sizes}); a picture shows one number for each place on at most "
            "three dims.",
            f"Select a value first, `sel={{{name or str(dim)!r}: {quoted}}}`, or say "
            f"what to draw: `dims=({', '.join(some)})` with a value in `sel` for each "
            "other dim.",
        )
    )
