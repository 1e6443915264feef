"""All that changes while trainings run: carries, points, curves and errors."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool

from .._check import check_distinct
from .._errors import SweepError, message, value_error
from .._jaxprs import array_text, digest, text_of
from .._results import check_output_coords, names_in
from .._run import nothing
from .._store import FAILED, OK, gaps_of
from .._sweep import Outcome, Request, result_of
from .._tree import struct_of
from .._types import PyTree
from .lanes import Carries, Columns, Lanes, values_at
from .result import STATUS, Curve, Steps, TrainResult, curves_of
from .schedulers import Population

Mask = Bool[np.ndarray, " trainings"]

Begin: TypeAlias = TrainResult | Callable[[PyTree], PyTree] | None
"""The carries that trainings begin from: those of a result, or of a function."""


class State:
    """All trainings after `step` steps.

    `columns` are the values of axes as trained last, and `parents` the indices of the
    trainings from whose carries the current interval began, as the scheduler decided
    after `decided` steps. The callback has seen the result after `seen` steps, and if
    it ended the trainings, `ended` is its identity. `carries` has those of each group.
    `errors` has the error of each training that failed, after its `trained` steps.
    While it is changed it is not whole, and a second Ctrl-C must not save it.
    """

    def __init__(
        self, request: Request, groups: list[Lanes], columns: Columns, decides: bool
    ):
        size, self.request, self.groups = request.space.size, request, groups
        self.step, self.decided, self.seen, self.ended = 0, 0, 0, ""
        self.started, self.is_whole = time.time(), True
        self.active, self.trained = np.ones(size, bool), np.zeros(size, np.int64)
        self.columns, self.parents, self._decides = columns, np.arange(size), decides
        self.carries: list[Carries] = [[] for _ in groups]
        self.errors, self.curves = dict[int, str](), dict[str, Curve]()

    def begin(self, records: Steps, ends: Steps, begin: Begin) -> None:
        """Make the curves, for the steps with a record and the ends of intervals.

        Those that a result to `begin` from has are continued.
        """
        old, coords = self._warm(begin), self.request.output_coords
        first, decisions = self.groups[0], self.decisions()
        logged = {**first.metrics, STATUS: jax.ShapeDtypeStruct((), np.int8)}
        evaluated = {**first.evaluations}
        check_distinct("train", "curves", [*logged, *evaluated, *decisions])
        self._decides |= "parent" in old
        if self._decides:
            evaluated |= {name: struct_of(x, drop=1) for name, x in decisions.items()}
        taken, dims = names_in(self.request.space), {"step", "eval_step"}
        for name in sorted(dims & taken):
            wrong = f"the space has the name {name!r}, which is a dim of the curves."
            raise value_error("train", wrong, "Rename the axis or dim.")
        shapes = {name: x.shape for name, x in {**logged, **evaluated}.items()}
        check_output_coords(coords, shapes, taken | dims, "train")
        past = {x.dim: x.steps for x in old.values()}
        kinds = ("step", records, logged), ("eval_step", ends, evaluated)
        for dim, new_steps, structs in kinds:
            steps = np.concatenate([past.get(dim, new_steps[:0]), new_steps])
            for name, x in structs.items():
                shape = len(self.active), len(steps), *x.shape
                inner = {f"{name}.{k}": None for k in range(len(x.shape))}
                inner = coords.get(name, old[name].inner if name in old else inner)
                values = np.full(shape, nothing(x.dtype), x.dtype)
                self.curves[name] = Curve(dim, steps, values, inner)
                if name in old and old[name].form != self.curves[name].form:
                    wrong = f"`{name}` of `begin` has another shape, dtype or dim."
                    raise value_error("train", wrong, "Rename the metric.")
        self.follow(old)

    def follow(self, earlier: Mapping[str, Curve]) -> None:
        """Fill the curves until now with those of a result or a store."""
        made = self.decisions()
        for name, new in self.curves.items():
            if name in earlier:
                # With larger `steps`, the end of the earlier call may be no record.
                old = earlier[name]
                pairs = np.intersect1d(old.steps, new.steps, return_indices=True)
                new.values[:, pairs[2]] = old.values[:, pairs[1]]
            elif name in made:  # until now nothing was decided
                new.values[:, : new.until(self.step)] = made[name][:, None]

    def _warm(self, begin: Begin) -> Mapping[str, Curve]:
        """Begin from the carries that are given, and return the curves until there."""
        self.begun = begin is not None
        if not isinstance(begin, TrainResult):
            if begin is not None:
                self.carries = [x.begun(begin, self.columns) for x in self.groups]
            return {}
        begin.carry(0)  # raises if it was loaded
        if text_of(begin.space) != text_of(self.request.space):
            cure = "Give that space, or a function: `lambda point: result.carry(3)`."
            raise value_error("train", "`begin` is a result of another space.", cure)
        pairs = zip(self.groups, begin._groups, strict=True)
        for lanes, (_, carries) in pairs:
            origin, *made = map(np.asarray, carries[: 1 + len(self.columns)])
            first = values_at(dict(zip(self.columns, made, strict=True)), 0)
            lanes.fitting(begin.carry(int(lanes.rows[0])), origin[0], first)
        self.carries = [carries for _, carries in begin._groups]
        self.step, self.columns = begin.step, begin._columns
        self.active, self.trained = begin.active.copy(), begin.trained.copy()
        self.errors = dict(begin.errors)
        return curves_of(begin.curves)

    def population(self) -> Population:
        """Return the trainings as a scheduler sees them."""
        indices = np.arange(len(self.active))
        rows = [np.isin(indices, lanes.rows) for lanes in self.groups]
        return Population(
            self.step,
            points={name: x.copy() for name, x in self.columns.items()},
            metrics={k: self.curves[k].newest(self.trained) for k in self.metrics},
            active=self.active.copy(),
            parents=indices,
            _groups=np.argmax(rows, axis=0),
            _read=frozenset[str]().union(*(lanes.read for lanes in self.groups)),
        )

    def text(self) -> str:
        """Return what identifies the carries that `begin` gave."""
        if not self.begun:
            return "None"
        text = digest("\n".join(map(array_text, self.arrays)))
        return f"carries at step {self.step} #{text[:8]}"

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arrays of a checkpoint."""
        arrays = [self.active, self.trained, self.parents, *self.columns.values()]
        for lanes, carries in zip(self.groups, self.carries, strict=True):
            arrays += [np.asarray(x)[: len(lanes.rows)] for x in carries]
        return arrays

    @property
    def reached(self) -> int:
        """The last step of any training; `step` is less if failed ones are retried."""
        return max(self.step, int(self.trained.max()))

    @property
    def marks(self) -> tuple[Any, ...]:
        """The progress, by which a checkpoint is recognised."""
        failed = len(self.errors), int(self.trained.sum())
        return self.step, self.seen, self.ended, *failed

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics of `step` and `evaluate`."""
        return [*self.groups[0].metrics, *self.groups[0].evaluations]

    @property
    def going(self) -> Mask:
        """True for each training that makes the next step."""
        return self.active & (self.trained <= self.step)

    def since(self, start: int) -> Mask:
        """Return the trainings that are going, or failed after the step `start`."""
        placed = self.going
        for i in self.errors:
            placed[i] = start <= self.trained[i] <= self.step
        return placed

    def retry(self) -> None:
        """Let the trainings that failed go on; the others wait for them."""
        failed = [*self.errors]
        self.active[failed], self.errors = True, {}
        self.step = min([self.step, *self.trained[failed].tolist()])

    def decisions(self) -> dict[str, np.ndarray]:
        """Return the values of the curves that record what a scheduler decided."""
        points = {f"point.{name}": x for name, x in self.columns.items()}
        return {**points, "parent": self.parents}

    def run(
        self, function: str, active: Mask, placed: Mask, plan: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """Run `init` or `step` of all groups, as `Lanes.run` does.

        Stops the trainings that failed, or raises, and then nothing has changed.
        """
        runs, fixed = [], (active, placed, self.columns)
        for lanes, carries in zip(self.groups, self.carries, strict=True):
            runs.append(lanes.run(getattr(lanes, function), *fixed, carries, plan))
        failed = {i: text for *_, texts in runs for i, text in texts.items()}
        if failed and not self.request.isolated:
            at = f" in step {self.step + 1}" if function == "step" else ""
            wrong = f"`{function}` failed for {len(failed)} of {len(self.active)} "
            cure = f"Look at `space.point({min(failed)})`, or continue the others with "
            raise failure(f"{wrong}trainings{at}", failed, f'{cure}`on_error="mark"`.')
        self.is_whole = False
        self.errors |= failed
        self.active[[*failed]] = False
        self.carries = [carries for carries, *_ in runs]
        return runs

    def record(self, after: int, runs: Iterable[tuple[Any, ...]]) -> None:
        """Record the metrics of trainings until the step `after`."""
        decides = self._decides and after > self.reached
        for _, rows, outputs, _ in runs:
            self.trained[rows] = after
            status = np.full((len(rows), 1), OK)
            for name, values in {**outputs, STATUS: status}.items():
                self._write(name, after, rows, values)
        failed, every = [*self.errors], np.arange(len(self.active))
        self._write(STATUS, after, failed, np.full((len(failed), 1), FAILED))
        for name, values in self.decisions().items() if decides else ():
            self._write(name, after, every, values[:, None])
        self.step, self.is_whole = after, True

    def _write(self, name: str, after: int, rows: Any, values: np.ndarray) -> None:
        """Write the entries of a curve until the step `after`, if there are any."""
        curve = self.curves[name]
        first, last = curve.until(self.step), curve.until(after)
        curve.values[rows, first:last] = values[:, : last - first]

    def result(self) -> TrainResult:
        """Return the result so far; the curves are copies."""
        values, coords = {}, {}
        for name, curve in self.curves.items():
            count = curve.until(self.reached)
            values[name] = curve.values[:, :count].copy()
            coords[name] = {curve.dim: curve.steps[:count], **curve.inner}
        ok, errors = np.ones(len(self.active), bool), dict[str, list[int]]()
        for i, text in self.errors.items():
            ok[i] = False
            errors.setdefault(text, []).append(i)
        indices = {text: np.array(rows) for text, rows in errors.items()}
        curves = result_of(
            dataclasses.replace(self.request, output_coords=coords),
            Outcome(values, gaps_of(ok), errors=indices),
            batch_size=max(len(lanes.rows) for lanes in self.groups),
            num_devices=len(self.request.devices),
            attrs={"metric": self.metrics[0]} if len(self.metrics) == 1 else {},
            started=self.started,
        )
        now = self.reached, self.active.copy(), self.trained.copy(), self.columns
        groups = [*zip(self.groups, self.carries, strict=True)]
        return TrainResult(curves, *now, groups)


def failure(wrong: str, failed: Mapping[int, str], cure: str) -> SweepError:
    """Return the error that names the trainings which failed, and the first text."""
    i, text = min(failed.items())
    text = message("train", f"{wrong}: training {i}: {text}.", cure)
    return SweepError(text, sorted(failed))
