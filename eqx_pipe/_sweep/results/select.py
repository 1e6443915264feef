"""Points selected from a result: by the values of their axes, or as the best one."""

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool, Int, Int64

from ..._check import check_choice
from ..._errors import describe_value, nearest, type_error, value_error
from ..._reduce import Over, as_over
from ..._spaces import Space, cells_of, point_columns
from ..._tree import (
    as_data,
    as_hashable,
    leaf_text,
    leaves_with_names,
    on_device,
    static_text,
)
from ..._types import PyTree
from ..call import needs_value
from ..store import stored_in
from .label import storable

_READ_BYTES = 64 * 1024 * 1024
"""The bytes of a store to hold in memory at once, if all of it is read."""

_FEW = 8
"""Arrays with more entries than this are shown by their shape."""

_SEL, _BEST = "SweepResult.sel", "SweepResult.best"

Wanted: TypeAlias = object | Sequence[object] | slice
"""One value of an axis, several values, or a range of numbers."""

_Equal: TypeAlias = Callable[[np.ndarray, Any], Bool[np.ndarray, " points"]]
"""Return where a column equals a value."""

Compared: TypeAlias = str | Callable[[PyTree], Any] | None
"""The score of a point: the path of a scalar output, or a function of one output."""


def selected(
    space: Space, wanted: Mapping[str, Wanted], output_dims: Container[str]
) -> Bool[np.ndarray, " points"]:
    """Return a mask of the points at which axes have given values.

    `output_dims` are the dims of outputs, by which no point is selected.
    """
    geometry = space.geometry
    columns = point_columns(geometry)
    mask = np.ones(space.size, bool)
    for name, values in wanted.items():
        if name in output_dims:
            wrong = f"{name!r} is a dim of outputs, which all points have."
            raise value_error(_SEL, wrong, f"Say `result.to_xarray().sel({name}=...)`.")
        if name not in columns:
            wrong = f"the space has no axis {describe_value(name)}."
            raise value_error(_SEL, wrong, nearest(name, columns))
        column, equal = columns[name], _equal
        axis = geometry.axes.get(name)
        if axis is not None and axis.is_static:
            dim = geometry.axis_dims[geometry.names.index(name)]
            positions = geometry.digits(np.arange(space.size))[:, dim]
            equal = _equal_static(axis, positions)
        if isinstance(values, slice):
            mask &= _in_range(name, column, values)
        else:
            mask &= _any_of(name, column, equal, values)
    return mask


def _any_of(
    name: str, column: np.ndarray, equal: _Equal, wanted: Any
) -> Bool[np.ndarray, " points"]:
    """Return where a column equals the wanted value, or any of several ones."""
    chosen = equal(column, wanted)  # a value may itself be an array or a tuple
    is_several = isinstance(wanted, list | tuple | range) or np.ndim(wanted) > 0
    for value in wanted if is_several and not chosen.any() else [wanted]:
        same = equal(column, value)
        if not same.any() and len(column):  # an empty space has no values at all
            raise value_error(
                _SEL,
                f"no point has the value {describe_value(value)} of `{name}`.",
                f"A range is `sel({name}=slice(low, high))`; "
                "`result.space.to_pandas()` shows the values at all points, and "
                "`result[[i, j]]` selects points by position.",
            )
        chosen |= same
    return chosen


def _in_range(
    name: str, column: np.ndarray, wanted: slice
) -> Bool[np.ndarray, " points"]:
    """Return a mask of the numbers in a range, both ends included to rounding."""
    numbers = storable(column)
    ends = [storable(end) for end in (wanted.start, wanted.stop) if end is not None]
    is_real = all(end.dtype.kind in "biuf" and end.ndim == 0 for end in ends)
    if column.ndim > 1 or numbers.dtype.kind not in "iuf" or wanted.step or not is_real:
        raise type_error(
            _SEL,
            f"`{name}`, {column.dtype}{list(column.shape)}, is selected by {wanted}.",
            "`slice(low, high)`, without a step, selects a range of numbers. Select "
            "other values one by one, in a list, or by a mask: `result[mask]`.",
        )
    inside = np.ones(len(column), bool)
    if wanted.start is not None:
        inside &= (numbers >= storable(wanted.start)) | _equal(column, wanted.start)
    if wanted.stop is not None:
        inside &= (numbers <= storable(wanted.stop)) | _equal(column, wanted.stop)
    return inside


