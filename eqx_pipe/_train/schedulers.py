"""Schedulers: successive halving, and population-based training."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike, Bool, Int

from .._check import check_choice, check_int, check_is
from .._errors import describe_value, nearest, value_error
from .._results import ranked
from .._types import Key

_NEXT = "train: Population.next"


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """All trainings after some steps, as a scheduler sees them.

    Arrays have an entry for each training, in the order of the points. `points` has the
    values of the axes by path, without `Static` axes, and `metrics` the latest metrics
    by path. `active` is true for each training that continues, and `parents` has the
    index of the training whose carry each continues from.

    A scheduler is a pure function `scheduler(population, key)` that returns
    `population.next(...)`.
    """

    step: int
    points: Mapping[str, np.ndarray]
    metrics: Mapping[str, np.ndarray]
    active: Bool[np.ndarray, " trainings"]
    parents: Int[np.ndarray, " trainings"]
    _groups: Int[np.ndarray, " trainings"] = dataclasses.field(repr=False)
    _read: Collection[str] = dataclasses.field(repr=False)
    _renewed: Collection[str] = dataclasses.field(repr=False, default=())

    def ranked(self, by: str, mode: str = "min") -> Int[np.ndarray, " active"]:
        """Return the indices of the active trainings, best first: NaN last.

        Of equal metrics, the lower index comes first.

        **Raises:** `ValueError` if `by` is not the path of a scalar metric.
        """
        check_choice("train: Population.ranked", "mode", mode, ("min", "max"))
        scalars = [name for name, x in self.metrics.items() if x.ndim == 1]
        if by not in scalars:
            wrong = f"`by` is {describe_value(by)}, which is not a scalar metric."
            raise value_error("train", wrong, nearest(by, scalars))
        return ranked(self.metrics[by], mode, self.active)

    def next(
        self,
        *,
        parents: ArrayLike | Sequence[Any] | None = None,
        points: Mapping[str, ArrayLike | Sequence[Any]] | None = None,
        active: ArrayLike | Sequence[Any] | None = None,
    ) -> "Population":
        """Return the population that continues.

        **Arguments:**

        - `parents`: for each training the index of the training from whose carry it
          continues; by default its own. A stopped training that gets another parent
          continues, if `active` does not stop it. (Keyword only.)
        - `points`: new values of axes by path, with an entry for each training.
          (Keyword only.)
        - `active`: false for each training to stop. (Keyword only.)

        **Raises:** `ValueError` for wrong shapes or indices, unknown axes, a parent
        with another value of a `Static` axis, and new values of an axis that neither
        `step` nor `evaluate` reads.
        """
        every = np.arange(len(self.active))
        parent = self._array("parents", parents, every, "integers")
        if not np.isin(parent, every).all():
            wrong = f"`parents` has indices from {parent.min()} to {parent.max()}."
            raise value_error(_NEXT, wrong, f"Give indices from 0 to {len(every) - 1}.")
        across = np.flatnonzero(self._groups[parent] != self._groups)
        if len(across):
            wrong = f"training {across[0]} cannot continue from training "
            wrong += f"{parent[across[0]]}, which has other values of the Static axes."
            raise value_error(_NEXT, wrong, "Give it a parent with the same values.")
        changed = dict(self.points)
        check_is(_NEXT, "points", points or {}, Mapping, 'Give `{"lr": values}`.')
        for name, values in (points or {}).items():
            if name not in changed:
                wrong = f"`points` has {describe_value(name)}, not an axis of arrays."
                raise value_error(_NEXT, wrong, nearest(name, changed))
            argument = f"points[{name!r}]"
            new = self._array(argument, values, changed[name], "numbers")
            if name not in self._read and new.tobytes() != changed[name].tobytes():
                wrong = f"`{name}` gets new values, and neither `step` nor `evaluate` "
                cure = "Use it in `step`: make the optimiser there, or set "
                cure += f'`state.hyperparams["learning_rate"] = point[{name!r}]`.'
                raise value_error(_NEXT, f"{wrong}reads it.", cure)
            changed[name] = new
        going = self._array("active", active, np.ones(len(every), bool), "booleans")
        going &= self.active | (parent != every)
        new: Any = {"points": changed, "active": going, "_renewed": (*(points or ()),)}
        return dataclasses.replace(self, parents=parent, **new)

    def _array(
        self, name: str, array_like: object, default: np.ndarray, kind: str
    ) -> np.ndarray:
        """Return an array with the shape and dtype of the default."""
        if array_like is None:
            return default
        array, dtype = np.asarray(array_like), default.dtype
        kinds = {"booleans": [np.bool_], "integers": [np.integer]}
        allowed = kinds.get(kind, [np.number, np.bool_])
        fits = any(jnp.issubdtype(array.dtype, one) for one in allowed)
        if array.shape != default.shape or not fits:
            cure = f"Give {kind} of shape {default.shape}, one entry for each training."
            raise value_error(_NEXT, f"`{name}` is {describe_value(array_like)}.", cure)
        with np.errstate(all="ignore"):
            cast, is_real = array.astype(dtype), jnp.issubdtype(dtype, jnp.inexact)
        lost = np.isfinite(array) & ~np.isfinite(cast) if is_real else cast != array
        if lost.any():
            wrong = f"`{name}` has {array[lost][0]}, but is {dtype}."
            raise value_error(_NEXT, wrong, "Give numbers that fit this dtype.")
        return cast


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
        order = population.ranked(self.by, self.mode)
        order = order[~np.isnan(population.metrics[self.by][order])]
        kept = np.zeros_like(population.active)
        kept[order[: max(1, math.ceil(population.active.sum() / self.eta))]] = True
        return population.next(active=kept)


def _as_tuple(x: object) -> Any:
    """Return a list as a tuple; other values are checked later."""
    return tuple(x) if isinstance(x, list) else x


class PBT(eqx.Module):
    """A scheduler of `train`: population-based training (Jaderberg et al., 2017).

    At the end of each interval of `every`, each of the worst `fraction` of the active
    trainings continues from the carry of one of the best, with its values of the axes
    in `vary`, each times one of `factors` at random. NaN counts as worst, and only
    trainings with a finite metric are copied. Trainings with the same values of
    `Static` axes are a population of their own.

    **Arguments:**

    - `by`: the path of a scalar metric of `step` or `evaluate`.
    - `vary`: the paths of axes with floating-point numbers.
    - `mode`: whether a small (`"min"`) or a large metric (`"max"`) is better.
    - `fraction`: the fraction of trainings to replace, at most a half.
    - `factors`: the numbers to multiply by.
    - `bounds`: the lowest and highest value of some of these axes, such as
      `{"momentum": (0.5, 0.99)}`: a product beyond it becomes this value.

    `train` needs a `key`. A rate that is stored in the carry, as by
    `optax.inject_hyperparams`, does not follow `vary`, and raises: make the optimiser
    in `step`.

    **Raises:** `ValueError` for a `fraction` that is not in (0, 0.5], an unknown
    `mode`, and wrong `bounds`; `TypeError` for other wrong types.

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
    vary: tuple[str, ...] = eqx.field(converter=_as_tuple)
    mode: str = "min"
    fraction: float = 0.2
    factors: tuple[float, ...] = eqx.field(default=(0.8, 1.2), converter=_as_tuple)
    bounds: Mapping[str, tuple[float, float]] = eqx.field(
        default_factory=dict, converter=lambda x: x
    )

    def __check_init__(self) -> None:
        check_choice("search.PBT", "mode", self.mode, ("min", "max"))
        check_is("search.PBT", "by", self.by, str, _BY)
        cure = 'Give a list of paths of axes: `["lr"]`.'
        check_is("search.PBT", "vary", self.vary, tuple, cure)
        cure = "Give numbers to multiply by: `(0.8, 1.2)`."
        check_is("search.PBT", "factors", self.factors, tuple, cure)
        if not self.factors or not all(map(_is_finite, self.factors)):
            raise value_error("search.PBT", f"`factors` is {self.factors}.", cure)
        if not _is_finite(self.fraction) or not 0 < self.fraction <= 0.5:
            wrong = f"`fraction` is {describe_value(self.fraction)}."
            cure = "Give a number above 0, at most 0.5."
            raise value_error("search.PBT", wrong, cure)
        cure = 'Give `{"momentum": (low, high)}`, for axes in `vary`.'
        check_is("search.PBT", "bounds", self.bounds, Mapping, cure)
        for name, pair in self.bounds.items():
            ends: Any = pair if isinstance(pair, tuple | list) else ()
            fits = len(ends) == 2 and all(isinstance(x, int | float) for x in ends)
            if name not in self.vary or not fits or not ends[0] <= ends[1]:
                wrong = f"`bounds[{name!r}]` is {describe_value(pair)}."
                raise value_error("search.PBT", wrong, cure)

    def __call__(self, population: Population, key: Key | None) -> Population:
        """Return the population in which the best have replaced the worst."""
        if key is None:
            wrong = "`search.PBT` draws random numbers and got no key."
            raise value_error("train", wrong, "Give `key=jax.random.key(0)`.")
        order, scores = population.ranked(self.by, self.mode), population.metrics
        finite, kinds = np.isfinite(scores[self.by]), population._groups
        parents, replaced = np.arange(len(population.active)), [order[:0]]
        for kind in np.unique(kinds):
            alike = order[kinds[order] == kind]
            count = min(max(1, int(self.fraction * len(alike))), len(alike) // 2)
            best = alike[finite[alike]][:count]
            if count and len(best):
                replaced.append(alike[len(alike) - count :])
                parents[replaced[-1]] = np.resize(best, count)
        worst, points, axes = np.concatenate(replaced), {}, population.points.items()
        floats = {k: x for k, x in axes if jnp.issubdtype(x.dtype, jnp.floating)}
        for k, name in enumerate(self.vary):
            if name not in floats:
                wrong = f"`vary` has {describe_value(name)}, not an axis of floats."
                raise value_error("search.PBT", wrong, nearest(name, floats))
            values = floats[name][parents].astype(float)
            shape, factors = values[worst].shape, jnp.array(self.factors)
            values[worst] *= np.asarray(jr.choice(jr.fold_in(key, k), factors, shape))
            low, high = self.bounds.get(name, (-math.inf, math.inf))
            values[worst] = np.clip(values[worst], low, high)
            points[name] = values
        return population.next(parents=parents, points=points)


def check_scheduler(scheduler: object, population: Population, key: Key | None) -> None:
    """Raise before the first step if a scheduler of this module has wrong names.

    A function is not called: it may count its calls, or read values of metrics.
    """
    if isinstance(scheduler, Halving | PBT):
        metrics = population.metrics.items()
        made = {name: np.arange(len(x)) if x.ndim == 1 else x for name, x in metrics}
        scheduler(dataclasses.replace(population, metrics=made), key)


_BY = 'Give the path of a metric: `"loss"`.'


def _is_finite(x: object) -> bool:
    return isinstance(x, int | float) and math.isfinite(x)
