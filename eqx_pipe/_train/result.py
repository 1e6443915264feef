"""`TrainResult`: the curves and carries of trainings."""

import dataclasses
import functools as ft
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int, Int8

from .._errors import message, type_error, value_error
from .._reduce import Over
from .._results import Best, Compared, SweepResult
from .._run import nothing
from .._spaces import Space
from .._store import OK, StoreLike, as_files, gaps_of
from .._types import PyTree
from .checkpoint import newest
from .lanes import Carries, Columns, Lanes, point_maker, values_at

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


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TrainResult:
    """The curves of many trainings, their latest metrics, and their carries.

    `curves` is a `SweepResult` whose outputs have the dim `step`, or `eval_step` for
    the metrics of `evaluate` and what a scheduler decided: `point.lr` is the value of
    the axis `lr` until that step, and `parent` the index of the training from whose
    carry each continued. `step_status` tells which entries are there: 1 is recorded, 2
    the training had failed, 0 it was stopped before. Elsewhere, curves are NaN, and
    integers 0.

    `step` is the number of steps so far, `trained` that of each training, and `active`
    is true for each training that was not stopped and did not fail.
    """

    curves: SweepResult
    step: int
    active: Bool[np.ndarray, " trainings"]
    trained: Int[np.ndarray, " trainings"]
    _columns: Columns
    _groups: Sequence[tuple[Lanes, Carries]] = ()

    @property
    def space(self) -> Space:
        """The space of the trainings."""
        return self.curves.space

    @ft.cached_property
    def latest(self) -> SweepResult:
        """The newest metrics of each training, as a `SweepResult`."""
        curves = curves_of(self.curves)
        del curves[STATUS]
        missing = (self.status != OK).all(axis=1)
        gaps = gaps_of(self.curves.ok & ~missing, self.curves.ok & missing)
        values = {name: x.newest(self.trained) for name, x in curves.items()}
        coords = {name: x.inner for name, x in curves.items()}
        changes: Any = {"values": values, "_gaps": gaps, "output_coords": coords}
        return dataclasses.replace(self.curves, **changes)

    @property
    def status(self) -> Int8[np.ndarray, "trainings records"]:
        """The status of each training at each recorded step, see the class."""
        return np.asarray(self.curves.values[STATUS])

    @property
    def errors(self) -> dict[int, str]:
        """The error of each failed training, with `on_error="mark"`."""
        return self.curves.errors

    def point(self, i: int) -> PyTree:
        """Return the point of a training as trained last, after changes by PBT.

        **Raises:** `IndexError` if `i` is out of range.
        """
        return point_maker(self.space, i)(values_at(self._columns, i).values())

    def carry(self, i: int) -> PyTree:
        """Return the carry of a training.

        **Raises:** `IndexError` if `i` is out of range; `TypeError` if the result was
        loaded.
        """
        self.space.point(i)  # raises if it is out of range
        for lanes, carries in self._groups:
            if i in lanes.rows:
                return lanes.carry(i, self._columns, carries)
        wrong = f"{self!r} was loaded without the functions of `Training`."
        cure = "Call `train` again with the same arguments and `store=`."
        raise type_error("TrainResult", wrong, cure)

    def best(
        self, by: Compared = None, mode: str = "min", *, over: Over = None
    ) -> Best:
        """Return the best training by its latest metrics, as `SweepResult.best`.

        Its `point` has the values as trained last. With `over`, which averages over
        replicates, the point is a setting of the space, and a scheduler must neither
        have changed it nor have stopped some of the trainings.

        **Raises:** as `SweepResult.best`; `ValueError` for `over` if a scheduler has
        changed points, or if trainings have different numbers of steps.
        """
        trained = self.trained[self.curves.ok]
        if over is not None and len({*trained.tolist()}) > 1:
            wrong = f"some trainings have {trained.min()} steps, and others up to "
            wrong += f"{trained.max()}: their means do not compare."
            cure = f"Leave `over` out, or compare the curves at step {trained.min()}."
            raise value_error("TrainResult.best", wrong, cure)
        best, first = self.latest.best(by, mode, over=over), columns_of(self.space)
        pairs = self._columns.items()
        changed = {name: x for name, x in pairs if x.tobytes() != first[name].tobytes()}
        if changed and over is not None:
            wrong = f"a scheduler has changed `{min(changed)}` of single trainings."
            cure = "Leave `over` out: replicates no longer share a setting."
            raise value_error("TrainResult.best", wrong, cure)
        if changed:
            i = int(best.index)
            point = self.point(i)
            now = {**best.coordinates, **{name: x[i] for name, x in changed.items()}}
            best = dataclasses.replace(best, point=point, coordinates=now)
        return best

    @staticmethod
    def load(path: StoreLike) -> "TrainResult":
        """Load the newest checkpoint of a store of `train`, also while it is filled.

        It has the curves and metrics. For carries call `train` again with the same
        arguments, which returns at once if the store has all steps.

        **Raises:** `FileNotFoundError` if there is no checkpoint.
        """
        function = "TrainResult.load"
        files = as_files(function, path, "path")
        saved = newest(files, function, lambda saved: None)
        if saved is None:
            text = f"`{files.path_of()}` has no checkpoint of `train`."
            cure = "Give the path that `train` got as `store`."
            raise FileNotFoundError(message(function, text, cure))
        (active, trained, _, *rest), entries = saved.arrays, saved.entries
        columns = dict(zip(entries["columns"], rest, strict=False))
        step = max(entries["step"], int(trained.max()))
        return TrainResult(saved.curves, step, active, trained, columns)

    def __repr__(self) -> str:
        count, active = len(self.active), int(self.active.sum())
        failed = f", {len(self.errors):,} failed" if self.errors else ""
        names = ", ".join(["", *self.latest.values])
        text = f"{count:,} trainings, {active:,} active{failed}, step {self.step:,}"
        return f"TrainResult({text}{names})"


def columns_of(space: Space) -> dict[str, np.ndarray]:
    """Return the values of the axes at all points by path, without `Static` axes."""
    static = {name for name, axis in space.geometry.axes.items() if axis.is_static}
    return {
        name: x.astype(jax.dtypes.canonicalize_dtype(x.dtype))
        for name, x in space.geometry.columns().items()
        if name not in static
    }