def _equal_static(axis: Any, positions: Int[np.ndarray, " points"]) -> _Equal:
    """Return `_equal` for a `Static` axis at some positions: values by identity."""
    keys = [as_hashable(axis.value(i, None)) for i in range(len(axis))]

    def equal(column: np.ndarray, value: Any) -> Bool[np.ndarray, " points"]:
        key = as_hashable(value)
        same = np.isin(positions, [i for i, other in enumerate(keys) if other == key])
        # A loaded axis has the texts of functions and other objects.
        return same if same.any() else _equal(column, value)

    return equal


def _equal(column: np.ndarray, value: Any) -> Bool[np.ndarray, " points"]:
    """Return where a column equals a value: floats in its dtype, to rounding."""
    if column.dtype.kind == "U":
        return column == (value if isinstance(value, str) else static_text(value))
    try:
        value = np.asarray(as_data(value))
    except ValueError:  # a list of lists of different lengths
        return np.zeros(len(column), bool)
    if value.dtype.kind not in "biufcV" or value.shape != column.shape[1:]:
        return np.zeros(len(column), bool)
    if jnp.issubdtype(column.dtype, jnp.inexact):
        same = _close(column, value)
    else:
        same = storable(column) == storable(value)
    return same.reshape(len(column), -1).all(axis=1)


