"""Methods of search: three pure functions and their state.

`Design` proposes given points; `Adaptive`, `Evosax` and `Optuna` wrap other packages.
"""

import dataclasses
import functools as ft
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._cache import WeakCache
from .._check import check_is
from .._errors import optional, value_error
from .._keys import seed_of
from .._results import Compared, SweepResult, means_of, scores
from .._run import needs_key
from .._spaces import Cube, Space
from .._types import Key, PyTree

State = TypeVar("State")

Losses: TypeAlias = Float[np.ndarray, " points"]
"""A number to minimise for each proposal: infinite if it failed or is NaN."""


@runtime_checkable
class Method(Protocol[State]):
    """A method of search, as three pure functions.

    A state is a value, which `ask` and `tell` do not change. `explore` calls
    `state = init(space, key)`, and in each round `points, state = ask(state, num)` and
    `state = tell(state, losses, result)`. Points are a `Space` with the axes of
    `space`; an empty one ends the search. All three must be deterministic, so that a
    search can be resumed after a kill.

    Axes of replicates, such as `Seeds`, are not in `space`: `explore` computes each
    proposed point for all replicates.
    """

    def init(self, space: Space, key: Key | None) -> State:
        """Return the state before the first round."""
        ...

    def ask(self, state: State, num: int) -> tuple[Space, State]:
        """Return the next `num` points, or fewer at the end, and the new state."""
        ...

    def tell(self, state: State, losses: Losses, result: SweepResult) -> State:
        """Return the state after a round.

        `losses` are the numbers to minimise, one for each proposed point: the output
        `by`, negated if `mode="max"`, and infinite if the point failed or is NaN. With
        replicates, they are means over all replicates, infinite if one failed or is
        NaN. `result` has all outputs, with the dims of the replicates.
        """
        ...


def losses(
    result: SweepResult, by: Compared, mode: str, over: Sequence[str] = ()
) -> Losses:
    """Return the numbers to minimise: infinite if a point failed or is NaN.

    With `over`, they are the mean of each setting over these dims of replicates.
    """
    numbers = scores("search.explore", result.values, len(result), by)
    numbers, ok = numbers.astype(np.float64), result.ok & ~np.isnan(numbers)
    if over:
        numbers, ok = means_of(result.space, over, numbers, ok), True
    signed = numbers if mode == "min" else -numbers
    return np.where(ok & ~np.isnan(numbers), signed, np.inf)


def needed(key: Key | None) -> Key:
    """Return the key of a method that draws; raise if it is `None`."""
    if key is None:
        raise needs_key("search.explore", fn="method")
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
                wrong = f"it requires continuous axes, but `{name}` is {axis!r}, which "
                wrong += "is categorical."
                cure = "Search over `Uniform` and `LogUniform`, and run one search for "
                cure += "each value of the other axes."
                raise value_error("search.Adaptive", wrong, cure)
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


class EvosaxState(eqx.Module):
    """The state of the strategy, and the candidates of the last generation."""

    space: Space
    key: Key
    inner: PyTree
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
        cure = "It is called with `population_size=`, the `num` of the search, and "
        cure += "`solution=`: give the class, `evosax.algorithms.CMA_ES`."
        check_is("search.Evosax", "strategy", self.strategy, Callable, cure)

    def init(self, space: Space, key: Key | None) -> EvosaxState:
        """Return an empty state: the strategy is created when `num` is known."""
        none = jnp.zeros((0, len(space.names)))
        return EvosaxState(space, needed(key), None, none)

    def ask(self, state: EvosaxState, num: int) -> tuple[Space, EvosaxState]:
        """Return a generation, with candidates outside of the space reflected."""
        before, width = state.candidates.shape
        key, first, draws = jr.split(state.key, 3)
        strategy, params = _made(self.strategy, num, width)
        inner = state.inner
        # A strategy that starts with a population has no mean to start from.
        parameters = inspect.signature(strategy.init).parameters
        if not before and "population" not in parameters:
            inner = strategy.init(first, jnp.full(width, 0.5), params)
        if inner is None:
            candidates = jr.uniform(draws, (num, width))
        else:
            candidates, inner = strategy.ask(draws, inner, params)
        # Reflect at 0 and at 1, as often as needed: clipped candidates would often be
        # equal.
        inside = np.abs((np.asarray(candidates, np.float64) + 1) % 2 - 1)
        asked = EvosaxState(state.space, key, inner, candidates)
        return state.space.from_unit(inside), asked

    def tell(
        self, state: EvosaxState, losses: Losses, result: SweepResult
    ) -> EvosaxState:
        """Return the state after a generation."""
        strategy, params = _made(self.strategy, *state.candidates.shape)
        key, draws = jr.split(state.key)
        fitness = jnp.asarray(losses, jnp.float32)
        if state.inner is None:
            inner = strategy.init(draws, state.candidates, fitness, params)
        else:
            told = state.candidates, fitness, state.inner, params
            inner, _ = strategy.tell(draws, *told)
        return EvosaxState(state.space, key, inner, state.candidates)


@ft.lru_cache(32)  # each strategy compiles its methods once
def _made(strategy: Callable[..., Any], num: int, width: int) -> tuple[Any, Any]:
    """Return a strategy for generations of `num` candidates, and its parameters."""
    made = strategy(population_size=num, solution=jnp.zeros(width))
    params = made.default_params
    if hasattr(params, "std_init"):  # by default 1, as wide as the whole cube
        params = params.replace(std_init=0.25)
    return made, params


