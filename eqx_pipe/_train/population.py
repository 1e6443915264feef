"""`Population`: what a scheduler gets and returns."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool, Int

from .._check import check_choice, check_is
from .._errors import describe_value, nearest, value_error
from .._sweep import ranked

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

    def __len__(self) -> int:
        return len(self.active)

    def ranked(self, by: str, mode: str = "min") -> Int[np.ndarray, " active"]:
        """Return the indices of the active trainings, best first: NaN last.

        Of equal metrics, the lower index comes first.

        **Raises:** `ValueError` if `by` is not the path of a scalar metric.
        """
        check_choice("train: Population.ranked", "mode", mode, ("min", "max"))
        return ranked(self.metric(by), mode, self.active)

    def metric(self, by: str) -> np.ndarray:
        """Return a scalar metric of each training.

        **Raises:** `ValueError` if `by` is not the path of one.
        """
        known = [name for name, x in self.metrics.items() if x.ndim == 1]
        if by not in known:
            wrong = f"`by` is {describe_value(by)}, which is not a scalar metric."
            raise value_error("train", wrong, nearest(by, known))
        return self.metrics[by]

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

        **Raises:** `ValueError` for wrong shapes or indices, unknown axes, and a parent
        with another value of a `Static` axis.
        """
        own = np.arange(len(self))
        parent = (
            own
            if parents is None
            else self._array("parents", parents, own.shape, "integers")
        )
        if ((parent < 0) | (parent >= len(self))).any():
            wrong = f"`parents` has indices from {parent.min()} to {parent.max()}."
            raise value_error(_NEXT, wrong, f"Give indices from 0 to {len(self) - 1}.")
        across = np.flatnonzero(self._groups[parent] != self._groups)
        if len(across):
            i = int(across[0])
            raise value_error(
                _NEXT,
                f"training {i} cannot continue from training {parent[i]}, which has "
                "other values of the Static axes.",
                "Give it a parent with the same values.",
            )
        changed = dict(self.points)
        check_is(_NEXT, "points", points or {}, Mapping, 'Give `{"lr": values}`.')
        for name, values in (points or {}).items():
            if name not in changed:
                wrong = f"`points` has {describe_value(name)}, not an axis of arrays."
                raise value_error(_NEXT, wrong, nearest(name, changed))
            was = changed[name]
            now = self._array(f"points[{name!r}]", values, was.shape, "numbers")
            with np.errstate(all="ignore"):
                changed[name] = now.astype(was.dtype)
            lost = ~np.isfinite(changed[name]) & np.isfinite(now)
            if not jnp.issubdtype(was.dtype, jnp.inexact):
                lost = changed[name] != now
            if lost.any():
                wrong = f"`points[{name!r}]` has {now[lost][0]}, but is {was.dtype}."
                raise value_error(_NEXT, wrong, "Give numbers that fit this dtype.")
        going = self.active | (parent != own)
        if active is not None:
            going = going & self._array("active", active, own.shape, "booleans")
        return dataclasses.replace(
            self, parents=parent.astype(np.int64), points=changed, active=going
        )

    def _array(
        self, name: str, given: Any, shape: tuple[int, ...], kind: str
    ) -> np.ndarray:
        try:
            array = np.asarray(given)
        except ValueError:  # lists of unequal lengths
            array = np.asarray(None)
        dtypes = {"booleans": [np.bool_], "integers": [np.integer]}
        allowed = dtypes.get(kind, [np.number, np.bool_])
        fits = any(jnp.issubdtype(array.dtype, one) for one in allowed)
        if array.shape != shape or not fits:
            found = f"{array.dtype}{list(array.shape)}"
            text = describe_value(given) if array.dtype.kind in "OU" else found
            cure = f"Give {kind} of shape {shape}, one entry for each training."
            raise value_error(_NEXT, f"`{name}` is {text}.", cure)
        return array
