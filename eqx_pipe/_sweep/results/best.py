"""The best point of a sweep: the scores by which points are compared."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.tree_util as jtu
import numpy as np

from ..._check import check_choice
from ..._errors import describe_value, nearest, value_error
from ..._spaces import point_columns
from ..._tree import as_data, leaf_text, leaves_with_names, on_device
from ..._types import PyTree
from ..store import stored_in

if TYPE_CHECKING:
    from .result import SweepResult
else:
    SweepResult = Any

_READ_BYTES = 64 * 1024 * 1024
"""The bytes of a store to hold in memory at once, if all of it is read."""

_FEW = 8
"""Arrays with more entries than this are shown by their shape."""

Compared: TypeAlias = str | Callable[[PyTree], Any] | None
"""The score of a point: the path of a scalar output, or a function of one output."""


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
