"""`TrainResult`: the curves of trainings, and their carries."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, Int8

from .._check import check_int
from .._errors import describe_value, type_error, value_error
from .._reduce import Over
from .._spaces import Space
from .._sweep import Best, Compared, StoreLike, SweepResult, gaps_of
from .._types import PyTree
from .lanes import Lanes

RECORDED, FAILED = 1, 2
"""The status of a training at a recorded step; 0 after it was stopped."""

STATUS = "step_status"
"""The curve of the status."""


@dataclasses.dataclass
class Curves:
    """Values of each training at each of `steps`, by path; later entries are empty."""

    dim: str
    steps: Int[np.ndarray, " steps"]
    values: dict[str, np.ndarray]

    def until(self, step: int) -> int:
        """Return the number of entries at the first `step` steps."""
        return int(np.searchsorted(self.steps, step, "right"))


@dataclasses.dataclass
class State:
    """All trainings after `step` steps.

    `columns` are the values of axes as trained last, and `parents` the indices of the
    trainings from whose carries the current interval began. `records` are the curves of
    `step`, and `evals` those of `evaluate` and of decisions, which have an entry for
    each interval. `errors` has the error of each training that failed.
    """

    step: int
    columns: dict[str, np.ndarray]
    active: Bool[np.ndarray, " trainings"]
    trained: Int[np.ndarray, " trainings"]
    parents: Int[np.ndarray, " trainings"]
    records: Curves
    evals: Curves
    errors: dict[int, str]

    def latest(self) -> dict[str, np.ndarray]:
        """Return the newest metrics and decisions of each training."""
        found, rows = {}, np.arange(len(self.active))
        for curves in (self.records, self.evals):
            at = np.searchsorted(curves.steps, self.trained, "right") - 1
            for name, curve in curves.values.items():
                if name != STATUS:
                    found[name] = curve[rows, np.maximum(at, 0)]
        return found


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TrainResult:
    """The curves of many trainings, their latest metrics, and their carries.

    `curves` is a `SweepResult` whose outputs have the dim `step`, or `eval_step` for
    the metrics of `evaluate` and what a scheduler decided: `point.lr` is the value of
    the axis `lr` until that step, and `parent` the index of the training from whose
    carry each continued. `step_status` tells which entries are there: 1 is recorded, 2
    the training had failed, 0 it was stopped before. Elsewhere, curves are NaN, and
    integers 0.

    `latest` is a `SweepResult` of the newest metrics of each training. `step` is the
    number of steps so far, `trained` that of each training, and `active` is true for
    each training that was not stopped and did not fail.
    """

    curves: SweepResult
    latest: SweepResult
    step: int
    active: Bool[np.ndarray, " trainings"]
    trained: Int[np.ndarray, " trainings"]
    _columns: Mapping[str, np.ndarray]
    _groups: Sequence[Lanes] = ()

    @property
    def space(self) -> Space:
        """The space of the trainings."""
        return self.curves.space

    @property
    def status(self) -> Int8[np.ndarray, "trainings records"]:
        """The status of each training at each recorded step, see the class."""
        return np.asarray(self.curves.values[STATUS])

    @property
    def errors(self) -> dict[int, str]:
        """The error of each failed training, with `on_error="mark"`."""
        return self.latest.errors

    def point(self, i: int) -> PyTree:
        """Return the point of a training as trained last, after changes by PBT.

        **Raises:** `IndexError` if `i` is out of range; `TypeError` if the result was
        loaded, and the point was changed.
        """
        lanes, at = self._lanes(i)
        row = lanes.rows[at]
        return lanes.point({k: jnp.asarray(x[row]) for k, x in self._columns.items()})

    def carry(self, i: int) -> PyTree:
        """Return the carry of a training, with the static parts of its last point.

        **Raises:** as `point`.
        """
        lanes, at = self._lanes(i)
        return lanes.carry({k: x[lanes.rows] for k, x in self._columns.items()}, at)

    def best(
        self, by: Compared = None, mode: str = "min", *, over: Over = None
    ) -> Best:
        """Return the best training by its latest metrics, as `SweepResult.best`.

        Its `point` has the values as trained last. With `over`, which averages over
        replicates, the point is a setting of the space, and a scheduler must not have
        changed it.

        **Raises:** as `SweepResult.best`; `ValueError` for `over` if a scheduler has
        changed points.
        """
        best = self.latest.best(by, mode, over=over)
        first = self.space.geometry.columns()
        changed = [
            name
            for name, x in self._columns.items()
            if x.tobytes() != first[name].astype(x.dtype).tobytes()
        ]
        if not changed:
            return best
        if over is not None:
            wrong = f"a scheduler has changed `{changed[0]}` of single trainings."
            cure = "Leave `over` out: replicates no longer share a setting."
            raise value_error("TrainResult.best", wrong, cure)
        i = int(best.index)
        values = {name: self._columns[name][i] for name in changed}
        return dataclasses.replace(
            best,
            point=self.point(i) if self._groups else best.point,
            coordinates={**best.coordinates, **values},
        )

    @staticmethod
    def load(path: StoreLike) -> "TrainResult":
        """Load the newest checkpoint of a store of `train`, also while it is filled.

        It has the curves and metrics. For carries call `train` again with the same
        arguments, which returns at once if the store has all steps.

        **Raises:** `FileNotFoundError` if there is no checkpoint.
        """
        from .checkpoint import load

        return load(path)

    def _lanes(self, i: int) -> tuple[Lanes, int]:
        check_int("TrainResult", "i", i, 0)
        if i >= len(self.active):
            raise IndexError(f"{i} is out of range for {len(self.active)} trainings")
        for lanes in self._groups:
            at = np.flatnonzero(lanes.rows == i)
            if len(at):
                return lanes, int(at[0])
        wrong = (
            f"{describe_value(self)} was loaded without the functions of `Training`."
        )
        cure = "Call `train` again with the same arguments and `store=`."
        raise type_error("TrainResult", wrong, cure)

    def __repr__(self) -> str:
        count, active = len(self.active), int(self.active.sum())
        failed = f", {len(self.errors):,} failed" if self.errors else ""
        names = "; " + ", ".join(self.latest.values) if self.latest.values else ""
        return (
            f"TrainResult({count:,} trainings, {active:,} active{failed}, step "
            f"{self.step:,}{names})"
        )


def result_of(
    space: Space,
    groups: Sequence[Lanes],
    state: State,
    started: float,
    seconds: float,
    function: str,
) -> TrainResult:
    """Return the result of the trainings so far; the curves are copies."""
    values, coords = {}, {}
    for curves in (state.records, state.evals):
        count = curves.until(state.step)
        for name, curve in curves.values.items():
            values[name] = curve[:, :count].copy()
            inner = {f"{name}.{k}": None for k in range(curve.ndim - 2)}
            coords[name] = {curves.dim: curves.steps[:count], **inner}
    known = state.trained >= state.records.steps[0]
    ok = np.ones(len(state.active), bool)
    ok[list(state.errors)] = False
    errors: dict[str, Any] = {}
    for i, text in sorted(state.errors.items()):
        errors.setdefault(text, []).append(i)

    def made(values: dict[str, Any], coords: Any, missing: Any) -> SweepResult:
        return SweepResult(
            values=values,
            space=space,
            _gaps=gaps_of(ok & ~missing, ok & missing),
            batch_size=max((len(lanes.rows) for lanes in groups), default=0),
            num_devices=len(groups[0].devices) if groups else 1,
            started=started,
            seconds=seconds,
            function=function,
            _errors={text: np.array(at, np.int64) for text, at in errors.items()},
            output_coords=coords,
        )

    return TrainResult(
        curves=made(values, coords, np.zeros_like(ok)),
        latest=made(state.latest(), {}, ~known),
        step=state.step,
        active=state.active.copy(),
        trained=state.trained.copy(),
        _columns=state.columns,
        _groups=[copy.copy(lanes) for lanes in groups],  # their carries are replaced,
    )
