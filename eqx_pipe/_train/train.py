"""`train`: many trainings at once, in intervals between which they are scheduled."""

import contextlib
import operator
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, SupportsIndex

import jax
import numpy as np
from jax.sharding import Mesh

from .._check import check_bool, check_callable, check_choice, check_int, check_is
from .._errors import SweepError, describe_value, message, type_error, value_error
from .._files import as_path
from .._jaxprs import array_text, digest
from .._keys import check_draws, check_key, fold
from .._progress import Progress
from .._spaces import Space, SpaceLike, as_space
from .._sweep import CTRL_C, ENDING, Interrupt, check_zarr, fn_name, no_mesh
from .._types import Key
from .._vmap import local_devices, warn_if_cores_idle
from .checkpoint import Checkpoints
from .identity import as_texts, code_text
from .lanes import Lanes, groups_of
from .population import Population
from .result import FAILED, RECORDED, STATUS, State, TrainResult, result_of
from .training import Training

_CALL_SECONDS = 1.0
"""The duration of a call of the program, after which signals and saves are handled."""

_GROWTH = 8
"""A call has at most this many times the steps of the one before."""

_MOST_STEPS = 2**31 - 1


def train(
    training: Training,
    space: SpaceLike,
    steps: SupportsIndex,
    *,
    every: SupportsIndex | Sequence[SupportsIndex] | None = None,
    log_every: SupportsIndex | None = None,
    key: Key | None = None,
    scheduler: Callable[[Population, Key | None], Population] | None = None,
    callback: Callable[[TrainResult], Any] | None = None,
    store: str | os.PathLike[str] | None = None,
    on_error: Literal["raise", "mark"] = "raise",
    batch_size: SupportsIndex | Literal["auto"] = "auto",
    mesh: Mesh | None = None,
    progress: bool | None = None,
) -> TrainResult:
    """Run a training at every point of a space, as lanes of one program.

    **Arguments:**

    - `training`: a `Training`: its `init`, `step` and `evaluate`.
    - `space`: as in `sweep`. The trainings of each combination of values of `Static`
      axes have a program of their own.
    - `steps`: the number of steps.
    - `every`: for a scheduler, a callback or `evaluate`: the number of steps after
      which they run, or increasing numbers of steps, such as `(10, 30, 90)`; by default
      `steps`. The last is `steps`. (Keyword only.)
    - `log_every`: for finer curves: record the metrics of each step whose number is a
      multiple of it: the values at that step, not a mean. Each end of `every` must be a
      multiple, too. By default one record for each end of `every`. (Keyword only.)
    - `key`: for a training that draws: a PRNG key; see `Training`. (Keyword only.)
    - `scheduler`: to stop bad trainings, change their points, or continue them from the
      carries of others: a pure function `scheduler(population, key)` that returns
      `population.next(...)`, such as `search.Halving` and `search.PBT`. It runs between
      intervals. (Keyword only.)
    - `callback`: to watch trainings, or end all of them early: a function of the
      `TrainResult` so far, called after each interval. If it returns a true value, the
      training ends. (Keyword only.)
    - `store`: for trainings that must survive a crash, or continue later: a folder for
      checkpoints, which are written twice a minute, less often if they take long, and
      at the end. After a kill, the same call resumes from the newest one. Only `steps`
      (larger), a longer tuple `every`, `callback` and the options below it may change.
      (Keyword only.)
    - `on_error`: if some trainings may fail: `"mark"` stops these and continues the
      others; `"raise"` ends all. (Keyword only.)
    - `batch_size`: seldom needed: the number of trainings that a device computes at
      once; by default at most 256, chosen so that batches are full. If all fit, carries
      stay on the devices. (Keyword only.)
    - `mesh`: to use only some devices, as in `sweep`. (Keyword only.)
    - `progress`: as in `sweep`. (Keyword only.)

    **Returns:** a `TrainResult`.

    **Raises:** `ValueError` for invalid arguments; `StructureError` (a `ValueError`)
    if the carry changes its structure, or if the store belongs to another training;
    `SweepError` with the indices of the trainings that failed.

    After Ctrl-C, the `.result` of the `KeyboardInterrupt` has all finished steps. With
    a store, SIGTERM and SIGHUP write a checkpoint, too.

    **Laws:** keys belong to trainings and steps: batches, devices, `every`,
    `log_every`, restarts and the other trainings change no draw. Each training equals a
    plain loop over `step`, to rounding. A resumed training ends with the bits of an
    uninterrupted one, on the same machine.

    !!! example

        >>> import eqx_pipe as ep
        >>> descent = ep.Training(
        ...     init=lambda p: 4.0,
        ...     step=lambda p, x: (x - p["rate"] * 2 * x, {"loss": x**2}),
        ... )
        >>> rates = {"rate": ep.Geomspace(1e-3, 1.0, 4)}
        >>> result = ep.train(descent, rates, 10, log_every=2)
        >>> result.curves.values["loss"].shape, result.best("loss").index
        ((4, 5), 2)
    """
    started = time.time()
    cure = "Give `eqx_pipe.Training(init, step)`."
    check_is("train", "training", training, Training, cure)
    whole = as_space("train", space)
    if not whole.size:
        raise value_error("train", "the space is empty.", "Give at least one point.")
    check_key("train", key)
    if key is not None:
        check_draws("train", "`key` is", key)
    check_choice("train", "on_error", on_error, ("raise", "mark"))
    for name, fn in (("scheduler", scheduler), ("callback", callback)):
        if fn is not None:
            check_callable("train", name, fn, f"Give a function, `{name}=...`.")
    if progress is not None:
        check_bool("train", "progress", progress)
    size = None
    if isinstance(batch_size, str):
        check_choice("train", "batch_size", batch_size, ("auto",))
    else:
        check_int("train", "batch_size", batch_size, 1)
        size = operator.index(batch_size)
    ends, records = _schedule(steps, every, log_every)
    path = None if store is None else as_path("train", store, "store")
    if path is not None:
        check_zarr("train")
    devices = local_devices("train", mesh)
    warn_if_cores_idle(devices, mesh)
    with no_mesh("train"):
        groups = groups_of(training, whole, key, devices, size)
        most = int(np.diff(np.searchsorted(records, [0, *ends], "right")).max())
        for lanes in groups:
            lanes.prepare(1 if log_every is None else most)
        _check_alike(groups)
        run = _Run(whole, groups, ends, records, log_every, key, started)
        run.scheduler, run.callback = scheduler, callback
        run.name, run.marks = fn_name(training.step), on_error == "mark"
        run.begin_state()
        if path is not None:
            settings = as_texts({"space": whole, "key": key})
            # A function that an axis applies counts by its values.
            texts = map(array_text, run.state.columns.values())
            settings["points"] = digest("".join(texts))
            settings["training"] = " ".join(lanes.text() for lanes in groups)
            identity = {
                **settings,
                "every": _plain(every),
                "log_every": _plain(log_every),
                "scheduler": "None" if scheduler is None else code_text(scheduler),
                "jax": jax.__version__,
            }
            run.checkpoints = Checkpoints(path, identity)
        return run.complete(progress)


