"""Curves: values of each training at each recorded step, and their status."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from .._results import SweepResult
from .._run import nothing

Steps = Int[np.ndarray, " _steps"]

STATUS = "step_status"
"""The curve of the status, as in stores; steps after a training stopped are missing."""


class Curve(NamedTuple):
    """Values of each training at each of `steps`; those of later steps are empty.

    `inner` has the names and the coordinates of the dims of one value.
    """

    dim: str
    steps: Int[np.ndarray, " steps"]
    values: np.ndarray
    inner: Mapping[str, Any]

    @property
    def form(self) -> tuple[Any, ...]:
        """The dim of the steps, and the dtype and shape of a value."""
        return self.dim, self.values.dtype, self.values.shape[2:]

    def until(self, step: int) -> int:
        """Return the number of entries at the first `step` steps."""
        return int(np.searchsorted(self.steps, step, "right"))

    def newest(self, trained: Int[np.ndarray, " trainings"]) -> np.ndarray:
        """Return the last entry of each training; NaN or 0 if there is none."""
        at = np.searchsorted(self.steps, trained, "right") - 1
        recorded, values = np.flatnonzero(at >= 0), self.values
        shape, dtype = (len(at), *values.shape[2:]), values.dtype
        entries = np.full(shape, nothing(dtype), dtype)
        entries[recorded] = values[recorded, at[recorded]]
        return entries


def curves_of(result: SweepResult) -> dict[str, Curve]:
    """Return the outputs of a result as curves."""
    curves = {}
    for name, values in result.values.items():
        (dim, steps), *inner = result.output_coords[name].items()
        curves[name] = Curve(dim, np.asarray(steps), np.asarray(values), dict(inner))
    return curves
