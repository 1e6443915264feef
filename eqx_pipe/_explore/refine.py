"""Refinement of a grid where the function bends, by the learners of adaptive."""

import dataclasses
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float

from .._errors import optional, value_error
from .._spaces import Space
from .._sweep.results.best import Compared
from .._sweep.results.result import SweepResult
from .._types import Key
from .method import is_continuous, losses


class RefineState(eqx.Module):
    """What was asked for so far, and what is known of it."""

    space: Space
    u: Float[np.ndarray, "points axes"]
    values: Float[np.ndarray, " told"]
    known: Bool[np.ndarray, " told"]


@dataclasses.dataclass(frozen=True)
class Refine:
    """See `eqx_pipe.search.refine`."""

    by: Compared

    def init(self, space: Space, key: Key | None) -> RefineState:
        """Nothing is known."""
        for name, axis in space.axes().items():
            if not is_continuous(axis):
                raise value_error(
                    "search.refine",
                    f"`{name}` is {axis!r}, between whose values there is nothing.",
                    "Search over `Linspace` and `Geomspace`; sweep over others outside "
                    "of it, a search for each of their values.",
                )
        none = np.zeros(0)
        return RefineState(space, np.zeros((0, len(space.axes()))), none, none > 0)

    def ask(self, state: RefineState, n: int) -> tuple[Space, RefineState]:
        """The points that the learner finds most worth computing."""
        learner = _learner(state)
        u = np.asarray(learner.ask(n)[0], np.float64).reshape(n, state.u.shape[1])
        asked = np.concatenate([state.u, u])
        return state.space.from_unit(u), RefineState(
            state.space, asked, state.values, state.known
        )

    def tell(self, state: RefineState, result: SweepResult) -> RefineState:
        """The state that knows what the function gave there."""
        values, known = losses("search.refine", result, self.by, "min")
        known &= np.isfinite(values)
        more = np.concatenate([state.values, values]), np.append(state.known, known)
        return RefineState(state.space, state.u, *more)


def _learner(state: RefineState) -> Any:
    """A learner that knows what is known; what failed it takes for under way."""
    adaptive = optional("search.refine", "adaptive", "search")
    width = state.u.shape[1]
    if width == 1:
        learner = adaptive.Learner1D(None, (0.0, 1.0))
    else:
        learner = adaptive.LearnerND(None, [(0.0, 1.0)] * width)
    # Not strict: those asked for last have no values yet.
    for u, value, known in zip(state.u, state.values, state.known, strict=False):
        place = float(u[0]) if width == 1 else tuple(map(float, u))
        if known:
            learner.tell(place, float(value))
        else:
            learner.tell_pending(place)
    return learner
