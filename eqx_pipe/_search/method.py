"""Methods of search: three pure functions, and the state between them."""

from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float

from .._errors import value_error
from .._spaces import Space
from .._sweep import Compared, SweepResult, scores
from .._types import Key

State = TypeVar("State")

Losses: TypeAlias = Float[np.ndarray, " points"]
"""A number for each point, to be made small: infinite where a point failed or is NaN.
"""


@runtime_checkable
class Method(Protocol[State]):
    """A method of search, as three pure functions.

    A state is a value: a pytree of arrays, or what JSON can hold. `explore` calls
    `state = init(space, key)`, and in each round `points, state = ask(state, num)` and
    `state = tell(state, losses, result)`. Points are a `Space` of the axes of `space`;
    no points end the search. Called twice with the same arguments, each returns the
    same: so a search can be continued after a kill.
    """

    def init(self, space: Space, key: Key | None) -> State:
        """Return the state before the first round."""
        ...

    def ask(self, state: State, num: int) -> tuple[Space, State]:
        """Return the `num` points to compute next, or fewer if there are no more."""
        ...

    def tell(self, state: State, losses: Losses, result: SweepResult) -> State:
        """Return the state after a round.

        `losses` are to be made small, and infinite where a point failed or is NaN:
        what `by` names, negated if `mode="max"`. `result` has all outputs.
        """
        ...


def losses(result: SweepResult, by: Compared, mode: str) -> Losses:
    """Return what is to be made small: infinite where a point failed or is NaN."""
    found = scores("search.explore", result.values, len(result), by, [slice(None)])
    found = found.astype(np.float64)
    signed = found if mode == "min" else -found
    return np.where(result.ok & ~np.isnan(found), signed, np.inf)


def needed(function: str, key: Key | None) -> Key:
    """Return the key of a method that draws, or raise."""
    if key is None:
        raise value_error(
            function,
            "the method draws random numbers and got `key=None`.",
            "Give one: `explore(..., key=jax.random.key(0))`.",
        )
    return key
