"""Evolution strategies of evosax as a method of search."""

import dataclasses
import functools as ft
import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._check import check_is
from .._errors import optional, value_error
from .._spaces import Space
from .._sweep import SweepResult
from .._types import Key, PyTree
from .method import Losses, needed


class EvosaxState(eqx.Module):
    """The state of the strategy, and the candidates of the last generation."""

    space: Space
    key: Key
    known: PyTree
    candidates: Float[Array, "points axes"]


@dataclasses.dataclass(frozen=True)
class Evosax:
    """A method of search: an evolution strategy of evosax, one generation per round.

    It searches the unit cube of the space (`Space.from_unit`), starting at the centre;
    a strategy that works on a population starts with one drawn uniformly from the
    cube. A candidate outside the cube is reflected at its faces. A point that failed,
    or has a NaN, counts as infinitely bad.

    **Arguments:**

    - `strategy`: a class of `evosax.algorithms`, such as `CMA_ES`, or a function that
      returns a strategy: it is called with `population_size=`, the `num` of the search,
      and `solution=`.

    **Raises:** `TypeError` if `strategy` cannot be called; `MissingKeyError`, when the
    search begins, without a key.

    !!! example

        >>> import jax
        >>> import eqx_pipe as ep
        >>> from evosax.algorithms import CMA_ES
        >>> bowl = lambda p: (p["x"] - 3.0) ** 2 + (p["y"] + 1.0) ** 2
        >>> space = {"x": ep.Uniform(-5, 5), "y": ep.Uniform(-5, 5)}
        >>> found = ep.search.explore(bowl, space, ep.search.Evosax(CMA_ES),
        ...                           rounds=20, num=16, key=jax.random.key(0))
        >>> assert found.best().value < 0.01
    """

    strategy: Callable[..., Any]

    def __post_init__(self) -> None:
        optional("search.Evosax", "evosax", "search")
        cure = "Give a class or function such as `evosax.algorithms.CMA_ES`."
        check_is("search.Evosax", "strategy", self.strategy, Callable, cure)

    def init(self, space: Space, key: Key | None) -> EvosaxState:
        """Return an empty state: the strategy is created when `num` is known."""
        none = jnp.zeros((0, len(space.names)))
        return EvosaxState(space, needed("search.Evosax", key), None, none)

    def ask(self, state: EvosaxState, num: int) -> tuple[Space, EvosaxState]:
        """Return a generation, with candidates outside of the space reflected."""
        before, width = state.candidates.shape
        if before not in (0, num):
            raise value_error(
                "search.Evosax",
                "the population size cannot change between rounds: it was "
                f"{before}, but `num` is {num}.",
                f"Give `num={before}`.",
            )
        key, first, draws = jr.split(state.key, 3)
        strategy, params = _made(self.strategy, num, width)
        known = state.known
        # A strategy that starts with a population has no mean to start from.
        parameters = inspect.signature(strategy.init).parameters
        if not before and "population" not in parameters:
            known = strategy.init(first, jnp.full(width, 0.5), params)
        if known is None:
            candidates = jr.uniform(draws, (num, width))
        else:
            candidates, known = strategy.ask(draws, known, params)
        # Reflect at 0 and at 1, as often as needed: clipped candidates would often be
        # equal.
        inside = np.abs((np.asarray(candidates, np.float64) + 1) % 2 - 1)
        asked = EvosaxState(state.space, key, known, candidates)
        return state.space.from_unit(inside), asked

    def tell(
        self, state: EvosaxState, losses: Losses, result: SweepResult
    ) -> EvosaxState:
        """Return the state after a generation."""
        strategy, params = _made(self.strategy, *state.candidates.shape)
        key, draws = jr.split(state.key)
        fitness = jnp.asarray(losses, jnp.float32)
        if state.known is None:
            known = strategy.init(draws, state.candidates, fitness, params)
        else:
            told = state.candidates, fitness, state.known, params
            known, _ = strategy.tell(draws, *told)
        return EvosaxState(state.space, key, known, state.candidates)


@ft.lru_cache(32)  # each strategy compiles its methods once
def _made(strategy: Callable[..., Any], num: int, width: int) -> tuple[Any, Any]:
    """Return a strategy for generations of `num` candidates, and its parameters."""
    made = strategy(population_size=num, solution=jnp.zeros(width))
    params = made.default_params
    if hasattr(params, "std_init"):  # by default 1, as wide as the whole cube
        params = params.replace(std_init=0.25)
    return made, params
