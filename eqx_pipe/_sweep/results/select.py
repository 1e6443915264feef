"""The points at which axes have some values."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Int64

from ..._errors import describe_value, nearest, type_error, value_error
from ..._spaces import Space, point_columns
from ..._tree import static_text
from .output_coords import KnownCoords, dims_of

_FUNCTION = "SweepResult.sel"

Wanted: TypeAlias = object | Sequence[object] | slice
"""One value of an axis, several of them, or a range of numbers."""


def selected(
    space: Space, wanted: Mapping[str, Wanted], known: KnownCoords
) -> Int64[np.ndarray, " some"]:
    """Return the indices of the points at which all axes have a wanted value."""
    columns = point_columns(space.geometry, space.key)
    found = np.ones(space.size, bool)
    for name, values in wanted.items():
        if name in dims_of(known):
            wrong = f"{name!r} is a dim of outputs, which all points have."
            raise value_error(
                _FUNCTION, wrong, f"Say `result.to_xarray().sel({name}=...)`."
            )
        if name not in columns:
            wrong = f"the space has no axis {describe_value(name)}."
            raise value_error(_FUNCTION, wrong, nearest(name, columns))
        found &= _among(name, columns[name], values)
    return np.flatnonzero(found)


def _among(name: str, column: np.ndarray, wanted: Any) -> Bool[np.ndarray, " points"]:
    """Return which entries of a column are wanted."""
    is_range = isinstance(wanted, slice)
    numbers = column.dtype.kind in "iuf" and getattr(wanted, "step", None) is None
    if column.ndim > 1 or (is_range and not numbers):
        raise type_error(
            _FUNCTION,
            f"`{name}`, {column.dtype}{list(column.shape)}, is selected by {wanted}.",
            "Numbers are selected by values or by `slice(low, high)` without a step, "
            "names by values, and arrays by a mask: `result[mask]`.",
        )
    if is_range:
        low = -np.inf if wanted.start is None else wanted.start
        high = np.inf if wanted.stop is None else wanted.stop
        inside = (column >= low) & (column <= high)
        return inside | _equal(column, low) | _equal(column, high)
    several = isinstance(wanted, list | tuple | range) or np.ndim(wanted) > 0
    found = np.zeros(len(column), bool)
    for value in wanted if several else [wanted]:
        here = _equal(column, value)
        if not here.any() and len(column):  # an empty space has no values at all
            raise value_error(
                _FUNCTION,
                f"no point has the value {describe_value(value)} of `{name}`.",
                f"A range is `sel({name}=slice(low, high))`; "
                "`result.space.to_pandas()` shows all values.",
            )
        found |= here
    return found


def _equal(column: np.ndarray, value: Any) -> Bool[np.ndarray, " points"]:
    """Return where a column has a value: floats in its dtype, to rounding."""
    if column.dtype.kind == "U":
        return column == (value if isinstance(value, str) else static_text(value))
    value = np.asarray(value)
    if value.dtype.kind not in "biufc" or value.ndim:
        return np.zeros(len(column), bool)
    if column.dtype.kind not in "fc":
        return column == value
    # 0.1 is another number in float32 than in Python.
    return np.isclose(column, value, rtol=8 * np.finfo(column.dtype).eps, atol=0)
