"""The samplers of Optuna as a method of search."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import numpy as np

from .._cache import WeakCache
from .._check import check_is
from .._errors import optional
from .._keys import seed_of
from .._spaces import Space
from .._sweep import SweepResult
from .._types import Key
from .method import Losses, needed

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
        cure = "Give a class or function such as `optuna.samplers.TPESampler`."
        check_is("search.Optuna", "sampler", self.sampler, Callable, cure)

    def init(self, space: Space, key: Key | None) -> OptunaState:
        """Return a state without trials."""
        return OptunaState(space, needed("search.Optuna", key), ())

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
    kinds = optuna.distributions
    return {
        name: kinds.FloatDistribution(0.0, 1.0)
        if axis.is_range
        else kinds.CategoricalDistribution(
            [(k + 0.5) / len(axis) for k in range(len(axis))]
        )
        for name, axis in space.axes().items()
    }
