"""The samplers of Optuna as a method of search."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import numpy as np

from .._errors import optional
from .._spaces import Space
from .._sweep.results.best import Compared
from .._sweep.results.result import SweepResult
from .._types import Key
from .method import is_continuous, losses, needed, seed_of


class OptunaState(eqx.Module):
    """The trials so far, as JSON can hold them; the last ones may not be told yet."""

    space: Space
    key: Key
    trials: tuple[Mapping[str, Any], ...] = eqx.field(static=True)


@dataclasses.dataclass(frozen=True)
class Sampler:
    """See `eqx_pipe.search.optuna`."""

    sampler: Callable[..., Any]
    by: Compared
    mode: str

    def init(self, space: Space, key: Key | None) -> OptunaState:
        """No trials."""
        return OptunaState(space, needed("search.optuna", key), ())

    def ask(self, state: OptunaState, n: int) -> tuple[Space, OptunaState]:
        """What the sampler suggests to a study of the trials so far."""
        optuna = optional("search.optuna", "optuna", "search")
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            seed = seed_of(state.key, len(state.trials))
            # Made anew, since a sampler's generator cannot be saved: a search that goes
            # on after a kill would propose other points than one that was not killed.
            study = optuna.create_study(sampler=self.sampler(seed=seed))
            axes = _distributions(optuna, state.space)
            study.add_trials([_frozen(optuna, axes, trial) for trial in state.trials])
            for _ in range(n):
                study.ask(axes)
            new = [
                {"params": trial.params, "attrs": trial.system_attrs}
                for trial in study.get_trials(deepcopy=False)[-n:]
            ]
        finally:
            optuna.logging.set_verbosity(before)
        u = np.array([[trial["params"][name] for name in axes] for trial in new])
        asked = OptunaState(state.space, state.key, (*state.trials, *new))
        return state.space.from_unit(u), asked

    def tell(self, state: OptunaState, result: SweepResult) -> OptunaState:
        """The values of the last trials; one that failed has none."""
        values, known = losses("search.optuna", result, self.by, self.mode)
        told = len(state.trials) - len(values)
        pairs = zip(state.trials[told:], values, known, strict=True)
        new = [
            {**trial, "value": float(value) if there else None}
            for trial, value, there in pairs
        ]
        return OptunaState(state.space, state.key, (*state.trials[:told], *new))


def _distributions(optuna: Any, space: Space) -> dict[str, Any]:
    """For each axis where in the unit cube its values are: a stretch, or some points.

    The points of categories are the middles of their parts of the cube.
    """
    kinds = optuna.distributions
    return {
        name: kinds.FloatDistribution(0.0, 1.0)
        if is_continuous(axis)
        else kinds.CategoricalDistribution(
            [(k + 0.5) / len(axis) for k in range(len(axis))]
        )
        for name, axis in space.axes().items()
    }


def _frozen(optuna: Any, axes: Mapping[str, Any], trial: Mapping[str, Any]) -> Any:
    """A trial that has ended."""
    states, value = optuna.trial.TrialState, trial["value"]
    return optuna.trial.create_trial(
        state=states.FAIL if value is None else states.COMPLETE,
        value=value,
        params=dict(trial["params"]),
        distributions=dict(axes),
        system_attrs=dict(trial["attrs"]),
    )
