"""A design, whose points are known in advance, in rounds."""

import equinox as eqx
import numpy as np
from jaxtyping import Float

from .._spaces import Cube, Space
from .._sweep import SweepResult
from .._types import Key
from .method import Losses


class DesignState(eqx.Module):
    """The remaining points, in the unit cube."""

    space: Space
    left: Float[np.ndarray, "points axes"]


class Design(eqx.Module):
    """A method of search that proposes given points, in their order.

    **Arguments:**

    - `u`: numbers from 0 to 1 of shape `(points, axes)`, such as a design of SALib or
      of `scipy.stats.qmc`; see `Space.from_unit`.

    The search ends after the last point.

    **Raises:** when the search begins, as `Space.from_unit`.

    !!! example

        >>> import eqx_pipe as ep
        >>> corners = ep.search.Design([[0.0], [1.0], [0.5]])
        >>> found = ep.search.explore(
        ...     lambda p: p["x"], {"x": ep.Uniform(0, 10)}, corners, rounds=5, num=2
        ... )
        >>> found.result.values.tolist(), found.rounds.tolist()
        ([0.0, 10.0, 5.0], [0, 0, 1])
    """

    u: Cube

    def init(self, space: Space, key: Key | None) -> DesignState:
        """Return a state with all points remaining."""
        space.from_unit(self.u)  # raises if a point is invalid
        return DesignState(space, np.asarray(self.u, np.float64))

    def ask(self, state: DesignState, num: int) -> tuple[Space, DesignState]:
        """Return the next points of the design."""
        # Make a table for each round: each slice of one table would be a new program.
        points = state.space.from_unit(state.left[:num])
        return points, DesignState(state.space, state.left[num:])

    def tell(
        self, state: DesignState, losses: Losses, result: SweepResult
    ) -> DesignState:
        """Return the same state, since the next points are known."""
        return state
