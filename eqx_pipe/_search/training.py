"""Trainings for `halving`, and what came of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

from .._errors import optional, value_error
from .._spaces import Space, point_columns
from .._sweep import Best
from .._types import PyTree

if TYPE_CHECKING:
    from xarray import Dataset
else:
    Dataset = Any


class Training(eqx.Module):
    """A training that can be carried on.

    - `init(point)` gives the first carry: any pytree of arrays, such as parameters
      and the state of an optimiser, or a `TrainState` of Flax.
    - `step(point, carry)` gives the next carry, of the same form.
    - `score(point, carry)` gives a number: how good it is.

    Of an Equinox model carry the arrays, `eqx.filter(model, eqx.is_array)`, and put the
    rest back in `step` and `score` by `eqx.combine`: numbers in a carry become arrays.

    `init` and `step` may take `key=`: a step draws from `fold_in(key, number)` of the
    training's key, the first step having the number 1 and `init` 0.
    """

    init: Callable[..., PyTree]
    step: Callable[..., PyTree]
    score: Callable[[PyTree, PyTree], Any]


class HalvingResult(eqx.Module):
    """The trainings of `halving`, with their scores.

    `scores` has a row for each point and a column for each rung: NaN where a training
    was dropped before. `survivors` are the points that came to the end, the best
    first, and `carry` their carries in this order. `steps` are the steps that
    were needed, and those that were executed, lanes that repeat others included.
    """

    space: Space
    scores: Float[np.ndarray, "points rungs"]
    rungs: tuple[int, ...] = eqx.field(static=True)
    survivors: Int[np.ndarray, " survivors"]
    carry: PyTree
    steps: tuple[int, int] = eqx.field(static=True)

    def best(self) -> Best:
        """Return the best training: `value` is its score, `output` its carry.

        **Raises:** `ValueError` if no training came to the end with a score.
        """
        if not len(self.survivors):
            raise value_error(
                "search.HalvingResult.best",
                "no training has a score that is a number.",
                "Look at `.scores`.",
            )
        i = int(self.survivors[0])
        columns = point_columns(self.space[[i]].geometry, self.space.key)
        there = {name: column[0] for name, column in columns.items()}
        carry = jax.tree.map(lambda leaf: leaf[0], self.carry)
        return Best(i, self.space.point(i), float(self.scores[i, -1]), carry, there)

    def to_xarray(self) -> Dataset:
        """Return the scores as a Dataset over `point` and `rung`, with the axes."""
        xarray = optional("search.HalvingResult.to_xarray", "xarray")
        frame = self.space.to_pandas()
        columns = {name: ("point", frame[name].to_numpy()) for name in frame}
        coords = columns | {"rung": ("rung", np.array(self.rungs))}
        return xarray.Dataset({"score": (("point", "rung"), self.scores)}, coords)

    def __repr__(self) -> str:
        came = f"{len(self.scores):,} trainings, {len(self.survivors):,} to the end"
        best = f"point {self.survivors[0]:,} is the best" if len(self.survivors) else ""
        return f"HalvingResult({came}; {best or 'none has a score'})"
