"""Points selected by the values of their axes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Bool

from ..._errors import describe_value, nearest, type_error, value_error
from ..._spaces import point_columns
from ..._tree import static_text
from .output_coords import dims_of

if TYPE_CHECKING:
    from .result import SweepResult
else:
    SweepResult = Any

_FUNCTION = "SweepResult.sel"

Wanted: TypeAlias = object | Sequence[object] | slice
"""One value of an axis, several values, or a range of numbers."""


def sel(
    self: SweepResult, wanted: Mapping[str, Wanted] | None = None, /, **more: Wanted
) -> SweepResult:
    """Select the points at which axes have given values.

    **Arguments:**

    - `wanted`, `more`: a dict, or keywords, from the path of an axis to a value, a list
      of values, or `slice(lo, hi)`, the numbers from `lo` to `hi`, both included.
      Floats are compared to rounding, and Python values of a `Static` axis by their
      text.

    **Returns:** a `SweepResult` of the points with these values on all axes, with one
    dim named `point`. To keep the dims, use `result.to_xarray().sel(...)`.

    **Raises:** `ValueError` for an unknown axis, and for a value that no point has.

    **Laws:** `result.sel(a=x)` is `result[mask]` for the mask of the points whose
    `a` is `x`.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = {"rate": ep.Geomspace(0.125, 1, 4), "on": ep.Values([0, 1])}
        >>> result = ep.sweep(lambda p: p["rate"] * p["on"], space)
        >>> result.sel(rate=[0.125, 1], on=1).values.tolist()
        [0.125, 1.0]
    """
    self._check_all_values("sel")
    space = self.space
    columns = point_columns(space.geometry, space.key)
    found = np.ones(space.size, bool)
    for name, values in {**(wanted or {}), **more}.items():
        if name in dims_of(self.output_coords):
            wrong = f"{name!r} is a dim of outputs, which all points have."
            raise value_error(
                _FUNCTION, wrong, f"Say `result.to_xarray().sel({name}=...)`."
            )
        if name not in columns:
            wrong = f"the space has no axis {describe_value(name)}."
            raise value_error(_FUNCTION, wrong, nearest(name, columns))
        found &= _among(name, columns[name], values)
    return self[np.flatnonzero(found)]


def _among(name: str, column: np.ndarray, wanted: Any) -> Bool[np.ndarray, " points"]:
    """Return a mask of the wanted entries of a column."""
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
    """Return where a column equals a value: floats in its dtype, to rounding."""
    if column.dtype.kind == "U":
        return column == (value if isinstance(value, str) else static_text(value))
    value = np.asarray(value)
    if value.dtype.kind not in "biufc" or value.ndim:
        return np.zeros(len(column), bool)
    if column.dtype.kind not in "fc":
        return column == value
    # The number 0.1 differs between float32 and Python.
    return np.isclose(column, value, rtol=8 * np.finfo(column.dtype).eps, atol=0)
