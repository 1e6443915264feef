"""The samplers of Optuna as a method of search."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import numpy as np

from .._check import check_choice, keywords
from .._errors import describe_value, optional, type_error
from .._spaces.space import Space
from .._sweep.results.best import Compared
from .._sweep.results.result import SweepResult
from .._types import Key
from .method import is_continuous, losses, seed_of


class OptunaState(eqx.Module):
    """The trials so far, as JSON can hold them; the last ones may not be told yet."""

    space: Space
    key: Key | None
    trials: tuple[Mapping[str, Any], ...] = eqx.field(static=True)
    asked: int = eqx.field(static=True)


@dataclasses.dataclass(frozen=True)
class Sampler:
    """See `optuna`."""

    sampler: Callable[..., Any]
    by: Compared
    mode: str

    def init(self, space: Space, key: Key | None) -> OptunaState:
        """No trials."""
        seed_of("search.optuna", key, 0)
        return OptunaState(space, key, (), 0)

    def ask(self, state: OptunaState, n: int) -> tuple[Space, OptunaState]:
        """What the sampler suggests to a study of the trials so far."""
        optuna = optional("search.optuna", "optuna", "search")
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            seed = seed_of("search.optuna", state.key, state.asked)
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
        u = np.array([_shares(state.space, trial["params"]) for trial in new])
        trials = (*state.trials, *new)
        asked = OptunaState(state.space, state.key, trials, state.asked + 1)
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
        trials = (*state.trials[:told], *new)
        return OptunaState(state.space, state.key, trials, state.asked)


def _distributions(optuna: Any, space: Space) -> dict[str, Any]:
    kinds = optuna.distributions
    return {
        name: kinds.FloatDistribution(0.0, 1.0)
        if is_continuous(axis)
        else kinds.CategoricalDistribution(range(len(axis)))
        for name, axis in space.axes().items()
    }


def _shares(space: Space, params: Mapping[str, Any]) -> list[float]:
    """Where in the unit cube some parameters are."""
    return [
        params[name] if is_continuous(axis) else (params[name] + 0.5) / len(axis)
        for name, axis in space.axes().items()
    ]


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


@keywords("search.optuna")
def optuna(
    sampler: Callable[..., Any], by: Compared = None, mode: str = "min"
) -> Sampler:
    """Any sampler of Optuna, asked for a whole round at once.

    Each round begins a study of all trials so far: the state is these trials, and the
    proposals depend on nothing else. In `Linspace` and `Geomspace` (there in the
    logarithm) any number is proposed, other axes are categories. A point that failed,
    or has a NaN, is a failed trial.

    **Arguments:**

    - `sampler`: makes a sampler when it is called with `seed=`, such as
      `optuna.samplers.TPESampler`, or
      `functools.partial(TPESampler, constant_liar=True)`, which spreads the points of
      one round.
    - `by`, `mode`: what is made small or large, as in `SweepResult.best`.

    **Returns:** a `Method` for `explore`, whose state JSON can hold but for the space.

    **Raises:** `TypeError` for what makes no sampler, `ValueError` without a key.

    !!! example

        >>> import jax
        >>> import eqx_pipe as ep
        >>> import eqx_pipe.search as eps
        >>> from optuna.samplers import RandomSampler
        >>> space = {"x": ep.Geomspace(1e-3, 1.0, 2), "act": ep.Static(["re", "ge"])}
        >>> found = ep.explore(lambda p: p["x"] + (p["act"] == "re"), space,
        ...                    eps.optuna(RandomSampler), rounds=2, n=4,
        ...                    key=jax.random.key(0))
        >>> len(found), found.best().point["act"]
        (8, 'ge')
    """
    optional("search.optuna", "optuna", "search")
    check_choice("search.optuna", "mode", mode, ("min", "max"))
    if not callable(sampler):
        raise type_error(
            "search.optuna",
            f"`sampler` is {describe_value(sampler)}.",
            "Give what makes a sampler from a seed, such as "
            "`optuna.samplers.TPESampler`.",
        )
    return Sampler(sampler, by, mode)
