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

from .._check import check_callable, check_int, check_is, is_integer
from .._errors import StructureError, describe_value, log_once, type_error, value_error
from .._keys import fold
from .._progress import Progress
from .._results import OutputCoords
from .._run import CTRL_C, ENDING, Interrupt, Pace, Watch, is_stopped, no_mesh
from .._spaces import SpaceLike
from .._store import StoreLike
from .._sweep import Resume, as_texts, cases_of, check_agree, rows_of
from .._types import Key, PyTree
from .._vmap import warn_if_cores_idle
from .lanes import FUNCTIONS, Lanes, Together, Training
from .plan import request_for
from .result import TrainResult, columns_of
from .schedulers import Population, check_scheduler
from .state import State
from .store import Checkpoints

_CALL_SECONDS = 1.0
"""The duration of a call of the program, after which signals and saves are handled."""

_MOST_STEPS = 2**31 - 1


def train(
    training: Training,
    space: SpaceLike,
    steps: SupportsIndex,
    *,
    every: SupportsIndex | Sequence[SupportsIndex] | None = None,
    log_every: SupportsIndex | None = None,
    key: Key | None = None,
    begin: TrainResult | Callable[[PyTree], PyTree] | None = None,
    scheduler: Callable[[Population, Key | None], Population] | None = None,
    callback: Callable[[TrainResult], Any] | None = None,
    output_coords: OutputCoords | None = None,
    store: StoreLike | None = None,
    resume: Resume | None = None,
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
      multiple, too. By default there is one record for each end of `every`, so without
      `every` one at the end: more would change with `steps`. (Keyword only.)
    - `key`: for a training that draws: a PRNG key; see `Training`. (Keyword only.)
    - `begin`: for a second stage, or weights trained before: a `TrainResult` of the
      same space, whose trainings continue with their numbers of steps, which `steps`
      includes, and their curves; or a function `begin(point)` that returns the carry to
      begin from, such as `result.carry(3)`. It needs the structure and the static parts
      of a carry of `init`. (Keyword only.)
    - `scheduler`: to stop bad trainings, change their points, or continue them from the
      carries of others: a pure function `scheduler(population, key)` that returns
      `population.next(...)`, such as `search.Halving` and `search.PBT`. It runs between
      intervals. (Keyword only.)
    - `callback`: to watch trainings, or end all of them early: a function of the
      `TrainResult` so far, called after each interval. If it returns a true value, the
      training ends; the same call with a store then returns the same result. A callback
      that raised, or did not run because of Ctrl-C or a kill, is called when the call
      is repeated; after a kill, also those since the last checkpoint. (Keyword only.)
    - `output_coords`: for metrics that are arrays: the names of their dims, and the
      coordinates, as in `sweep`: `{"field": {"x": grid}}`. (Keyword only.)
    - `store`: for trainings that must survive a crash, or continue later: a folder (or
      as in `sweep` a URL or a store object) for checkpoints, which are written twice a
      minute, less often if they take long, and at the end. After a kill, the same call
      resumes from the newest one, or from the one before if a file is damaged. Only
      `steps` (larger), a longer tuple `every`, `callback` and the options below it may
      change. Everything that a function reaches by name counts, and what cannot be
      understood counts as changed. What code finds by text or outside of Python, or
      changes inside of an installed numerical package, does not count. (Keyword only.)
    - `resume`: after a fix of `training`: `"failed"` accepts its functions, and tries
      failed trainings again from their last carries, up to the step of the others,
      without decisions of the scheduler on the way; `"force"` only accepts them.
      (Keyword only.)
    - `on_error`: if some trainings may fail: `"mark"` stops these before the step that
      fails and continues the others; `"raise"` ends all. (Keyword only.)
    - `batch_size`: seldom needed: the number of trainings that a device computes at
      once; by default at most 256, chosen so that batches are full. If all fit, carries
      stay on the devices. (Keyword only.)
    - `mesh`: to use only some devices, as in `sweep`. (Keyword only.)
    - `progress`: as in `sweep`. (Keyword only.)

    **Returns:** a `TrainResult`.

    **Raises:** `ValueError` for invalid arguments; `StructureError` (a `ValueError`)
    if the carry changes its structure, or if the store belongs to another training;
    `SweepError` with the indices of the trainings that failed; `OSError` if the last
    checkpoint cannot be written (others are logged).

    After Ctrl-C, the `.result` of the `KeyboardInterrupt` has all finished steps, and
    so has that of an `OSError`. With a store, SIGTERM and SIGHUP write a checkpoint,
    too.

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
    options = {"key": key, "store": store, "resume": resume, "on_error": on_error}
    options |= {"batch_size": batch_size, "mesh": mesh, "progress": progress}
    options |= {"output_coords": output_coords}
    request = request_for("train", training, space, **options)
    for name, fn in (("scheduler", scheduler), ("callback", callback)):
        if fn is not None:
            check_callable("train", name, fn, f"Give a function, `{name}=...`.")
    if scheduler is not None and every is None:
        wrong = "`scheduler` runs between intervals of `every`, which is None."
        raise value_error("train", wrong, "Give the steps of an interval as `every`.")
    start = 0
    if isinstance(begin, TrainResult):
        start = begin.step
    elif begin is not None:
        cure = "Give a `TrainResult`, or a function `begin(point)`."
        check_callable("train", "begin", begin, cure)
    ends, records, each, texts = _intervals(steps, every, log_every, start)
    goal = {x: getattr(scheduler, x, None) for x in ("by", "mode")}
    goal = {x: text for x, text in goal.items() if isinstance(text, str)}
    request = dataclasses.replace(request, goal={**goal, "steps": int(ends[-1])})
    warn_if_cores_idle(request.devices, mesh)
    with no_mesh("train"):
        columns, cases = columns_of(request.space), cases_of(request.space.geometry)
        pieces = np.diff(ends, prepend=start)
        most, between = int(pieces.max()) // each, int(np.gcd.reduce(pieces))
        groups = [
            Lanes(training, request, key, rows, columns, each, most, between)
            for rows in rows_of(request.space.geometry, cases)
        ]
        metrics = [(lanes.metrics, lanes.evaluations) for lanes in groups]
        check_agree("train", cases, metrics, "metrics")
        state = State(request, groups, columns, scheduler is not None)
        state.begin(records, ends, begin)
        check_scheduler(scheduler, state.population(), key)
        run = _Run(state, ends, key, scheduler, callback)
        if request.store is not None:
            # A function that an axis applies counts by the values of points.
            settings = {"space": request.space, "key": key, "points": columns}
            settings |= {"scheduler": scheduler}
            functions = {name: getattr(training, name) for name in FUNCTIONS}
            texts |= as_texts(settings, "train", functions)
            texts["training"] = " ".join(lanes.text() for lanes in groups)
            texts |= {"begin": state.text(), "jax": jax.__version__}
            run.checkpoints = Checkpoints(request, texts)
            if callback is not None:
                run.ending = _identity_of(callback)
        return run.complete()


def _identity_of(callback: Callable[..., Any]) -> str:
    """Return a text by which a callback that ended a training is recognised."""
    try:
        return as_texts({"callback": callback}, "train")["callback"]
    except StructureError:  # it may hold a tracker, or a file
        return getattr(callback, "__qualname__", type(callback).__qualname__)


_Intervals = tuple[np.ndarray, np.ndarray, int, dict[str, str]]


def _intervals(steps: Any, every: Any, log_every: Any, start: int) -> _Intervals:
    """Return the ends of intervals, the steps with a record, each the last of how many.

    They come after the step `start`. Then follow the settings, as texts by which a
    store recognises them.
    """
    check_int("train", "steps", steps, 1)
    steps, several = operator.index(steps), isinstance(every, Iterable)
    several = several and not is_integer(every)
    every_end: list[Any] = [*every] if several else [steps if every is None else every]
    for k, end in enumerate(every_end):
        check_int("train", f"every[{k}]" if several else "every", end, 1)
    ends: Sequence[int] = [*map(operator.index, every_end)]
    texts = {"every": "several" if several else str(every), "log_every": str(log_every)}
    if several:
        # A setting for each, since a longer tuple continues a shorter one.
        texts |= {f"every[{k}]": str(end) for k, end in enumerate(ends)}
    else:
        ends = range(ends[0], steps + ends[0], ends[0])
    if steps not in ends or steps > _MOST_STEPS or list(ends) != sorted({*ends}):
        wrong = f"`steps` is {steps}, and `every` is {every}."
        cure = "Give `steps` at the end of an interval, and increasing ends, at most "
        raise value_error("train", wrong, f"{cure}{_MOST_STEPS}.")
    if steps <= start:
        wrong = f"`steps` is {steps}, and `begin` has {start} steps."
        raise value_error("train", wrong, "Give more: `steps` includes these.")
    until = np.array(ends[: ends.index(steps) + 1], np.int64)
    until = until[until > start]
    if log_every is None:
        return until, until, _MOST_STEPS, texts
    check_int("train", "log_every", log_every, 1)
    each = operator.index(log_every)
    odd = until[until % each != 0]
    if len(odd):
        wrong = f"`log_every` is {each}, and an interval of `every` ends at step "
        raise value_error("train", f"{wrong}{odd[0]}.", f"Give a divisor of {odd[0]}.")
    return until, np.arange((start // each + 1) * each, steps + 1, each), each, texts


@dataclasses.dataclass
class _Run:
    """The loop over intervals.

    `ending` is the identity of the callback. A training is known to fail until the step
    `fails`.
    """

    state: State
    ends: np.ndarray
    key: Key | None
    scheduler: Callable[..., Any] | None
    callback: Callable[..., Any] | None
    ending: str = "ended"
    checkpoints: Checkpoints | None = None
    fails: int = 0
    pace: Pace = dataclasses.field(default_factory=Pace)

    def complete(self) -> TrainResult:
        """Run the loop, and write the last checkpoint also if it is interrupted."""
        state, stored, steps = self.state, self.checkpoints, int(self.ends[-1])
        with contextlib.ExitStack() as stack:
            if not (stored and stack.enter_context(stored.filling(state, self.ends))):
                self._begin(state.active)
                self._save()  # raises early if a name or the disk is not valid
            elif state.request.resume == "failed":
                state.retry()
                self._begin(state.active & (state.trained == 0))
            signals = ENDING if stored else CTRL_C
            interrupt = stack.enter_context(Interrupt(signals))
            bar = Progress(state.request.progress, steps, state.step, "train", "steps")
            bar = stack.enter_context(bar)
            watch = Watch(bar, lambda: interrupt.asked, hands_over=stored is not None)
            try:
                try:
                    self._loop(watch)
                except Exception as error:
                    # Of this loop, or of a callback, which is called again.
                    if not (interrupt.asked and is_stopped(error)):
                        raise
                finally:
                    self._save()
                interrupt.end()
            except (KeyboardInterrupt, OSError) as error:
                error.result = state.result()  # pyright: ignore
                text = f"{state.step:,} of {steps:,} steps are finished: they are the "
                text += "`.result` of this exception (`sys.last_value.result`)."
                error.add_note(text)
                raise
        return state.result()

    def _loop(self, watch: Watch) -> None:
        state = self.state
        if state.ended not in ("", self.ending):  # another callback, or none, goes on
            state.ended, state.seen = "", min(state.seen, state.step - 1)
        watch.begin()
        while not watch.stopping():
            # In a retry, the callback has seen the steps before.
            at_end = state.step in self.ends and state.step >= state.reached
            if at_end and self.callback is not None and state.seen < state.step:
                ends = _is_true(self.callback(state.result()))
                state.ended, state.seen = self.ending if ends else "", state.step
            goal = state.reached if state.ended else self.ends[-1]
            if state.step >= goal or not state.active.any():
                break
            if at_end and self.scheduler is not None and state.decided < state.step:
                self._schedule()
                continue
            before, failed = state.step, len(state.errors)
            self._advance()
            if watch.after(state.step - before, len(state.errors) - failed):
                with watch.saving():
                    self._save(must=False)

    def _begin(self, active: np.ndarray) -> None:
        """Make the first carries of some trainings, unless they are given."""
        state = self.state
        if state.begun:
            return
        state.run("init", active, active, ())
        state.is_whole = True

    def _save(self, must: bool = True) -> None:
        """Write a checkpoint; log an error, unless it `must` be written."""
        try:
            if self.checkpoints is not None and self.state.is_whole:
                self.checkpoints.save(self.state)
        except OSError as error:
            if must or isinstance(error.__cause__, FileNotFoundError):  # deleted
                raise
            log_once(f"{error}", "%s A kill would lose the steps since.", error)

    def _advance(self) -> None:
        """Train for about a second, at most to the end of the interval."""
        state, began = self.state, time.monotonic()
        at = np.searchsorted(self.ends, state.step, "right")
        start, end = (int(self.ends[at - 1]) if at else 0), int(self.ends[at])
        last = min(lanes.last(state.step) for lanes in state.groups)
        ahead = state.trained[state.active & ~state.going].tolist()  # in a retry
        after = min(end, last, state.step + self.pace.steps, *ahead)
        if self.fails > state.step:
            after = min(after, state.step + max(1, (self.fails - state.step) // 2))
        plan = np.int32(state.step), np.int32(after), np.bool_(after == end)
        try:
            runs = state.run("step", state.going, state.since(start), plan)
        except Together:  # take fewer steps, until the next one is that which fails
            self.fails = after
            return
        self.pace.record(after - state.step, time.monotonic() - began, _CALL_SECONDS)
        state.record(after, runs)

    def _schedule(self) -> None:
        """Let the scheduler decide how the trainings continue."""
        state, population = self.state, self.state.population()
        assert self.scheduler is not None
        key = fold(fold(self.key, "scheduler"), state.step)
        after = self.scheduler(population, key)
        cure = "Return `population.next(...)`."
        check_is("train", "scheduler(population, key)", after, Population, cure)
        state.is_whole = False
        pairs = zip(state.groups, state.carries, strict=True)
        state.columns = {name: np.asarray(x) for name, x in after.points.items()}
        state.carries = [
            lanes.inherited(after.parents, carries, state.columns, after._renewed)
            for lanes, carries in pairs
        ]
        # A training that failed may continue from the carry of another.
        state.errors = {i: t for i, t in state.errors.items() if not after.active[i]}
        state.active, state.parents = after.active.copy(), after.parents
        state.decided, state.is_whole = state.step, True


def _is_true(answer: object) -> bool:
    """Return what a callback answers; raise for an array that is not one value."""
    if np.ndim(answer):
        wrong = f"`callback` returned {describe_value(answer)}."
        raise type_error("train", wrong, "Return True to end the training, or None.")
    return bool(answer)
