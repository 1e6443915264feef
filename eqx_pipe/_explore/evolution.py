"""Evolution strategies of evosax as a method of search."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._check import check_choice, keywords
from .._errors import describe_value, optional, type_error, value_error
from .._spaces.space import Space
from .._sweep.results.best import Compared
from .._sweep.results.result import SweepResult
from .._types import Key, PyTree
from .method import losses

_BEGIN = 0.25


class EvolutionState(eqx.Module):
    """What the strategy knows, and the candidates that it asked for last."""

    space: Space
    key: Key
    known: PyTree
    candidates: Float[Array, "points axes"] | None
    number: int


@dataclasses.dataclass(frozen=True)
class Evolution:
    """See `evolution`."""

    strategy: Callable[..., Any]
    by: Compared
    mode: str

    def init(self, space: Space, key: Key | None) -> EvolutionState:
        """Nothing is known: the strategy begins when the number of points is."""
        if key is None:
            raise value_error(
                "search.evolution",
                "there is no key, and the method draws random numbers.",
                "Give one: `explore(..., key=jax.random.key(0))`.",
            )
        return EvolutionState(space, key, None, None, 0)

    def ask(self, state: EvolutionState, n: int) -> tuple[Space, EvolutionState]:
        """A generation, with what lies outside of the space put back inside."""
        width = len(state.space.axes())
        strategy, params = _made(self.strategy, n, width)
        key, known = jr.fold_in(state.key, 2 * state.number), state.known
        if known is None:
            known = strategy.init(jr.fold_in(key, 0), jnp.full(width, 0.5), params)
        elif state.candidates is not None and len(state.candidates) != n:
            raise value_error(
                "search.evolution",
                f"`n` is {n}, and generations before had {len(state.candidates)}.",
                "The size of a generation stays what it was: give that.",
            )
        candidates, known = strategy.ask(key, known, params)
        inside = np.abs((np.asarray(candidates, np.float64) + 1) % 2 - 1)
        asked = EvolutionState(state.space, state.key, known, candidates, state.number)
        return state.space.from_unit(inside), asked

    def tell(self, state: EvolutionState, result: SweepResult) -> EvolutionState:
        """The state after a generation."""
        assert state.candidates is not None
        found, _ = losses("search.evolution", result, self.by, self.mode)
        strategy, params = _made(self.strategy, *state.candidates.shape)
        known, _ = strategy.tell(
            jr.fold_in(state.key, 2 * state.number + 1),
            state.candidates,
            jnp.asarray(found, jnp.float32),
            state.known,
            params,
        )
        more = state.candidates, state.number + 1
        return EvolutionState(state.space, state.key, known, *more)


@functools.lru_cache(32)
def _made(strategy: Callable[..., Any], n: int, width: int) -> tuple[Any, Any]:
    """A strategy for generations of one size, and its settings.

    Kept, since each compiles its methods once. Its steps begin with a share of the
    cube; the default of evosax, 1, is as wide as all of it.
    """
    made = strategy(population_size=n, solution=jnp.zeros(width))
    params = made.default_params
    if hasattr(params, "std_init"):
        params = params.replace(std_init=_BEGIN)
    return made, params


@keywords("search.evolution")
def evolution(
    strategy: Callable[..., Any], by: Compared = None, mode: str = "min"
) -> Evolution:
    """Evolution strategies of evosax, a generation a round.

    They search the unit cube of the space (`Space.from_unit`), from its middle. A
    candidate outside of the cube is mirrored at its walls. A point that failed, or has
    a NaN, counts as infinitely bad.

    **Arguments:**

    - `strategy`: a class of `evosax.algorithms`, such as `CMA_ES`; or a function that
      makes one: it is called with `population_size=`, the `n` of the search, and
      `solution=`.
    - `by`, `mode`: what is made small or large, as in `SweepResult.best`.

    **Returns:** a `Method` for `explore`, whose state is a pytree.

    **Raises:** `TypeError` for what is no strategy, `ValueError` without a key.

    !!! example

        >>> import jax
        >>> import eqx_pipe as ep
        >>> import eqx_pipe.search as eps
        >>> from evosax.algorithms import CMA_ES
        >>> bowl = lambda p: (p["x"] - 3.0) ** 2 + (p["y"] + 1.0) ** 2
        >>> space = {"x": ep.Linspace(-5, 5, 2), "y": ep.Linspace(-5, 5, 2)}
        >>> found = ep.explore(bowl, space, eps.evolution(CMA_ES), rounds=20, n=16,
        ...                    key=jax.random.key(0))
        >>> found.best().value < 0.01
        True
    """
    optional("search.evolution", "evosax", "search")
    check_choice("search.evolution", "mode", mode, ("min", "max"))
    if not callable(strategy):
        raise type_error(
            "search.evolution",
            f"`strategy` is {describe_value(strategy)}.",
            "Give a class of `evosax.algorithms`, such as `CMA_ES`.",
        )
    return Evolution(strategy, by, mode)
