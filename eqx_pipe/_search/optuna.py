"""The samplers of Optuna as a method of search."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .._check import check_is
from .._errors import optional
from .._spaces import Space
from .._sweep import SweepResult
from .._types import Key
from .method import Losses, needed


class OptunaState(eqx.Module):
    """The trials so far, as JSON values; the last ones may not have a value yet."""

    space: Space
    key: Key
    trials: tuple[Mapping[str, Any], ...] = eqx.field(static=True)


@dataclasses.dataclass(frozen=True)
class Optuna:
    """A method of search: any sampler of Optuna, which proposes a round at a time.

    Each round creates a study of all trials so far: the state is these trials and the
    key, and the proposals depend on nothing else. Ranges (`Uniform`, and `LogUniform`
    in the logarithm) are continuous; other axes are categories. A point that failed, or
    has no finite number, is a failed trial.

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
        """Return the suggestions of the sampler for a study of the trials so far."""
        optuna = optional("search.Optuna", "optuna", "search")
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            own = jr.fold_in(state.key, len(state.trials))
            seed = int(jr.bits(own, dtype=jnp.uint32))
            # Create a new sampler, since its generator cannot be saved: a resumed
            # search would otherwise propose other points than an uninterrupted one.
            study = optuna.create_study(sampler=self.sampler(seed=seed))
            axes = _distributions(optuna, state.space)
            study.add_trials([_frozen(optuna, axes, trial) for trial in state.trials])
            for _ in range(num):
                study.ask(axes)
            new = [
                {"params": trial.params, "attrs": trial.system_attrs}
                for trial in study.get_trials(deepcopy=False)[-num:]
            ]
        finally:
            optuna.logging.set_verbosity(before)
        u = np.array([[trial["params"][name] for name in axes] for trial in new])
        asked = OptunaState(state.space, state.key, (*state.trials, *new))
        return state.space.from_unit(u), asked

    def tell(
        self, state: OptunaState, losses: Losses, result: SweepResult
    ) -> OptunaState:
        """Return the state with the values of the last trials, `None` for failures."""
        told = len(state.trials) - len(losses)
        new = [
            {**trial, "value": float(loss) if np.isfinite(loss) else None}
            for trial, loss in zip(state.trials[told:], losses, strict=True)
        ]
        return OptunaState(state.space, state.key, (*state.trials[:told], *new))


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


def _frozen(optuna: Any, axes: Mapping[str, Any], trial: Mapping[str, Any]) -> Any:
    """Return a finished trial."""
    states, value = optuna.trial.TrialState, trial["value"]
    return optuna.trial.create_trial(
        state=states.FAIL if value is None else states.COMPLETE,
        value=value,
        params=dict(trial["params"]),
        distributions=dict(axes),
        system_attrs=dict(trial["attrs"]),
    )
