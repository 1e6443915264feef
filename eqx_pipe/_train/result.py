"""`TrainResult`, the curves and carries of trainings, and what a store keeps of it."""

import contextlib
import dataclasses
import functools as ft
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool, Int, Int8

from .._check import check_distinct
from .._errors import SweepError, message, structure_error, type_error, value_error
from .._jaxprs import array_text, digest, text_of
from .._reduce import Over
from .._results import Best, Compared, SweepResult, check_output_coords, names_in
from .._run import nothing
from .._spaces import Space
from .._store import StoreLike, as_files, disk_errors, gaps_of, locked
from .._sweep import Outcome, Request, check_settings, result_of
from .._tree import struct_of
from .._types import PyTree
from .checkpoint import CURVES, KEY, Saved, newest, tidy, write
from .lanes import Carries, Columns, Lanes, point_maker, values_at
from .schedulers import Population

Steps = Int[np.ndarray, " _steps"]
Mask = Bool[np.ndarray, " trainings"]

RECORDED, FAILED = 1, 2
"""The status of a training at a recorded step; 0 after it was stopped."""

STATUS = "step_status"
"""The curve of the status."""


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
        missing = (self.status != RECORDED).all(axis=1)
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
        trained = self.trained[self.curves.ok[:]]
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


Begin: TypeAlias = TrainResult | Callable[[PyTree], PyTree] | None
"""The carries that trainings begin from: those of a result, or of a function."""


def columns_of(space: Space) -> dict[str, np.ndarray]:
    """Return the values of the axes at all points by path, without `Static` axes."""
    static = {name for name, axis in space.geometry.axes.items() if axis.is_static}
    return {
        name: x.astype(jax.dtypes.canonicalize_dtype(x.dtype))
        for name, x in space.geometry.columns().items()
        if name not in static
    }


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
        runs = [
            lanes.run(
                getattr(lanes, function), active, placed, self.columns, carries, plan
            )
            for lanes, carries in zip(self.groups, self.carries, strict=True)
        ]
        failed = {i: text for *_, texts in runs for i, text in texts.items()}
        if failed and not self.request.isolated:
            at = f" in step {self.step + 1}" if function == "step" else ""
            wrong = f"`{function}` failed for {len(failed)} of {len(self.active)} "
            cure = f"Look at `space.point({min(failed)})`, or continue the others with "
            raise _failure(f"{wrong}trainings{at}", failed, f'{cure}`on_error="mark"`.')
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
            status = np.full((len(rows), 1), RECORDED)
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


def _failure(wrong: str, failed: Mapping[int, str], cure: str) -> SweepError:
    """Return the error that names the trainings which failed, and the first text."""
    i, text = min(failed.items())
    text = message("train", f"{wrong}: training {i}: {text}.", cure)
    return SweepError(text, sorted(failed))


_KEPT = "step", "decided", "seen", "ended"
"""What else a checkpoint keeps of a `State`."""


