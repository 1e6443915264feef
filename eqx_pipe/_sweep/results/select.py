"""Points selected from a result: by the values of their axes, or as the best one."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool, Int64

from ..._check import check_choice
from ..._errors import describe_value, nearest, type_error, value_error
from ..._spaces import point_columns
from ..._tree import as_data, leaf_text, leaves_with_names, on_device, static_text
from ..._types import PyTree
from ..store import stored_in
from .output_coords import dims_of

if TYPE_CHECKING:
    from .result import SweepResult
else:
    SweepResult = Any

_READ_BYTES = 64 * 1024 * 1024
"""The bytes of a store to hold in memory at once, if all of it is read."""

_FEW = 8
"""Arrays with more entries than this are shown by their shape."""

_SEL = "SweepResult.sel"

Wanted: TypeAlias = object | Sequence[object] | slice
"""One value of an axis, several values, or a range of numbers."""

Compared: TypeAlias = str | Callable[[PyTree], Any] | None
"""The score of a point: the path of a scalar output, or a function of one output."""


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
            raise value_error(_SEL, wrong, f"Say `result.to_xarray().sel({name}=...)`.")
        if name not in columns:
            wrong = f"the space has no axis {describe_value(name)}."
            raise value_error(_SEL, wrong, nearest(name, columns))
        found &= _among(name, columns[name], values)
    return self[np.flatnonzero(found)]


def _among(name: str, column: np.ndarray, wanted: Any) -> Bool[np.ndarray, " points"]:
    """Return a mask of the wanted entries of a column."""
    is_range = isinstance(wanted, slice)
    numbers = column.dtype.kind in "iuf" and getattr(wanted, "step", None) is None
    if column.ndim > 1 or (is_range and not numbers):
        raise type_error(
            _SEL,
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
                _SEL,
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


@dataclasses.dataclass(frozen=True)
class Best:
    """The best point of a sweep.

    `index` is its index and `point` the point; `value` is the number that was compared,
    and `output` the whole output at that point. `coordinates` has the values of the
    axes by name, which are printed.
    """

    index: int
    point: PyTree
    value: bool | int | float
    output: PyTree
    coordinates: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        own = [("index", self.index), ("value", self.value), *self.coordinates.items()]
        texts = (f"{name}={_short(value)}" for name, value in own)
        return f"Best({', '.join(texts)})"


def _short(value: Any) -> str:
    """Return a coordinate as text."""
    if np.size(value) > _FEW:
        return leaf_text(value)
    value = np.asarray(value).tolist()
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


def best(self: SweepResult, by: Compared = None, mode: str = "min") -> Best:
    """Return the point with the smallest or largest output.

    Points without a value, or with a NaN, are never selected; ties go to the lowest
    index.

    **Arguments:**

    - `by`: the score: the path of a scalar output (`"loss"`, `"fit.loss"`), or a
      function from the output at one point to a scalar. Not needed if the output is one
      scalar.
    - `mode`: `"min"` or `"max"`.

    **Returns:** an object with `.index`, `.point`, `.value` (the scalar that was
    compared) and `.output` (the whole output there).

    **Raises:** `ValueError` if `by` does not name a scalar, or if every point failed or
    has a NaN.

    !!! example

        >>> import eqx_pipe as ep
        >>> best = ep.sweep(lambda x: (x - 2) ** 2, ep.Linspace(0, 4, 9)).best()
        >>> best.index, best.point.item()
        (4, 2.0)
    """
    function, space = "SweepResult.best", self.space
    self._check_all_values("best")
    check_choice(function, "mode", mode, ("min", "max"))
    found = scores(function, self.values, len(self), by, _parts(self))
    allowed = np.flatnonzero(self.ok & ~np.isnan(found))
    if not len(allowed):
        raise value_error(
            function,
            "every point failed, or has the value NaN.",
            "Look at `result.ok` and `result.values`.",
        )
    pick = np.argmin if mode == "min" else np.argmax
    i = int(allowed[pick(found[allowed])])
    output = jtu.tree_map(lambda leaf: leaf[i], self.values)
    columns = point_columns(space[[i]].geometry, space.key)
    there = {name: column[0] for name, column in columns.items()}
    return Best(i, space.point(i), found[i].item(), output, there)


def _parts(result: SweepResult) -> list[slice]:
    """Return slices of all points, each small enough to be read into memory."""
    leaves = jtu.tree_leaves(result.values)
    if stored_in(leaves) is None:
        return [slice(None)]
    row = sum(leaf.nbytes for leaf in leaves) // len(result)
    step = max(1, _READ_BYTES // max(1, row))
    return [slice(i, i + step) for i in range(0, len(result), step)]


def scores(
    function: str, values: PyTree, size: int, by: Compared, parts: Sequence[slice]
) -> np.ndarray:
    """Return the score of each point.

    `parts` are slices of all points in order, each small enough to fit into memory.
    """
    if callable(by):
        name, found = "by", np.concatenate([_scored(values, by, p) for p in parts])
    else:
        named = {name or "value": leaf for name, leaf in leaves_with_names(values)}
        name = _output_name(function, named, by)
        found = _on_host(named[name])
    if found.shape != (size,) or found.dtype.kind not in "biuf":
        raise value_error(
            function,
            f"`{name}` is a {found.dtype}{list(found.shape[1:])} per point.",
            "Compare by a real scalar: the path of one, or a function of the "
            "output that returns one.",
        )
    return found


def ranked(
    scores: np.ndarray, mode: str, allowed: Bool[np.ndarray, " points"] | None = None
) -> Int64[np.ndarray, " allowed"]:
    """Return the indices of the allowed scores, best first: NaN last, ties by index.

    Scores are never negated, which wraps around for unsigned numbers and the smallest
    integer, and which bools do not support.
    """
    index = np.arange(len(scores)) if allowed is None else np.flatnonzero(allowed)
    scores = scores[index]
    if mode == "min":
        return index[np.argsort(scores, kind="stable")]
    # In a stable sort of the reversed scores, the last of equal ones is the first.
    order = len(index) - 1 - np.argsort(scores[::-1], kind="stable")[::-1]
    return index[np.roll(order, -np.count_nonzero(np.isnan(scores)))]


def _scored(values: PyTree, by: Callable[[PyTree], Any], part: slice) -> np.ndarray:
    outputs = jtu.tree_map(lambda leaf: on_device(leaf[part]), values)
    return _on_host(jax.vmap(by)(outputs))


def _output_name(function: str, named: Mapping[str, Any], by: object) -> str:
    """Return the name of the output `by`, or of the only one; raise if unknown."""
    if by is None and len(named) == 1:
        return next(iter(named))
    if isinstance(by, str) and by in named:
        return by
    wrong = f"`by` is {describe_value(by)}"
    if by is None:
        wrong = f"there are {len(named)} outputs, and `by` chooses none"
    cure = nearest(by, named)
    if isinstance(by, str) and by in ("min", "max"):
        cure = f'The first argument is what is compared: `mode="{by}"`. {cure}'
    raise value_error(function, f"{wrong}.", cure)


def _on_host(x: Any) -> np.ndarray:
    """Return a NumPy array, in float32 if NumPy does not know the dtype (bfloat16)."""
    array = np.asarray(as_data(x))
    known = array.dtype.kind in "biufc"
    return array if known else array.astype(np.float32)
