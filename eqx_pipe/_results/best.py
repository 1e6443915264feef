"""The comparison of points: scores, their order, and the best one."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from .._errors import describe_value, nearest, value_error
from .._run import needs_value
from .._spaces import Space
from .._tree import leaf_text, leaves_with_names, on_device
from .._types import PyTree
from .names import storable

Compared: TypeAlias = str | Callable[[PyTree], Any] | None
"""The score of a point: the path of a scalar output, or a function of one output."""

_FEW = 8
"""Arrays with more entries than this are shown by their shape."""


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


def _short(value: object) -> str:
    """Return a coordinate as text."""
    if np.size(value) > _FEW:
        return leaf_text(value)
    value = np.asarray(value).tolist()
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


def replicates(
    space: Space, over: Sequence[str]
) -> Int64[np.ndarray, "settings replicates"]:
    """Return the points of each setting, which differ along the dims `over`."""
    points = np.arange(space.size).reshape(tuple(space.dims.values()))
    dims = [k for k, dim in enumerate(space.dims) if dim in over]
    points = np.moveaxis(points, dims, range(-len(dims), 0))
    return points.reshape(-1, math.prod(points.shape[-len(dims) :]))


def means_of(
    space: Space,
    over: Sequence[str],
    scores: Shaped[np.ndarray, " points"],
    allowed: Bool[np.ndarray, " points"],
) -> Float64[np.ndarray, " settings"]:
    """Return the mean score of each setting; NaN if a replicate is not allowed."""
    # A NaN makes the mean of its setting NaN, as infinities of both signs do.
    compared = np.where(allowed, scores.astype(np.float64), np.nan)
    with np.errstate(invalid="ignore"):
        return compared[replicates(space, over)].mean(axis=1)


def scores(function: str, values: PyTree, size: int, by: Compared) -> np.ndarray:
    """Return the score of each of `size` points."""
    if callable(by):
        name, numbers = "by", _scored(values, by)
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


def _scored(values: PyTree, by: Callable[[PyTree], Any]) -> np.ndarray:
    outputs = jtu.tree_map(lambda leaf: on_device(leaf[:]), values)
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
