"""`train`: many trainings at once, in intervals between which they are scheduled."""

import contextlib
import dataclasses
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, SupportsIndex

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from .._check import check_bool, check_callable, check_choice, check_int, check_is
from .._errors import (
    MissingKeyError,
    SweepError,
    describe_value,
    message,
    type_error,
    value_error,
)
from .._jaxprs import array_text, digest
from .._keys import check_draws, check_key, fold, key_argument
from .._progress import Progress
from .._spaces import Space, SpaceLike, as_space
from .._sweep import (
    CTRL_C,
    ENDING,
    Interrupt,
    StoreLike,
    as_files,
    cases_of,
    check_agree,
    check_zarr,
    fn_name,
    no_mesh,
    rows_of,
)
from .._tree import struct_of
from .._types import Key
from .._vmap import local_devices, warn_if_cores_idle
from .checkpoint import Checkpoints
from .identity import as_texts, code_text
from .lanes import Lanes
from .population import Population
from .result import (
    FAILED,
    RECORDED,
    STATUS,
    Curves,
    State,
    TrainResult,
    result_of,
)
from .training import Training

_CALL_SECONDS = 1.0
"""The duration of a call of the program, after which signals and saves are handled."""

_GROWTH = 8
"""A call has at most this many times the steps of the one before."""

_MOST_STEPS = 2**31 - 1

Steps = Int[np.ndarray, " _steps"]


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
    store: StoreLike | None = None,
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
    - `store`: for trainings that must survive a crash, or continue later: a folder (or
      as in `sweep` a URL or a store object) for checkpoints, which are written twice a
      minute, less often if they take long, and at the end. After a kill, the same call
      resumes from the newest one. Only `steps` (larger), a longer tuple `every`,
      `callback` and the options below it may change. (Keyword only.)
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
    cure = "Give `eqx_pipe.Training(init, step)`."
    check_is("train", "training", training, Training, cure)
    whole = as_space("train", space)
    if not whole.size:
        raise value_error("train", "the space is empty.", "Give at least one point.")
    check_key("train", key)
    if key is not None:
        check_draws("train", "`key` is", key)
    for name in ("init", "step", "evaluate") if key is None else ():
        if key_argument(getattr(training, name), None):
            wrong = f"`{name}` needs a PRNG key and got `key=None`."
            cure = "Call `eqx_pipe.train(..., key=jax.random.key(0))`: each training "
            text = message("train", wrong, f"{cure}gets a key of its own.")
            raise MissingKeyError(name, text)
    check_choice("train", "on_error", on_error, ("raise", "mark"))
    for name, fn in (("scheduler", scheduler), ("callback", callback)):
        if fn is not None:
            check_callable("train", name, fn, f"Give a function, `{name}=...`.")
    if scheduler is not None and every is None:
        wrong = "`scheduler` runs between intervals of `every`, which is None."
        raise value_error("train", wrong, "Give the steps of an interval as `every`.")
    if progress is not None:
        check_bool("train", "progress", progress)
    size = None
    if isinstance(batch_size, str):
        check_choice("train", "batch_size", batch_size, ("auto",))
    else:
        check_int("train", "batch_size", batch_size, 1)
        size = operator.index(batch_size)
    ends, records = _schedule(steps, every, log_every)
    files = None if store is None else as_files("train", store)
    if files is not None:
        check_zarr("train")
    devices = local_devices("train", mesh)
    warn_if_cores_idle(devices, mesh)
    most = 1 if log_every is None else int(np.diff(ends, prepend=0).max()) // records[0]
    with no_mesh("train"):
        cases, groups = cases_of(whole.geometry), []
        for rows in rows_of(whole.geometry, cases):
            given = rows, devices, size, int(most)
            groups.append(Lanes(training, whole, key, *given))
        _check_metrics(cases, groups)
        run = _Run(
            whole,
            groups,
            _begin(whole.size, groups, ends, records, scheduler is not None),
            None if log_every is None else operator.index(log_every),
            key,
            scheduler,
            callback,
            on_error == "mark",
            fn_name(training.step),
        )
        if files is not None:
            identity = as_texts({"space": whole, "key": key})
            # A function that an axis applies counts by its values.
            texts = map(array_text, run.state.columns.values())
            run.checkpoints = Checkpoints(
                files,
                {
                    **identity,
                    "points": digest("".join(texts)),
                    "training": " ".join(lanes.text() for lanes in groups),
                    "every": _plain(every),
                    "log_every": run.log_every,
                    "scheduler": "None" if scheduler is None else code_text(scheduler),
                    "jax": jax.__version__,
                },
            )
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


