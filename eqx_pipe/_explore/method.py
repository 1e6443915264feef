"""What proposes points: three pure functions, and the state between them."""

from typing import Protocol, TypeVar, runtime_checkable

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float

from .._check import check_choice
from .._errors import value_error
from .._spaces import Axis, Geomspace, Linspace, Mapped, Space
from .._sweep.results.best import Compared, scores
from .._sweep.results.result import SweepResult
from .._types import Key

State = TypeVar("State")


@runtime_checkable
class Method(Protocol[State]):
    """A method of search, as three pure functions.

    A state is a value: a pytree, or what JSON can hold. `explore` calls
    `state = init(space, key)`, and in each round `points, state = ask(state, n)` and
    `state = tell(state, result)`, with the `SweepResult` of these points. Points are
    an ordinary `Space` of the axes of `space`; no points end the search. Called twice
    with the same arguments, each gives the same: that is how a search goes on after it
    was killed.
    """

    def init(self, space: Space, key: Key | None) -> State:
        """The state before the first round."""
        ...

    def ask(self, state: State, n: int) -> tuple[Space, State]:
        """`n` points to compute next, or fewer if there are no more."""
        ...

    def tell(self, state: State, result: SweepResult) -> State:
        """The state that knows what the function gave at the points."""
        ...


def losses(
    function: str, result: SweepResult, by: Compared, mode: str
) -> tuple[Float[np.ndarray, " points"], Bool[np.ndarray, " points"]]:
    """What is to be made small, and where it is a number.

    Where a point failed, or has a NaN, it is infinite.
    """
    check_choice(function, "mode", mode, ("min", "max"))
    found = scores(function, result.values, len(result), by, [slice(None)])
    found = found.astype(np.float64)
    known = result.ok & ~np.isnan(found)
    signed = found if mode == "min" else -found
    return np.where(known, signed, np.inf), known


def is_continuous(axis: Axis) -> bool:
    """Whether any number between the ends of an axis is a value of it."""
    if isinstance(axis, Mapped):
        return is_continuous(axis.axis)
    return isinstance(axis, Linspace | Geomspace) and len(axis) > 1


def needed(function: str, key: Key | None) -> Key:
    """The key of a method that draws, or an error that asks for one."""
    if key is None:
        raise value_error(
            function,
            "there is no key, and the method draws random numbers.",
            "Give one: `explore(..., key=jax.random.key(0))`.",
        )
    return key


def seed_of(key: Key, number: int) -> int:
    """A seed for a generator of another package, another one for each number."""
    return int(jr.bits(jr.fold_in(key, number), dtype=jnp.uint32))
