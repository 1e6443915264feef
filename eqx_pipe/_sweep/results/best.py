"""The best point of a sweep: what is compared, and who wins."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool

from ..._errors import describe_value, nearest, value_error
from ..._spaces import Space, point_columns
from ..._tree import leaf_text, leaves_with_names, on_device
from ..._types import PyTree

_FEW = 8
"""Arrays with more entries than this are shown by their shape."""

Compared: TypeAlias = str | Callable[[PyTree], Any] | None
"""What is compared: the path of a scalar output, or a function of one output."""


@dataclasses.dataclass(frozen=True)
class Best:
    """The best point of a sweep.

    `value` is the number that was compared, `output` everything that the function
    gave there; `coordinates` are the values of the axes by their names, which is what
    is printed.
    """

    index: int
    point: PyTree
    value: bool | int | float
    output: PyTree
    coordinates: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        own = [("index", self.index), ("value", self.value)]
        found = [*own, *self.coordinates.items()]
        texts = (f"{name}={_short(value)}" for name, value in found)
        return f"Best({', '.join(texts)})"


def _short(value: Any) -> str:
    """A coordinate as text."""
    if np.size(value) > _FEW:
        return leaf_text(value)
    value = np.asarray(value).tolist()
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


def best(
    values: PyTree,
    space: Space,
    ok: Bool[np.ndarray, " points"],
    by: Compared,
    mode: str,
    parts: Sequence[slice],
) -> Best:
    """The point with the smallest or largest output; see `SweepResult.best`.

    `parts` are all points in order, those of one part few enough to be held at once.
    """
    found = scores("SweepResult.best", values, space.size, by, parts)
    allowed = ok & ~np.isnan(found)
    if not np.any(allowed):
        raise value_error(
            "SweepResult.best",
            "no point has a value that is a number.",
            "Look at `result.values` and `result.ok`.",
        )
    candidates = np.flatnonzero(allowed)
    pick = np.argmin if mode == "min" else np.argmax
    i = int(candidates[pick(found[candidates])])
    output = jtu.tree_map(lambda leaf: leaf[i], values)
    columns = point_columns(space[[i]].geometry, space.key)
    there = {name: column[0] for name, column in columns.items()}
    return Best(i, space.point(i), found[i].item(), output, there)


def _scores_of_part(
    values: PyTree, by: Callable[[PyTree], Any], part: slice
) -> np.ndarray:
    outputs = jtu.tree_map(lambda leaf: on_device(leaf[part]), values)
    return _host(jax.vmap(by)(outputs))


def scores(
    function: str, values: PyTree, size: int, by: Compared, parts: Sequence[slice]
) -> np.ndarray:
    """The number of each point by which points are compared."""
    named = {name or "value": leaf for name, leaf in leaves_with_names(values)}
    if callable(by):
        shown = "by"
        found = np.concatenate([_scores_of_part(values, by, part) for part in parts])
    elif by is None and len(named) == 1:
        shown, found = next((k, _host(v)) for k, v in named.items())
    elif isinstance(by, str) and by in named:
        shown, found = by, _host(named[by])
    else:
        wrong = f"`by` is {describe_value(by)}"
        if by is None:
            wrong = f"the output has {len(named)} leaves and `by` is not given"
        cure = nearest(by, named)
        if isinstance(by, str) and by in ("min", "max"):
            cure = f'The first argument is what is compared: `mode="{by}"`. {cure}'
        raise value_error(function, f"{wrong}.", cure)
    if found.shape != (size,) or found.dtype.kind not in "biuf":
        raise value_error(
            function,
            f"`{shown}` is a {found.dtype}{list(found.shape[1:])} per point.",
            "Compare by a real scalar: the path of one, or a function of the "
            "output that gives one.",
        )
    return found


def _host(x: Any) -> np.ndarray:
    """As NumPy, in float32 if NumPy itself does not know the dtype (bfloat16)."""
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    array = np.asarray(jax.random.key_data(x) if is_key else x)
    known = array.dtype.kind in "biufc"
    return array if known else array.astype(np.float32)