def _check_metrics(cases: Sequence[Any], groups: Sequence[Lanes]) -> None:
    """Raise unless all groups have the same metrics, with names of their own."""
    metrics = [{**lanes.metrics, **lanes.evaluations} for lanes in groups]
    check_agree("train", cases, metrics, "metrics")
    taken = {STATUS, "parent", *(f"point.{name}" for name in groups[0].columns)}
    clash = sorted(taken & metrics[0].keys())
    if clash:
        wrong = f"a metric is called `{clash[0]}`, as a curve that `train` records."
        raise value_error("train", wrong, "Rename it.")


def _begin(
    size: int, groups: Sequence[Lanes], ends: Steps, records: Steps, decides: bool
) -> State:
    """Return the state before the first step."""

    def empty(length: int, struct: Any) -> np.ndarray:
        is_inexact = jax.numpy.issubdtype(struct.dtype, jax.numpy.inexact)
        shape = size, length, *struct.shape
        return np.full(shape, np.nan if is_inexact else 0, struct.dtype)

    first, columns = groups[0], {}
    for name, column in first.columns.items():
        columns[name] = np.zeros((size, *column.shape[1:]), column.dtype)
        for lanes in groups:
            columns[name][lanes.rows] = lanes.columns[name]
    curves = {name: empty(len(records), x) for name, x in first.metrics.items()}
    curves[STATUS] = np.zeros((size, len(records)), np.int8)
    evals = {name: empty(len(ends), x) for name, x in first.evaluations.items()}
    if decides:
        for name, column in columns.items():
            evals[f"point.{name}"] = empty(len(ends), struct_of(column, drop=1))
        evals["parent"] = np.zeros((size, len(ends)), np.int64)
    return State(
        step=0,
        columns=columns,
        active=np.ones(size, bool),
        trained=np.zeros(size, np.int64),
        parents=np.arange(size),
        records=Curves("step", records, curves),
        evals=Curves("eval_step", ends, evals),
        errors={},
    )