def _close(column: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return where floats equal a value, or if none does, where they are close."""
    dtype, wide, exact = column.dtype, storable(column), storable(value)
    if np.iscomplexobj(exact):
        dtype = np.result_type(wide, exact)
    elif value.dtype.kind == dtype.kind and value.dtype.itemsize < dtype.itemsize:
        dtype = value.dtype  # a point has 32 bits of a coordinate with 64
    with np.errstate(over="ignore", invalid="ignore"):
        same = column.astype(dtype) == exact.astype(dtype)
    same &= np.isfinite(wide) == np.isfinite(exact)  # not a number that overflows
    if same.any() or dtype.itemsize < 4:
        return same
    # The number 0.1 differs between float32 and Python.
    return np.isclose(wide, exact, rtol=8 * np.finfo(dtype).eps, atol=0)


@dataclasses.dataclass(frozen=True)
class Best:
    """The best point of a sweep, or its best setting over replicates.

    `index` is its index and `point` the point; `value` is the number that was compared,
    and `output` the whole output at that point. `coordinates` has the values of the
    axes by name, which are printed.

    With `over=`, `index` has the indices of all replicates of the setting, `point` has
    `None` in place of the axes of `over`, `value` is the mean score, and `output` has
    the outputs of the replicates, with a leading axis: the values of `result[index]`.
    """

    index: int | Int64[np.ndarray, " replicates"]
    point: PyTree
    value: bool | int | float
    output: PyTree
    coordinates: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        # An axis may be called `index`, too.
        values = [("index", self.index), ("value", self.value)]
        values += self.coordinates.items()
        texts = (f"{name}={_short(value)}" for name, value in values)
        return f"Best({', '.join(texts)})"


def _short(value: Any) -> str:
    """Return a coordinate as text."""
    if np.size(value) > _FEW:
        return leaf_text(value)
    value = np.asarray(value).tolist()
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


def best_of(
    values: PyTree,
    ok: Bool[np.ndarray, " points"],
    space: Space,
    by: Compared,
    mode: str,
    over: Over,
) -> Best:
    """Return the best of the `ok` points, or setting; see `SweepResult.best`."""
    check_choice(_BEST, "mode", mode, ("min", "max"))
    compared = scores(_BEST, values, space.size, by)
    allowed = ok & ~np.isnan(compared)
    settings, numbers, of_point, one = space, range(space.size), None, "point"
    if over is not None:
        settings, numbers, of_point = _settings(space, as_over(over, _BEST, ""))
        one = "setting has a replicate that"
        # A NaN makes the mean of its setting NaN, as infinities of both signs do.
        compared = np.where(allowed, compared.astype(np.float64), np.nan)
        compared = np.bincount(of_point, compared) / np.bincount(of_point)
        allowed = ~np.isnan(compared)
    candidates = np.flatnonzero(allowed)
    if not len(candidates):
        wrong = f"every {one} failed, or has the value NaN."
        raise value_error(_BEST, wrong, "Look at `result.ok` and `result.values`.")
    # The first of `ranked`, in a thousandth of its time.
    pick = np.argmin if mode == "min" else np.argmax
    i = int(candidates[pick(compared[candidates])])
    index = i if of_point is None else np.flatnonzero(of_point == i)
    output = jtu.tree_map(lambda leaf: leaf[index], values)
    number = int(numbers[i])
    columns = point_columns(settings[number : number + 1].geometry)
    coordinates = {name: column[0] for name, column in columns.items()}
    point, value = settings.point(number), compared[i].item()
    return Best(index, point, value, output, coordinates)


def _settings(
    space: Space, over: Sequence[str]
) -> tuple[Space, np.ndarray, Int[np.ndarray, " points"]]:
    """Return the space of the other dims, and the settings with a point.

    They are points of that space, by their numbers. The last array has for each point
    the position of its setting among them. The points may be a part of a grid.
    """
    geometry = space.geometry
    dims = list(geometry.grid_dims)
    if set(over) >= set(dims):
        wrong = f"`over` names all dims, {', '.join(dims)}."
        raise value_error(_BEST, wrong, "Name those of replicates, not of settings.")
    settings = cells_of(_BEST, space, over, of_part=True)
    digits = geometry.digits(np.arange(space.size))
    numbers = np.zeros(space.size, np.int64 if settings.size < 2**62 else object)
    for dim, length in settings.dims.items():
        numbers = numbers * length + digits[:, dims.index(dim)]
    return settings, *np.unique(numbers, return_inverse=True)


def _parts(values: PyTree, size: int) -> list[slice]:
    """Return slices of all points, each small enough to be read into memory."""
    leaves = jtu.tree_leaves(values)
    if stored_in(leaves) is None:
        return [slice(None)]
    row = sum(leaf.nbytes for leaf in leaves) // size
    step = max(1, _READ_BYTES // max(1, row))
    return [slice(i, i + step) for i in range(0, size, step)]


def scores(function: str, values: PyTree, size: int, by: Compared) -> np.ndarray:
    """Return the score of each of `size` points."""
    if callable(by):
        name, parts = "by", _parts(values, size)
        numbers = np.concatenate([_scored(values, by, part) for part in parts])
    else:
        named = {name or "value": leaf for name, leaf in leaves_with_names(values)}
        name = _output_name(function, named, by)
        numbers = storable(named[name])
    if numbers.shape != (size,) or numbers.dtype.kind not in "biuf":
        raise value_error(
            function,
            f"`{name}` is a {numbers.dtype}{list(numbers.shape[1:])} per point.",
            "Compare by a real scalar: the path of one, or a function of the "
            "output that returns one.",
        )
    return numbers


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
    try:
        return storable(jax.vmap(by)(outputs))
    except Exception as error:
        if needs_value(error):
            error.add_note(
                "`by` is vectorised over points, so outputs are not known while it is "
                "traced. Use `jnp.where` in place of `if`, and functions of "
                "`jax.numpy` in place of those of `math` and NumPy."
            )
        raise


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
