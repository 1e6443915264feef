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

from .._errors import value_error
from .._spaces import Space
from .._sweep.results.best import Compared
from .._sweep.results.result import SweepResult
from .._types import Key, PyTree
from .method import losses, needed


class EvolutionState(eqx.Module):
    """What the strategy knows, and the candidates that it asked for last."""

    space: Space
    key: Key
    known: PyTree
    candidates: Float[Array, "points axes"]


@dataclasses.dataclass(frozen=True)
class Evolution:
    """See `eqx_pipe.search.evolution`."""

    strategy: Callable[..., Any]
    by: Compared
    mode: str

    def init(self, space: Space, key: Key | None) -> EvolutionState:
        """Nothing is known: the strategy begins when the number of points is."""
        none = jnp.zeros((0, len(space.axes())))
        return EvolutionState(space, needed("search.evolution", key), None, none)

    def ask(self, state: EvolutionState, n: int) -> tuple[Space, EvolutionState]:
        """A generation, with what lies outside of the space put back inside."""
        before, width = state.candidates.shape
        if before not in (0, n):
            raise value_error(
                "search.evolution",
                f"`n` is {n}, and generations before had {before}.",
                "The size of a generation stays what it was: give that.",
            )
        key, first, draws = jr.split(state.key, 3)
        strategy, params = _made(self.strategy, n, width)
        known = state.known
        if not before and not _is_population(strategy):
            known = strategy.init(first, jnp.full(width, 0.5), params)
        if known is None:
            candidates = jr.uniform(draws, (n, width))
        else:
            candidates, known = strategy.ask(draws, known, params)
        # Mirrored at 0 and at 1, however far outside: cut off there, many would be
        # equal.
        inside = np.abs((np.asarray(candidates, np.float64) + 1) % 2 - 1)
        asked = EvolutionState(state.space, key, known, candidates)
        return state.space.from_unit(inside), asked

    def tell(self, state: EvolutionState, result: SweepResult) -> EvolutionState:
        """The state after a generation."""
        found, _ = losses("search.evolution", result, self.by, self.mode)
        strategy, params = _made(self.strategy, *state.candidates.shape)
        key, draws = jr.split(state.key)
        fitness = jnp.asarray(found, jnp.float32)
        if state.known is None:
            known = strategy.init(draws, state.candidates, fitness, params)
        else:
            given = draws, state.candidates, fitness, state.known, params
            known, _ = strategy.tell(*given)
        return EvolutionState(state.space, key, known, state.candidates)


def _is_population(strategy: Any) -> bool:
    """Whether it begins with a population and its fitness, not with a middle."""
    return "population" in inspect.signature(strategy.init).parameters


@ft.lru_cache(32)  # each strategy compiles its methods once
def _made(strategy: Callable[..., Any], n: int, width: int) -> tuple[Any, Any]:
    """A strategy for generations of one size, and its settings."""
    made = strategy(population_size=n, solution=jnp.zeros(width))
    params = made.default_params
    if hasattr(params, "std_init"):  # by default 1, as wide as the whole cube
        params = params.replace(std_init=0.25)
    return made, params
