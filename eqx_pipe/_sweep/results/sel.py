"""Which points have some values of the axes."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Int64

from ..._errors import describe_value, nearest, type_error, value_error
from ..._spaces import Space, point_columns
from ..._tree import static_text
from .output_coords import KnownCoords, dims_of

_FUNCTION = "SweepResult.sel"
_SHOWN = 5

Wanted: TypeAlias = object | Sequence[object] | slice
"""One value of an axis, several of them, or those from one to another."""


def selected(
    space: Space, wanted: Mapping[str, Wanted], known: KnownCoords
) -> Int64[np.ndarray, " some"]:
    """The indices of the points at which all axes have a value that is wanted."""
    columns = point_columns(space.geometry, space.key)
    found = np.ones(space.size, bool)
    for name, values in wanted.items():
        if name not in columns:
            wrong = f"the space has no axis {describe_value(name)}."
            cure = nearest(name, columns)
            if name in dims_of(known):
                wrong = f"{name!r} is a dim of outputs, which all points have."
                cure = f"Say `result.to_xarray().sel({name}=...)`."
            raise value_error(_FUNCTION, wrong, cure)
        found &= _among(name, columns[name], values)
    return np.flatnonzero(found)


def _among(name: str, column: np.ndarray, wanted: Any) -> Bool[np.ndarray, " points"]:
    """Where a column has a value that is wanted."""
    if column.ndim > 1:
        raise type_error(
            _FUNCTION,
            f"the values of `{name}` have the shape {column.shape[1:]}.",
            "Choose the points by a mask, `result[mask]`.",
        )
    if isinstance(wanted, slice):
        return _between(name, column, wanted)
    several = isinstance(wanted, list | tuple | range) or np.ndim(wanted) > 0
    found = np.zeros(len(column), bool)
    for value in wanted if several else [wanted]:
        here = _equal(column, value)
        # Of no points none has any value.
        if not here.any() and len(column):
            raise value_error(
                _FUNCTION,
                f"no point has the value {describe_value(value)} of `{name}`.",
                f"It has {_nearby(column, value)}; a range is "
                f"`sel({name}=slice(lo, hi))`.",
            )
        found |= here
    return found


def _between(name: str, column: np.ndarray, ends: slice) -> Bool[np.ndarray, " points"]:
    """Where a column lies between two ends, both included."""
    if ends.step is not None or column.dtype.kind not in "iuf":
        raise type_error(
            _FUNCTION,
            f"`{name}` is chosen by {ends}.",
            "A slice is of numbers, from one to another, both included, without a "
            "step; for anything else give a list of values or a mask.",
        )
    found = np.ones(len(column), bool)
    if ends.start is not None:
        found &= (column >= ends.start) | _equal(column, ends.start)
    if ends.stop is not None:
        found &= (column <= ends.stop) | _equal(column, ends.stop)
    return found


def _equal(column: np.ndarray, value: Any) -> Bool[np.ndarray, " points"]:
    """Where a column has a value: floats as their dtype holds it, to rounding."""
    if column.dtype.kind == "U":
        return column == (value if isinstance(value, str) else static_text(value))
    value = np.asarray(value)
    if value.dtype.kind not in "biufc" or value.ndim:
        return np.zeros(len(column), bool)
    if column.dtype.kind not in "fc":
        return column == value
    # 0.1 is another number in float32 than in Python.
    return np.isclose(column, value, rtol=8 * np.finfo(column.dtype).eps, atol=0)


def _nearby(column: np.ndarray, value: Any) -> str:
    """The values of a column that are the nearest to one, as text."""
    known = np.unique(column)
    number = np.asarray(value)
    if known.dtype.kind in "iuf" and number.dtype.kind in "iuf" and not number.ndim:
        known = np.sort(known[np.argsort(np.abs(known - number))[:_SHOWN]])
    more = [] if len(known) <= _SHOWN else ["..."]
    listed = [repr(x) for x in known[:_SHOWN].tolist()]
    return ", ".join(listed + more)
