"""Schedulers: successive halving, and population-based training."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .._check import check_choice, check_int, check_is
from .._errors import value_error
from .._sweep import ranked
from .._types import Key
from .population import Population


class Halving(eqx.Module):
    """A scheduler of `train` that stops all but the best trainings.

    At the end of each interval of `every`, the best `1/eta` of the active trainings, at
    least one, continue. A training whose metric is NaN stops; of equal metrics, the
    lower index continues. This is successive halving (Jamieson and Talwalkar, 2016).

    **Arguments:**

    - `by`: the path of a scalar metric of `step` or `evaluate`.
    - `eta`: one of every `eta` trainings continues.
    - `mode`: whether a small (`"min"`) or a large metric (`"max"`) is better.

    **Raises:** `ValueError` for an `eta` below 2, and an unknown `mode`.

    !!! example

        >>> import eqx_pipe as ep
        >>> descent = ep.Training(
        ...     init=lambda p: 4.0,
        ...     step=lambda p, x: (x - p["rate"] * 2 * x, None),
        ...     evaluate=lambda p, x: {"loss": x**2},
        ... )
        >>> result = ep.train(
        ...     descent, {"rate": ep.Geomspace(1e-3, 1.0, 9)}, 9, every=(1, 3, 9),
        ...     scheduler=ep.search.Halving("loss"),
        ... )
        >>> result.trained.tolist()
        [1, 1, 1, 1, 1, 3, 3, 9, 1]
    """

    by: str
    eta: int = 3
    mode: str = "min"

    def __check_init__(self) -> None:
        check_is("search.Halving", "by", self.by, str, _BY)
        check_int("search.Halving", "eta", self.eta, 2)
        check_choice("search.Halving", "mode", self.mode, ("min", "max"))

    def __call__(self, population: Population, key: Key | None) -> Population:
        """Return the population without the trainings that stop."""
        metric = population.metric(self.by)
        order = ranked(metric, self.mode, population.active & ~np.isnan(metric))
        kept = np.zeros(len(population), bool)
        kept[order[: max(1, math.ceil(population.active.sum() / self.eta))]] = True
        return population.next(active=kept)


class PBT(eqx.Module):
    """A scheduler of `train`: population-based training (Jaderberg et al., 2017).

    At the end of each interval of `every`, each of the worst `fraction` of the active
    trainings continues from the carry of one of the best, with its values of the axes
    in `vary`, each times one of `factors` at random. NaN counts as worst.

    **Arguments:**

    - `by`: the path of a scalar metric of `step` or `evaluate`.
    - `vary`: the paths of axes with floating-point numbers.
    - `mode`: whether a small (`"min"`) or a large metric (`"max"`) is better.
    - `fraction`: the fraction of trainings to replace, at most a half.
    - `factors`: the numbers to multiply by.

    `train` needs a `key`. A rate that is stored in the carry, as by
    `optax.inject_hyperparams`, does not follow `vary`: make the optimiser in `step`.

    **Raises:** `ValueError` for a `fraction` that is not in (0, 0.5], and an unknown
    `mode`; `TypeError` for other wrong types.

    !!! example

        >>> import eqx_pipe as ep, jax
        >>> descent = ep.Training(
        ...     init=lambda p: 4.0,
        ...     step=lambda p, x: (x - p["rate"] * 2 * x, {"loss": x**2}),
        ... )
        >>> result = ep.train(
        ...     descent, {"rate": ep.Geomspace(1e-3, 1.0, 8)}, 12, every=3,
        ...     key=jax.random.key(0),
        ...     scheduler=ep.search.PBT("loss", ["rate"]),
        ... )
        >>> result.curves.values["point.rate"].shape
        (8, 4)
    """

    by: str
    vary: tuple[str, ...] = eqx.field(converter=lambda x: _as_tuple(x))
    mode: str = "min"
    fraction: float = 0.2
    factors: tuple[float, ...] = eqx.field(
        default=(0.8, 1.2), converter=lambda x: _as_tuple(x)
    )

    def __check_init__(self) -> None:
        check_choice("search.PBT", "mode", self.mode, ("min", "max"))
        check_is("search.PBT", "by", self.by, str, _BY)
        cure = 'Give a list of paths of axes: `["lr"]`.'
        check_is("search.PBT", "vary", self.vary, tuple, cure)
        for name in self.vary:
            check_is("search.PBT", "vary", name, str, cure)
        cure = "Give numbers to multiply by: `(0.8, 1.2)`."
        check_is("search.PBT", "factors", self.factors, tuple, cure)
        for factor in self.factors:
            check_is("search.PBT", "factors", factor, int | float, cure)
        if not self.factors or not np.isfinite(self.factors).all():
            raise value_error("search.PBT", f"`factors` is {self.factors}.", cure)
        cure = "Give a number above 0, at most 0.5."
        check_is("search.PBT", "fraction", self.fraction, int | float, cure)
        if not 0 < self.fraction <= 0.5:
            raise value_error("search.PBT", f"`fraction` is {self.fraction}.", cure)

    def __call__(self, population: Population, key: Key | None) -> Population:
        """Return the population in which the best have replaced the worst."""
        if key is None:
            wrong = "`search.PBT` draws random numbers and got no key."
            raise value_error("train", wrong, "Give `key=jax.random.key(0)`.")
        order = population.ranked(self.by, self.mode)
        count = min(max(1, int(self.fraction * len(order))), len(order) // 2)
        worst, best = order[len(order) - count :], order[:count]
        parents = np.arange(len(population))
        parents[worst] = best
        points = {}
        for k, name in enumerate(self.vary):
            if name not in population.points:
                population.next(points={name: 0})  # raises
            values = population.points[name][parents]
            if not jnp.issubdtype(values.dtype, jnp.floating):
                wrong = f"the axis `{name}` in `vary` has the dtype {values.dtype}."
                raise value_error("search.PBT", wrong, "Name axes of floats.")
            shape = count, *values.shape[1:]
            factors = jr.choice(jr.fold_in(key, k), jnp.array(self.factors), shape)
            values[worst] = values[worst] * np.asarray(factors).astype(values.dtype)
            points[name] = values
        return population.next(parents=parents, points=points)


_BY = 'Give the path of a metric: `"loss"`.'


def _as_tuple(x: Any) -> Any:
    """Return a list as a tuple; other values are checked later."""
    return tuple(x) if isinstance(x, list) else x