class Checkpoints:
    """The store of a training, in a folder or bucket.

    It is created by the first checkpoint, after all checks of the call. In a bucket
    without locks, a process that finds a checkpoint of another one ends. `settings` are
    those of the training, as texts.
    """

    def __init__(self, request: Request, settings: Mapping[str, str]):
        assert request.store is not None
        self._files, self._path = request.store, request.store.path_of()
        self._request, self._settings = request, settings
        self._saved: tuple[Any, ...] | None = None
        self._curves, self._tag = "", None

    @contextlib.contextmanager
    def filling(self, state: State, ends: Steps) -> Iterator[bool]:
        """Hold the lock of the store; continue from its checkpoint, if there is one.

        `state` is that before the first step.
        """
        files = self._files
        self._newest(state, ends)
        with disk_errors(self._path, "be locked", "train"):
            files.make()
        with locked(files, None, "train") as has_locks:
            old = files.names() if has_locks else set()
            # Another process may have been faster.
            self._tag = files.tag(KEY)  # before the content
            saved = self._newest(state, ends)
            with disk_errors(self._path, "be mended", "train"):
                tidy(files, saved.entries if saved else {}, old)
                if saved and saved.key != KEY:
                    files.copy(saved.key, KEY)
                    self._tag = files.tag(KEY)
            if saved:
                self._restore(state, saved)
            yield saved is not None

    def _newest(self, state: State, ends: Steps) -> Saved | None:
        """Return the newest checkpoint; raise for that of another training."""
        saved = newest(self._files, "train", ft.partial(self._check, state, ends))
        path, steps = self._path, int(ends[-1])
        if saved is None:
            names = (name for name in self._files.names() if name[0] != ".")
            others = [name for name in names if not CURVES.fullmatch(name)]
            if others:
                wrong = f"the folder `{path}` is not a store of `train`: it "
                wrong += f"contains {min(others)!r}."
                raise structure_error("train", wrong, "Give another path.")
            return None
        done = max(saved.entries["step"], int(saved.arrays[1].max()))
        if done > steps:
            wrong = f"the store `{path}` has {done} steps, and `steps` is {steps}."
            cure = f"Give at least {done}, or read it: `TrainResult.load`."
            raise value_error("train", wrong, cure)
        return saved

    def _check(self, state: State, ends: Steps, saved: Saved) -> None:
        """Raise for the checkpoint of another training, or with other arrays."""
        entries, was = saved.entries, dict(saved.entries["settings"])
        if not entries["decided"] and entries["step"] <= ends[0]:
            was.pop("scheduler", None)  # it counts from its first decision on
        trusting = self._request.resume is not None
        check_settings("train", "training", self._path, was, self._settings, trusting)
        arrays = [(x.dtype.name, x.shape) for x in saved.arrays[3:]]
        now = [(x.dtype.name, x.shape) for x in state.columns.values()]
        for lanes in state.groups:
            size = len(lanes.rows)
            now += [(x.dtype.name, (size, *x.shape)) for x in lanes.structs]
        forms = [
            [name in x and x[name].form for name in state.metrics]
            for x in (curves_of(saved.curves), state.curves)
        ]
        if arrays != now or forms[0] != forms[1]:
            wrong = f"the store `{self._path}` has other carries, points or metrics."
            cure = "`step` and `evaluate` may change only what they compute."
            raise structure_error("train", wrong, f"{cure} Give another path.")

    def _restore(self, state: State, saved: Saved) -> None:
        entries, request, wrong = saved.entries, self._request, saved.curves.errors
        if wrong and request.resume != "failed" and not request.isolated:
            cure = 'Pass `on_error="mark"` to continue the others, or, after a fix, '
            cure += '`resume="failed"` to try them again.'
            what = f"in the store `{self._path}`, {len(wrong)} of {len(saved.curves)} "
            raise _failure(f"{what}trainings failed", wrong, cure)
        state.active, state.trained, state.parents, *rest = saved.arrays
        state.columns = {name: rest.pop(0) for name in state.columns}
        state.carries = [[rest.pop(0) for _ in x.structs] for x in state.groups]
        for name in _KEPT:
            setattr(state, name, entries[name])
        state.errors = wrong
        state.follow(curves_of(saved.curves))
        self._saved, self._curves = state.marks, entries["curves"]

    def save(self, state: State) -> None:
        """Write a checkpoint unless there is one, and then remove the oldest."""
        if self._saved == state.marks:
            return
        curves, files = state.result().curves, self._files
        entries = {
            "settings": self._settings,
            **{name: getattr(state, name) for name in _KEPT},
            "columns": [*state.columns],
            "curves": f"curves-{state.reached:09}-{files.new_id()}.zarr",
            "before": self._curves,
        }
        with disk_errors(self._path, "be filled", "train"):
            contents = state.arrays, entries, curves, self._tag
            self._tag = write(files, *contents, is_first=self._saved is None)
        self._saved, self._curves = state.marks, entries["curves"]
