"""Adaptive refinement of a grid, by the learners of the package `adaptive`."""

import dataclasses
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from .._errors import optional, value_error
from .._spaces import Space
from .._sweep import SweepResult
from .._types import Key
from .method import Losses


class AdaptiveState(eqx.Module):
    """The points proposed so far, and the losses known so far."""

    space: Space
    u: Float[np.ndarray, "points axes"]
    losses: Float[np.ndarray, " told"]


@dataclasses.dataclass(frozen=True)
class Adaptive:
    """A method of search that refines where the function bends, by `adaptive`.

    The first points are the corners. Then intervals, triangles or simplices of the
    unit cube (`Space.from_unit`) are divided where their edges are longest, measured in
    the points and the values. Points that failed, or have a NaN, are left out. All axes
    must be ranges: `Uniform`, `LogUniform`, `Linspace` or `Geomspace`.

    **Raises:** when the search begins, `ValueError` for other axes.

    !!! example

        >>> import jax.numpy as jnp
        >>> import eqx_pipe as ep
        >>> step = lambda p: jnp.tanh(20 * (p["x"] - 0.3))
        >>> found = ep.search.explore(step, {"x": ep.Uniform(-1, 1)},
        ...                           ep.search.Adaptive(), rounds=5, num=8)
        >>> near = abs(found.to_pandas()["x"] - 0.3) < 0.25
        >>> len(found), bool(near.mean() > 0.5)  # an eighth of the way
        (40, True)
    """

    def __post_init__(self) -> None:
        optional("search.Adaptive", "adaptive", "search")

    def init(self, space: Space, key: Key | None) -> AdaptiveState:
        """Return a state without points; raise unless all axes are ranges."""
        for name, axis in space.axes().items():
            if not axis.is_range:
                raise value_error(
                    "search.Adaptive",
                    f"it requires continuous axes, but `{name}` is {axis!r}, which is "
                    "categorical.",
                    "Search over `Uniform` and `LogUniform`, and run one search for "
                    "each value of the other axes.",
                )
        return AdaptiveState(space, np.zeros((0, len(space.names))), np.zeros(0))

    def ask(self, state: AdaptiveState, num: int) -> tuple[Space, AdaptiveState]:
        """Return the points that the learner proposes."""
        learner = _learner(state)
        u = np.asarray(learner.ask(num)[0], np.float64).reshape(num, state.u.shape[1])
        asked = np.concatenate([state.u, u])
        return state.space.from_unit(u), AdaptiveState(state.space, asked, state.losses)

    def tell(
        self, state: AdaptiveState, losses: Losses, result: SweepResult
    ) -> AdaptiveState:
        """Return the state with the losses of the last points."""
        told = np.concatenate([state.losses, losses])
        return AdaptiveState(state.space, state.u, told)


def _learner(state: AdaptiveState) -> Any:
    """Return a learner of all losses; points that failed are pending for it."""
    adaptive = optional("search.Adaptive", "adaptive", "search")
    width = state.u.shape[1]
    if width == 1:
        learner = adaptive.Learner1D(None, (0.0, 1.0))
    else:
        learner = adaptive.LearnerND(None, [(0.0, 1.0)] * width)
    # Not strict: the last points have no losses yet.
    for u, loss in zip(state.u, state.losses, strict=False):
        point = float(u[0]) if width == 1 else tuple(map(float, u))
        if np.isfinite(loss):
            learner.tell(point, float(loss))
        else:
            learner.tell_pending(point)
    return learner
