"""Methods of search: three pure functions and their state; `Design`, the simplest."""

import re
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import equinox as eqx
import numpy as np
from jaxtyping import Float

from .._errors import MissingKeyError, message
from .._jaxprs import digest, text_of
from .._spaces import Cube, Space
from .._sweep import Compared, SweepResult, scores
from .._tree import as_data
from .._types import Key

State = TypeVar("State")

_LONG = 100
"""The maximum length of a setting in a message."""

Losses: TypeAlias = Float[np.ndarray, " points"]
"""A number to minimise for each point: infinite if the point failed or is NaN."""


@runtime_checkable
class Method(Protocol[State]):
    """A method of search, as three pure functions.

    A state is a value, which `ask` and `tell` do not change. `explore` calls
    `state = init(space, key)`, and in each round `points, state = ask(state, num)` and
    `state = tell(state, losses, result)`. Points are a `Space` with the axes of
    `space`; an empty one ends the search. All three must be deterministic, so that a
    search can be resumed after a kill.
    """

    def init(self, space: Space, key: Key | None) -> State:
        """Return the state before the first round."""
        ...

    def ask(self, state: State, num: int) -> tuple[Space, State]:
        """Return the next `num` points, or fewer at the end, and the new state."""
        ...

    def tell(self, state: State, losses: Losses, result: SweepResult) -> State:
        """Return the state after a round.

        `losses` are the numbers to minimise: the output `by`, negated if `mode="max"`,
        and infinite if a point failed or is NaN. `result` has all outputs.
        """
        ...


def losses(result: SweepResult, by: Compared, mode: str) -> Losses:
    """Return the numbers to minimise: infinite if a point failed or is NaN."""
    numbers = scores("search.explore", result.values, len(result), by)
    numbers = numbers.astype(np.float64)
    signed = numbers if mode == "min" else -numbers
    return np.where(result.ok & ~np.isnan(numbers), signed, np.inf)


def as_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of a search as texts, by which its store recognises it.

    A text is the same in every process. Functions count by name, and objects of unknown
    classes by their class.
    """
    return {name: _text(value) for name, value in settings.items()}


def _text(value: Any) -> str:
    if value is None or isinstance(value, str | int):
        return str(value)
    value = as_data(value)
    shown = str(value.tolist()) if eqx.is_array(value) else repr(value)
    shown = " ".join(re.sub(r" at 0x\w+", "", shown).split())
    cut = "..." if len(shown) > _LONG else ""
    return f"{shown[:_LONG]}{cut} #{digest(text_of(value))[:8]}"


def needed(function: str, key: Key | None) -> Key:
    """Return the key of a method that draws; raise if it is `None`."""
    if key is None:
        text = message(
            function,
            "the method draws random numbers and got `key=None`.",
            "Give one: `explore(..., key=jax.random.key(0))`.",
        )
        raise MissingKeyError("method", text)
    return key


DesignState: TypeAlias = tuple[Space, Float[np.ndarray, "_ axes"]]
"""The space, and the remaining points in its unit cube."""


class Design(eqx.Module):
    """A method of search that proposes the points of a design, in their order.

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
        return space, np.asarray(self.u, np.float64)

    def ask(self, state: DesignState, num: int) -> tuple[Space, DesignState]:
        """Return the next points of the design."""
        space, left = state
        # Make a table for each round: each slice of one table would be a new program.
        return space.from_unit(left[:num]), (space, left[num:])

    def tell(
        self, state: DesignState, losses: Losses, result: SweepResult
    ) -> DesignState:
        """Return the same state, since the next points are known."""
        return state