@dataclasses.dataclass
class _Run:
    """The loop over intervals, and its state."""

    space: Space
    groups: list[Lanes]
    state: State
    log_every: int | None
    key: Key | None
    scheduler: Callable[..., Any] | None
    callback: Callable[..., Any] | None
    marks: bool
    name: str
    checkpoints: Checkpoints | None = None
    started: float = dataclasses.field(default_factory=time.time)
    pace: int = 1
    """The steps of the next call."""

    def complete(self, progress: bool | None) -> TrainResult:
        """Run the loop, and write the last checkpoint also if it is interrupted."""
        state, stored = self.state, self.checkpoints
        steps = int(state.evals.steps[-1])
        with contextlib.ExitStack() as stack:
            pointer = None
            if stored is not None:
                pointer = stack.enter_context(stored.filling(steps))
            if stored is not None and pointer is not None:
                stored.restore(pointer, state, self.groups)
            else:
                failed: dict[int, str] = {}
                for lanes in self.groups:
                    failed |= {int(lanes.rows[i]): t for i, t in lanes.begin().items()}
                self._fail(failed, "init")
                self._save()  # raises early if a name or the disk is not valid
            signals = ENDING if stored is not None else CTRL_C
            interrupt = stack.enter_context(Interrupt(signals))
            title = {"title": "train", "unit": "steps"}
            bar = stack.enter_context(Progress(progress, steps, state.step, **title))
            try:
                self._loop(interrupt, bar)
            finally:
                self._save()
            try:
                interrupt.end()
            except KeyboardInterrupt as error:
                error.result = self.result()  # pyright: ignore
                error.add_note(
                    f"{state.step:,} of {steps:,} steps are finished: they are the "
                    "`.result` of this KeyboardInterrupt (`sys.last_value.result` in a "
                    "notebook)."
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
        state, evals = self.state, self.state.evals
        while state.step < evals.steps[-1] and state.active.any():
            number = evals.until(state.step)
            if state.step == (evals.steps[number - 1] if number else 0):
                if self.scheduler is not None and state.step:
                    self._schedule(self.scheduler)
                    if not state.active.any():
                        return
                if self.scheduler is not None:
                    for name, column in state.columns.items():
                        evals.values[f"point.{name}"][:, number] = column
                    evals.values["parent"][:, number] = state.parents
            bar.done(self._advance(number))
            bar.failed(len(state.errors))
            if self.checkpoints is not None and self.checkpoints.due:
                self._save()
            if interrupt.asked:
                return
            if self.callback is not None and state.step == evals.steps[number]:
                if self.callback(self.result()):
                    return

    def _save(self) -> None:
        stored = self.checkpoints
        if stored is not None and stored.saved_step != self.state.step:
            stored.save(self.state, self.groups, self.result())

    def _advance(self, number: int) -> int:
        """Train for about a second, at most to the end of the interval `number`.

        Returns the number of steps.
        """
        state, began = self.state, time.monotonic()
        records, evals = state.records, state.evals
        end, at = int(evals.steps[number]), records.until(state.step)
        left = int(records.steps[at]) - state.step
        budget = min(self.pace, end - state.step)
        length, count = min(budget, left), 1
        if length == self.log_every:
            count = min(budget // length, *(lanes.records for lanes in self.groups))
        after = state.step + length * count
        plan = np.int32(state.step), np.int32(length), np.int32(count)
        done: list[Any] = []
        failed: dict[int, str] = {}
        for lanes in self.groups:
            active = np.flatnonzero(state.active[lanes.rows])
            if len(active):
                columns = {name: x[lanes.rows] for name, x in state.columns.items()}
                flag = np.bool_(after == end)
                *new, wrong = lanes.advance(active, columns, (*plan, flag))
                done.append((lanes, np.setdiff1d(active, list(wrong)), *new))
                failed |= {int(lanes.rows[i]): text for i, text in wrong.items()}
        # Until here nothing has changed, so that an error leaves the state whole.
        self._fail(failed, "step")
        for lanes, inside, carries, found in done:
            lanes.carries, rows = carries, lanes.rows[inside]
            if length == left:
                for name in lanes.metrics:
                    kept = found[name][inside, :count]
                    records.values[name][rows, at : at + count] = kept
                records.values[STATUS][rows, at : at + count] = RECORDED
            if after == end:
                for name in lanes.evaluations:
                    evals.values[name][rows, number] = found[name][inside]
            state.trained[rows] = after
        state.step = after
        seconds = max(time.monotonic() - began, 1e-6)
        wanted = int(_CALL_SECONDS * length * count / seconds)
        self.pace = max(1, min(wanted, _GROWTH * self.pace))
        return length * count

    def _fail(self, failed: dict[int, str], function: str) -> None:
        """Stop the trainings that failed, or raise."""
        if not failed:
            return
        state = self.state
        if not self.marks:
            i, text = min(failed.items())
            raise SweepError(
                message(
                    "train",
                    f"`{function}` failed for {len(failed)} of {self.space.size} "
                    f"trainings after step {state.step}: training {i}: {text}.",
                    "Look at `space.point(i)`, or continue the others with "
                    '`on_error="mark"`.',
                ),
                sorted(failed),
            )
        state.errors |= failed
        rows = sorted(failed)
        state.active[rows] = False
        later = state.records.until(state.step)
        state.records.values[STATUS][rows, later:] = FAILED

    def _schedule(self, scheduler: Callable[..., Any]) -> None:
        """Let the scheduler decide how the trainings continue."""
        state, groups = self.state, np.zeros(self.space.size, np.int64)
        for g, lanes in enumerate(self.groups):
            groups[lanes.rows] = g
        names = *self.groups[0].metrics, *self.groups[0].evaluations
        metrics = state.latest()
        population = Population(
            step=state.step,
            points={name: x.copy() for name, x in state.columns.items()},
            metrics={name: metrics[name] for name in names},
            active=state.active.copy(),
            parents=np.arange(self.space.size),
            _groups=groups,
        )
        key = fold(fold(self.key, "scheduler"), state.step)
        after = scheduler(population, key)
        if not isinstance(after, Population):
            wrong = f"`scheduler` returned {describe_value(after)}."
            raise type_error("train", wrong, "Return `population.next(...)`.")
        for lanes in self.groups:
            lanes.inherit(np.searchsorted(lanes.rows, after.parents[lanes.rows]))
        revived = after.active & ~state.active
        state.columns = {name: np.asarray(x) for name, x in after.points.items()}
        state.active, state.parents = after.active.copy(), after.parents
        # A training that failed continues from the carry of another.
        at = state.records.until(state.step)
        state.records.values[STATUS][revived, at:] = 0
        state.errors = {i: t for i, t in state.errors.items() if not revived[i]}
