"""Methods of search: three pure functions and their state."""

from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float

from .._errors import value_error
from .._spaces import Space
from .._sweep import Compared, SweepResult, scores
from .._types import Key

State = TypeVar("State")

Losses: TypeAlias = Float[np.ndarray, " points"]
"""A number to minimise for each point: infinite if the point failed or is NaN."""


@runtime_checkable
class Method(Protocol[State]):
    """A method of search, as three pure functions.

    A state is a value: a pytree of arrays, or of values that JSON can represent.
    `explore` calls `state = init(space, key)`, and in each round
    `points, state = ask(state, num)` and `state = tell(state, losses, result)`. Points
    are a `Space` with the axes of `space`; an empty one ends the search. All three must
    be deterministic, so that a search can be resumed after a kill.
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
    found = scores("search.explore", result.values, len(result), by, [slice(None)])
    found = found.astype(np.float64)
    signed = found if mode == "min" else -found
    return np.where(result.ok & ~np.isnan(found), signed, np.inf)


def needed(function: str, key: Key | None) -> Key:
    """Return the key of a method that draws; raise if it is `None`."""
    if key is None:
        raise value_error(
            function,
            "the method draws random numbers and got `key=None`.",
            "Give one: `explore(..., key=jax.random.key(0))`.",
        )
    return key