def _plain(value: Any) -> int | list[int] | None:
    """Return an integer or several as JSON has them."""
    if value is None:
        return None
    several = isinstance(value, Iterable)
    return [*map(operator.index, value)] if several else operator.index(value)


def _schedule(steps: Any, every: Any, log_every: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps at which intervals end, and the steps with a record."""
    check_int("train", "steps", steps, 1)
    steps = operator.index(steps)
    if steps > _MOST_STEPS:
        wrong, cure = f"`steps` is {steps}.", f"Give at most {_MOST_STEPS}."
        raise value_error("train", wrong, cure)
    if isinstance(every, Iterable):
        several: list[Any] = list(every)
        for k, end in enumerate(several):
            check_int("train", f"every[{k}]", end, 1)
        ends = [operator.index(end) for end in several]
        if ends != sorted(set(ends)) or steps not in ends:
            raise value_error(
                "train",
                f"`every` is {describe_value(every)}, and `steps` is {steps}.",
                "Give increasing numbers of steps, of which `steps` is one.",
            )
        ends = ends[: ends.index(steps) + 1]
    else:
        if every is not None:
            check_int("train", "every", every, 1)
        each = steps if every is None else operator.index(every)
        if steps % each:
            near = [n for n in (steps // each * each, (steps // each + 1) * each) if n]
            raise value_error(
                "train",
                f"`steps` is {steps}, and `every` is {each}.",
                f"Give a multiple as `steps`: {' or '.join(map(str, near))}.",
            )
        ends = range(each, steps + 1, each)
    ends = np.array(ends, np.int64)
    if log_every is None:
        return ends, ends
    check_int("train", "log_every", log_every, 1)
    each = operator.index(log_every)
    odd = ends[ends % each != 0]
    if len(odd):
        raise value_error(
            "train",
            f"`log_every` is {each}, and an interval of `every` ends at step {odd[0]}.",
            f"Give a divisor of {odd[0]}.",
        )
    return ends, np.arange(each, steps + 1, each, dtype=np.int64)


def _check_alike(groups: Sequence[Lanes]) -> None:
    """Raise unless all groups have the same metrics."""
    texts = [
        {name: str(x) for name, x in {**g.metrics, **g.evaluations}.items()}
        for g in groups
    ]
    for text in texts[1:]:
        if text != texts[0]:
            raise value_error(
                "train",
                f"the metrics differ between values of the Static axes: {texts[0]} and "
                f"{text}.",
                "Return the same metrics, with the same shapes and dtypes, for all.",
            )
    taken = {STATUS, "parent", *(f"point.{name}" for name in groups[0].columns)}
    clash = sorted(taken & texts[0].keys())
    if clash:
        wrong = f"a metric is called `{clash[0]}`, as a curve that `train` records."
        raise value_error("train", wrong, "Rename it.")


class _Run:
    """The loop over intervals, and its state."""

    scheduler: Any = None
    callback: Any = None
    checkpoints: Checkpoints | None = None
    name = ""
    marks = False

    def __init__(
        self,
        space: Space,
        groups: list[Lanes],
        ends: np.ndarray,
        records: np.ndarray,
        log_every: Any,
        key: Key | None,
        started: float,
    ):
        self.space, self.groups, self.ends, self.records = space, groups, ends, records
        self.log_every = None if log_every is None else operator.index(log_every)
        self.key, self.started = key, started
        self._pace = 0
        self._group = np.zeros(space.size, np.int64)
        for g, lanes in enumerate(groups):
            self._group[lanes.rows] = g

    def begin_state(self) -> None:
        """Make the state before the first step, without carries."""
        count = self.space.size

        def empty(length: int, struct: Any) -> np.ndarray:
            return _nothing((count, length, *struct.shape), struct.dtype)

        records, ends = len(self.records), len(self.ends)
        first = self.groups[0]
        columns = {}
        for name, column in first.columns.items():
            columns[name] = np.zeros((count, *column.shape[1:]), column.dtype)
            for lanes in self.groups:
                columns[name][lanes.rows] = lanes.columns[name]
        curves = {name: empty(records, x) for name, x in first.metrics.items()}
        curves[STATUS] = np.zeros((count, records), np.int8)
        evals = {name: empty(ends, x) for name, x in first.evaluations.items()}
        if self.scheduler is not None:
            for name, column in columns.items():
                struct = jax.ShapeDtypeStruct(column.shape[1:], column.dtype)
                evals[f"point.{name}"] = empty(ends, struct)
            evals["parent"] = np.zeros((count, ends), np.int64)
        self.state = State(
            step=0,
            columns=columns,
            active=np.ones(count, bool),
            trained=np.zeros(count, np.int64),
            parents=np.arange(count),
            records=self.records,
            ends=self.ends,
            curves=curves,
            evals=evals,
            errors={},
        )

    def complete(self, progress: bool | None) -> TrainResult:
        """Run the loop, and write the last checkpoint also if it is interrupted."""
        steps = int(self.ends[-1])
        stored = self.checkpoints
        with contextlib.ExitStack() as stack:
            pointer = None
            if stored is not None:
                pointer = stack.enter_context(stored.filling(steps))
            if stored is not None and pointer is not None:
                stored.restore(pointer, self.state, self.groups)
            else:
                failed: dict[int, str] = {}
                for lanes in self.groups:
                    failed |= {int(lanes.rows[i]): t for i, t in lanes.begin().items()}
                self._fail(failed, "init")
                self._save()  # raises early if a name or the disk is not valid
            signals = ENDING if stored is not None else CTRL_C
            interrupt = stack.enter_context(Interrupt(signals))
            done, title = self.state.step, {"title": "train", "unit": "steps"}
            bar = stack.enter_context(Progress(progress, steps, done, **title))
            try:
                self._loop(interrupt, bar)
            finally:
                self._save()
            try:
                interrupt.end()
            except KeyboardInterrupt as error:
                ended: Any = error
                ended.result = self.result()
                error.add_note(
                    f"{self.state.step:,} of {steps:,} steps are finished: they are "
                    "the `.result` of this KeyboardInterrupt (`sys.last_value.result` "
                    "in a notebook)."
                )
                raise
        return self.result()

    def result(self) -> TrainResult:
        """Return the result so far."""
        seconds = time.time() - self.started
        return result_of(
            self.space, self.groups, self.state, self.started, seconds, self.name
        )

    def _loop(self, interrupt: Interrupt, bar: Progress) -> None:
        state = self.state
        for number, end in enumerate(map(int, self.ends)):
            if end <= state.step:
                continue
            begin = int(self.ends[number - 1]) if number else 0
            if self.scheduler is not None and 0 < state.step == begin:
                self._schedule()
            if not state.active.any():
                return
            if self.scheduler is not None:
                for name, column in state.columns.items():
                    state.evals[f"point.{name}"][:, number] = column
                state.evals["parent"][:, number] = state.parents
            while state.step < end:
                before = state.step
                self._advance(end, number)
                bar.done(state.step - before)
                bar.failed(len(state.errors))
                if self.checkpoints is not None and self.checkpoints.due:
                    self._save()
                if interrupt.asked or not state.active.any():
                    return
            if self.callback is not None and self.callback(self.result()):
                return

    def _save(self) -> None:
        stored = self.checkpoints
        if stored is not None and stored.saved_step != self.state.step:
            stored.save(self.state, self.groups, self.result())

    def _advance(self, end: int, number: int) -> None:
        """Train for about a second, at most until `end`."""
        state, began = self.state, time.monotonic()
        each = self.log_every or end
        target = int(self.records[np.searchsorted(self.records, state.step, "right")])
        budget = min(max(1, self._pace), end - state.step)
        count = 1
        if self.log_every is None or budget < each or state.step % each:
            length = min(budget, target - state.step)
        else:
            length = each
            count = min(budget // each, min(g.records for g in self.groups))
        after = state.step + length * count
        is_record = after == target or count > 1
        at = int(np.searchsorted(self.records, state.step, "right"))
        plan = (np.int32(state.step), np.int32(length), np.int32(count))
        failed: dict[int, str] = {}
        for lanes in self.groups:
            active = np.flatnonzero(state.active[lanes.rows])
            if not len(active):
                continue
            columns = {name: x[lanes.rows] for name, x in state.columns.items()}
            found, wrong = lanes.advance(
                active, columns, (*plan, np.bool_(after == end))
            )
            failed |= {int(lanes.rows[i]): text for i, text in wrong.items()}
            rows = np.setdiff1d(lanes.rows[active], list(failed))
            inside = np.searchsorted(lanes.rows, rows)
            if is_record:
                for name in lanes.metrics:
                    state.curves[name][rows, at : at + count] = found[name][
                        inside, :count
                    ]
                state.curves[STATUS][rows, at : at + count] = RECORDED
            if after == end:
                for name in lanes.evaluations:
                    state.evals[name][rows, number] = found[name][inside]
            state.trained[rows] = after
        self._fail(failed, "step")
        state.step = after
        seconds = time.monotonic() - began
        wanted = int(_CALL_SECONDS * length * count / max(seconds, 1e-6))
        self._pace = max(1, min(wanted, _GROWTH * max(1, self._pace)))

    def _fail(self, failed: dict[int, str], function: str) -> None:
        """Stop the trainings that failed, or raise."""
        if not failed:
            return
        if not self.marks:
            i, text = min(failed.items())
            raise SweepError(
                message(
                    "train",
                    f"`{function}` failed for {len(failed)} of {self.space.size} "
                    f"trainings after step {self.state.step}: training {i}: {text}.",
                    "Look at `space.point(i)`, or continue the others with "
                    '`on_error="mark"`.',
                ),
                sorted(failed),
            )
        state = self.state
        state.errors |= failed
        rows = sorted(failed)
        state.active[rows] = False
        later = int(np.searchsorted(self.records, state.step, "right"))
        state.curves[STATUS][rows, later:] = FAILED

    def _schedule(self) -> None:
        """Let the scheduler decide how the trainings continue."""
        state = self.state
        metrics, _ = state.latest()
        own = np.arange(len(state.active))
        metrics = {k: x for k, x in metrics.items() if not _is_decision(k, state)}
        seen = Population(
            step=state.step,
            points={name: x.copy() for name, x in state.columns.items()},
            metrics=metrics,
            active=state.active.copy(),
            parents=own,
            _groups=self._group,
        )
        key = fold(fold(self.key, "scheduler"), state.step)
        after = self.scheduler(seen, key)
        if not isinstance(after, Population):
            wrong = f"`scheduler` returned {describe_value(after)}."
            raise type_error("train", wrong, "Return `population.next(...)`.")
        for lanes in self.groups:
            source = np.searchsorted(lanes.rows, after.parents[lanes.rows])
            lanes.inherit(source)
        revived = after.active & ~state.active
        state.columns = {name: np.asarray(x) for name, x in after.points.items()}
        state.active, state.parents = after.active.copy(), after.parents
        # A training that failed continues from the carry of another.
        at = int(np.searchsorted(self.records, state.step, "right"))
        state.curves[STATUS][revived, at:] = 0
        state.errors = {i: t for i, t in state.errors.items() if not revived[i]}


def _is_decision(name: str, state: State) -> bool:
    prefix, _, axis = name.partition("point.")
    return name == "parent" or (not prefix and axis in state.columns)


def _nothing(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of NaN, or of 0 for dtypes without it."""
    is_inexact = jax.numpy.issubdtype(dtype, jax.numpy.inexact)
    return np.full(shape, np.nan if is_inexact else 0, dtype)