Call: TypeAlias = int | tuple[float | None, ...]
"""The number of points of an `ask`, or the values of a `tell`: `None` for a failure."""


class OptunaState(eqx.Module):
    """The calls of `ask` and `tell` so far, which determine the study."""

    space: Space
    key: Key
    calls: tuple[Call, ...] = eqx.field(static=True)


class _Study:
    """A study that has seen some calls, with the trials that have no value yet.

    A sampler may keep something in itself or in its study, such as a generator or the
    number of points so far, and cannot be copied. So one study follows the states of a
    search; for a state that it has left already, a new one sees all calls again.
    """

    def __init__(self, optuna: Any, sampler: Any, space: Space):
        self.calls: tuple[Call, ...] | None = ()
        self._study = optuna.create_study(sampler=sampler)
        # A sampler calls it after the last of its points; Optuna's raises outside of
        # `optimize`.
        self._study.stop = self._stop
        self._stopped = False
        self._failed = optuna.trial.TrialState.FAIL
        self._axes = _distributions(optuna, space)
        self._open: list[Any] = []

    def see(self, call: Call) -> list[list[float]]:
        """Return points in the unit cube if asked, or take the values of the last."""
        if isinstance(call, int):
            number = 0 if self._stopped else call
            self._open = [self._study.ask(self._axes) for _ in range(number)]
            return [[trial.params[name] for name in self._axes] for trial in self._open]
        for trial, value in zip(self._open, call, strict=True):
            self._study.tell(trial, value, self._failed if value is None else None)
        return []

    def _stop(self) -> None:
        self._stopped = True


_studies: WeakCache[_Study] = WeakCache()
"""The study that has seen the calls of a state, until it sees another."""


@dataclasses.dataclass(frozen=True)
class Optuna:
    """A method of search: any sampler of Optuna, which proposes a round at a time.

    The proposals are those of a study with its `ask` and `tell`: a round asks `num`
    times, and then tells all values. They depend on the key and on the values told, so
    a resumed search repeats them. Ranges (`Uniform`, and `LogUniform` in the logarithm)
    are continuous, from 0 to 1; other axes are categories. A point that failed, or has
    no finite number, is a failed trial. The search ends if the sampler stops its study,
    as `GridSampler` does after its last point.

    **Arguments:**

    - `sampler`: a class or function that returns a sampler when it is called with
      `seed=`, such as `optuna.samplers.TPESampler`, or
      `functools.partial(TPESampler, constant_liar=True)`, which spreads the points of
      one round.

    **Raises:** `TypeError` if `sampler` cannot be called; `MissingKeyError`, when the
    search begins, without a key.

    !!! example

        >>> import jax
        >>> import eqx_pipe as ep
        >>> from optuna.samplers import RandomSampler
        >>> space = {"x": ep.LogUniform(1e-3, 1.0), "act": ep.Static(["re", "ge"])}
        >>> found = ep.search.explore(lambda p: p["x"] + (p["act"] == "re"), space,
        ...                           ep.search.Optuna(RandomSampler), rounds=2, num=4,
        ...                           key=jax.random.key(0))
        >>> len(found), found.best().point["act"]
        (8, 'ge')
    """

    sampler: Callable[..., Any]

    def __post_init__(self) -> None:
        optional("search.Optuna", "optuna", "search")
        cure = "It is called with `seed=`, drawn from the key of the search: give the "
        cure += "class, `TPESampler`, or `functools.partial(TPESampler, "
        cure += "n_startup_trials=4)`."
        check_is("search.Optuna", "sampler", self.sampler, Callable, cure)

    def init(self, space: Space, key: Key | None) -> OptunaState:
        """Return a state without trials."""
        return OptunaState(space, needed(key), ())

    def ask(self, state: OptunaState, num: int) -> tuple[Space, OptunaState]:
        """Return the suggestions of the sampler, none after it has stopped."""
        u, after = self._next(state, num)
        points = np.reshape(np.array(u, np.float64), (-1, len(state.space.names)))
        return state.space.from_unit(points), after

    def tell(
        self, state: OptunaState, losses: Losses, result: SweepResult
    ) -> OptunaState:
        """Return the state with the values of the last points, `None` for failures."""
        values = (float(loss) if np.isfinite(loss) else None for loss in losses)
        return self._next(state, tuple(values))[1]

    def _next(
        self, state: OptunaState, call: Call
    ) -> tuple[list[list[float]], OptunaState]:
        """Return the answer of the study of a state to a call, and the next state."""
        optuna = optional("search.Optuna", "optuna", "search")
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = _studies.get(state)
            if study is None or study.calls is not state.calls:
                sampler = self.sampler(seed=seed_of(state.key))
                study = _Study(optuna, sampler, state.space)
                for seen in state.calls:
                    study.see(seen)
            study.calls = None  # if the call raises, the study is of no use
            answer = study.see(call)
        finally:
            optuna.logging.set_verbosity(before)
        after = OptunaState(state.space, state.key, (*state.calls, call))
        study.calls = after.calls
        _studies.put(after, study)
        return answer, after


def _distributions(optuna: Any, space: Space) -> dict[str, Any]:
    """Return the distribution of each axis in the unit cube.

    A range has an interval, and categories have the middles of their parts.
    """
    kinds, axes = optuna.distributions, space.axes()
    chosen = dict.fromkeys(axes, kinds.FloatDistribution(0.0, 1.0))
    for name, axis in axes.items():
        if not axis.is_range:
            middles = [(k + 0.5) / len(axis) for k in range(len(axis))]
            chosen[name] = kinds.CategoricalDistribution(middles)
    return chosen
