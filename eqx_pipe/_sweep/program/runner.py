"""The host's part of a running sweep: programs, their arguments, calls and failures."""

import contextlib
import itertools as it
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Int64

from ..._cache import LRUCache
from ..._errors import log_once, message
from ..._jaxprs import Fingerprint, Split
from ..._kernel import STOPPED, has_kernels, watched
from ..._run import (
    Pace,
    Stopped,
    TooLarge,
    as_nonfinite,
    check_finite,
    clock,
    compiled,
    noting,
    save_pause,
    search,
)
from ..trace.trace import Traced, abstract
from .in_steps import BATCH, BUDGET, batched_in, build_split, state_of
from .layout import COUNT, Given, LaneOf, Layout, Partition, Place, build, each_its_rows
from .select import ByOffset, ByTable

Points: TypeAlias = ByOffset | ByTable

# XLA splits a step of a program over its threads if it estimates that the step is long,
# even if every core has its own device. The devices then wait for each other's threads:
# loops of short steps took up to 1.7 times as long.
_UNSPLIT: dict[str, Any] = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}

_controls = LRUCache(256)


_LONG_STEP = 60.0
"""Seconds that a step of a loop may take until a hint is logged."""


class Programs:
    """The compiled programs of some points, and the batch sizes that did not fit.

    This is the only part of a plan that changes while it runs. Copies of the points
    share it, so none of them compiles a program or tries a size again.
    """

    def __init__(self) -> None:
        self.too_large: list[int] = []
        self._most: int | None = None
        self._runners: dict[Hashable, Runner] = {}
        self._lock = threading.Lock()  # threads of an executor share a sweep

    def fitting(self, batch_size: int) -> int:
        """Return `batch_size`, or the largest size that may fit."""
        return batch_size if self._most is None else min(batch_size, self._most)

    def note(self, too_large: int, then: int) -> None:
        """Record that a size did not fit, and the size to continue with."""
        with self._lock:
            if self.fitting(too_large) == too_large:
                self.too_large.append(too_large)
                self._most = then

    def runner(self, key: Hashable, make: "Callable[[], Runner]") -> "Runner":
        """Return the program of a key, which `make` compiles the first time."""
        with self._lock:
            runner = self._runners.get(key)
            if runner is None:
                runner = self._runners[key] = make()
            return runner


class Runner:
    """A compiled program, which is called for rows: points of a case, or blocks.

    It is made from `programs` by `lane_of`. If not `finite`, its `outputs` may begin
    with inf.
    """

    def __init__(
        self,
        traced: Traced,
        programs: Sequence[Fingerprint],
        lane_of: LaneOf,
        outputs: Sequence[jax.ShapeDtypeStruct],
        layout: Layout,
        points: Points,
        given: Given,
        finite: bool = True,
        split: Split | None = None,
        probe: bool = False,
    ):
        """Compile the program unless it is cached; `points` are examples of points.

        If it is `split`, a call may stop inside of a batch. A `probe` is not run.
        """
        self.layout, self.finite, self.name = layout, finite, traced.name
        self.split, self.pace = split, Pace()
        # A signal stops a kernel, and with it all batches of a call.
        self.may_stop = has_kernels(traced.jaxpr)

        def lower() -> jax.stages.Lowered:
            selected = points.kernel_args(0, 1, layout)
            # Not NumPy arrays: with several processes JAX does not lower a program for
            # NumPy arrays that are split over devices, even if all devices belong to
            # this process.
            structs = jtu.tree_map(abstract, (*selected, given))
            if split is None:
                return build(lane_of, outputs, layout).lower(*structs)
            control, table, own = structs
            batched = batched_in(split, layout, own)
            kernel = build_split(split, outputs, layout, batched)
            state = state_of(split, layout, batched)
            place, sources = map(abstract, _fresh(layout))
            return kernel.lower(control, table, place, sources, state, own)

        options = _UNSPLIT if layout.unsplit else None
        place: Any = layout
        if split is not None:
            place = layout, split.at, *(loop.unit for loop in split.loops)
        if probe and layout.devices[0].platform in ("cuda", "gpu"):
            options, place = {"xla_gpu_autotune_level": 0}, (place, "probe")
        with noting(layout.points_at_once):
            self.kernel = compiled(programs, place, lower, options)

    def compute(
        self,
        given: Given,
        points: Points,
        values: list[np.ndarray],
        first: int,
        count: int,
    ) -> Exception | None:
        """Compute some points in one call; return the error if one of them fails.

        Raises a `TooLarge` if there is not enough memory.
        """

        def whole() -> None:
            selected = _selecting(points, first, count, self.layout)
            outputs = self.kernel(*selected, given)
            check_finite(outputs, infs=self.finite)
            rows = points.rows(first, first + count)
            _collect(outputs, values, rows, self.layout.partition(count))

        return self.guarded(given, points, first, whole)

    def guarded(
        self, given: Given, points: Points, first: int, call: Callable[[], None]
    ) -> Exception | None:
        """Return the error of `call` if a point fails in it.

        Raises a `TooLarge` if there is not enough memory, and a `Stopped` if a signal
        stopped a kernel.
        """
        with watched():
            try:
                with noting(self.layout.points_at_once):
                    call()
            except Exception as error:
                stopped = STOPPED in str(error)  # some ways raise it as a `ValueError`
                if isinstance(error, TooLarge | jax.errors.JaxRuntimeError) or stopped:
                    self._settle(given, points, first)
                if stopped:
                    text = "a signal stopped the kernels of this sweep."
                    raise Stopped(message("sweep", text, "Call it again.")) from error
                if isinstance(error, TooLarge):
                    raise
                if isinstance(error, jax.errors.JaxRuntimeError):
                    return error
                return as_nonfinite(error)
        return None

    def _settle(self, given: Given, points: Points, first: int) -> None:
        """Run the program once more after an error, for no points at all.

        JAX would report the error again when Python exits, unless another program has
        run on the device since.
        """
        nothing, table = points.kernel_args(first, 1, self.layout)
        nothing[:, COUNT] = 0
        if table is not None:
            # If a batch is the whole table, XLA moves it out of the loop and computes
            # it even for no points: then compute another point.
            table[:] = 0
        middle: tuple[Any, ...] = ()
        if self.split is not None:
            place, sources, state = self.fresh()
            middle = place, sources, self.placed(state)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.block_until_ready(self.kernel(nothing, table, *middle, given))

    @property
    def state(self) -> Sequence[jax.ShapeDtypeStruct]:
        """The shapes and dtypes of the state between two calls, of all devices."""
        if self.split is None:
            return []
        leaves = self.kernel.args_info[0][4]
        return [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]

    def fresh(self) -> "Saved":
        """Return the place, the sources of lanes and the state before all batches."""
        return *_fresh(self.layout), [np.zeros(x.shape, x.dtype) for x in self.state]

    def placed(self, state: Sequence[np.ndarray]) -> list[jax.Array]:
        """Return a state on the devices."""
        return jax.device_put(list(state), each_its_rows(self.layout))


Saved: TypeAlias = tuple[np.ndarray, np.ndarray, list[np.ndarray]]
"""The place, the sources of lanes and the state of a split program, on the host."""


def _fresh(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    devices, lanes = len(layout.devices), np.arange(layout.batch_size, dtype=np.uint32)
    return np.zeros((devices, 4), np.uint32), np.tile(lanes, devices)


class Begun:
    """Some points that a split program computes, from the index `first` on.

    The place, the sources of lanes and the state are those between two calls. They are
    saved at times: the search for a point that failed begins at the last save.
    """

    def __init__(
        self,
        runner: Runner,
        given: Given,
        points: Points,
        values: list[np.ndarray],
        first: int,
        count: int,
    ):
        self._runner, self._given, self.points = runner, given, points
        self._values, self.first, self.count = values, first, count
        self.batch_size = runner.layout.batch_size
        self._partition = runner.layout.partition(count)
        self._is_left = np.ones(count, bool)
        self.finished = np.zeros(0, np.int64)
        """The offsets of the points that the last call has finished."""
        self._save_seconds = 0.0
        self._go_to(runner.fresh())

    @property
    def ended(self) -> bool:
        """True if all points are computed."""
        return not self._is_left.any()

    def save(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Save the state on the host, and return it with its place."""
        begun = clock()
        state = [np.array(leaf) for leaf in self._state]
        self._saved = self._place, self._sources, state
        self._since, self._when = 0, clock()
        self._save_seconds = self._when - begun
        return self._place, [self._sources, *state]

    def resume(self, place: np.ndarray, state: Sequence[np.ndarray]) -> None:
        """Go on from what `save` returned, if it fits the program."""
        fresh, found = (
            [self._place, self._sources, *self._runner.state],
            [place, *state],
        )
        if [(x.shape, x.dtype) for x in found] != [(x.shape, x.dtype) for x in fresh]:
            return
        self._go_to((place, state[0], list(state[1:])))
        self._is_left[self._between(np.zeros_like(place), place)] = False
        # Lanes compute other points if their own have failed.
        alive = self._sources == _fresh(self._runner.layout)[1]
        self._is_left[[at for at, lane in self._lanes() if not alive[lane]]] = False

    def advance(self, seconds: float) -> Exception | None:
        """Compute for about some `seconds`; return the error if a point fails."""
        if clock() - self._when > save_pause(self._save_seconds):
            self.save()
        pace, begun = self._runner.pace, clock()
        budget = pace.steps
        try:
            error = self._enter(budget)
        except Stopped:  # the call has taken the state
            self._go_to(self._saved)
            raise
        if error is not None:
            return error
        taken = clock() - begun
        steps = budget - int(self._place[:, BUDGET].min())
        self._since += budget
        pace.record(steps, taken, seconds)
        if taken > _LONG_STEP * max(1, steps):
            log_once(
                f"slow {self._runner.name}",
                "eqx_pipe.sweep: a step of the loop of `%s` takes %.0f s. The sweep "
                "stops and saves only between steps: scan over steps, not over epochs.",
                self._runner.name,
                taken / max(1, steps),
            )
        return None

    def isolate(self, only_first: bool) -> list[tuple[int, Exception]] | None:
        """Find the points that failed in the last call, and leave them out.

        Returns their indices with their errors; `None` if `fn` is non-deterministic.
        The batches in flight are computed again from the last save on. If none of their
        points failed, a later one did: then they advance by a call.
        """
        budget, since = self._runner.pace.steps, self._since
        self._go_to(self._saved)
        if since and self._enter(since) is None:
            self.save()
        elif since:
            self._go_to(self._saved)
            budget += since
        saved, end = self._saved, self._place[:, BATCH] + 1
        left = [(at, lane) for at, lane in self._lanes() if self._is_left[at]]

        def fails(first: int, count: int) -> Exception | None:
            some = left[first : first + count]
            self._go_to(self._only(saved, [lane for _, lane in some]))
            return self._enter(budget, end, trial=True)

        found = search(fails, 0, len(left), only_first)
        failed = {k for k, _ in found}
        healthy = [lane for k, (_, lane) in enumerate(left) if k not in failed]
        self._go_to(self._only(saved, healthy))
        if not found:
            return None if self._enter(budget, end) else []
        offsets = np.array([left[k][0] for k, _ in found])
        self._is_left[offsets], self.finished = False, offsets
        return [(self.first + left[k][0], error) for k, error in found]

    def _go_to(self, saved: Saved) -> None:
        self._saved, self._since, self._when = saved, 0, clock()
        self._place, self._sources, state = saved
        self._state = self._runner.placed(state)

    def _only(self, saved: Saved, lanes: Sequence[int]) -> Saved:
        """Return what was saved, with some lanes only; others repeat one of them.

        The batches of other devices are skipped.
        """
        place, sources, state = saved
        place, size = place.copy(), self.batch_size
        into = sources.copy().reshape(-1, size)
        for device, own in enumerate(into):
            some = [lane % size for lane in lanes if lane // size == device]
            if some:
                own[:] = some[0]
                own[some] = some
            else:
                place[device] = place[device, BATCH] + 1, 0, 0, 0
        rows = (np.arange(len(into))[:, None] * size + into).reshape(-1)
        own = [size > 1 and len(leaf) == len(rows) for leaf in state]
        state = [x[rows] if each else x for x, each in zip(state, own, strict=True)]
        return place, into.reshape(-1), state

    def _enter(
        self, budget: int, end: np.ndarray | None = None, trial: bool = False
    ) -> Exception | None:
        """Run the program for some steps; return the error if a point fails.

        `end` has the batch of each device at which a call stops at the latest; a
        `trial` keeps no rows.
        """
        runner, was, place = self._runner, self._place, self._place.copy()
        place[:, BUDGET] = budget

        def call() -> None:
            selected = _selecting(self.points, self.first, self.count, runner.layout)
            control, table = selected
            if end is not None:
                control = np.array(control)
                control[:, COUNT] = np.minimum(control[:, COUNT], end)
            # JAX would check the state, in which NaN is allowed; outputs are checked
            # below.
            with jax.debug_nans(False), jax.debug_infs(False):
                args = control, table, place, self._sources, self._state, self._given
                now, self._state, outputs = runner.kernel(*args)
                self._place = np.asarray(now)
            new = self._between(was, self._place)
            if len(new):
                check_finite(outputs, infs=runner.finite)
            if not trial:
                self._finish(new, outputs, was)

        return runner.guarded(self._given, self.points, self.first, call)

    def _finish(self, new: np.ndarray, outputs: list[Any], was: np.ndarray) -> None:
        """Copy the rows of the points of batches that were finished since `was`."""
        for out, into in zip(outputs, self._values, strict=True):
            for device, shard in enumerate(_by_device(out)):
                own = self._own(device, was, self._place)
                begin = int(was[device, BATCH]) * self.batch_size
                data, left = np.asarray(shard)[begin:], self._is_left[own]
                into[self.rows(own[left])] = data[: len(own)][left]
        self.finished = new[self._is_left[new]]
        self._is_left[new] = False
        changed = was[:, BATCH] != self._place[:, BATCH]
        fresh = _fresh(self._runner.layout)[1]
        again = np.repeat(changed, self.batch_size)
        self._sources = np.where(again, fresh, self._sources)

    def _lanes(self) -> list[tuple[int, int]]:
        """Return the offset and the lane of each point of the batches in flight."""
        now, size = self._place, self.batch_size
        then = now + (np.arange(4) == BATCH).astype(np.uint32)
        own = [self._own(device, now, then) for device in range(len(now))]
        pairs = [
            (x, d * size + k)
            for d, some in enumerate(own)
            for k, x in enumerate(some.tolist())
        ]
        return sorted(pairs)

    def progress(self) -> tuple[float, str]:
        """Return the work on points in flight, in points, and how far they are."""
        assert self._runner.split is not None
        split, size = self._runner.split, self.batch_size
        before = [0, *it.accumulate(loop.length or 0 for loop in split.loops)]
        unit = [loop.unit for loop in split.loops] + [1]
        steps = [int(at) * unit[k] + before[k] for _, k, at, _ in self._place.tolist()]
        flying = [steps[x // size] for at, x in self._lanes() if self._is_left[at]]
        if not flying:
            return 0.0, ""
        text = f"{len(flying):,} at step {min(flying):,}"
        if split.steps is None:
            return 0.0, text
        return sum(flying) / split.steps, f"{text} of {split.steps:,}"

    def rows(self, offsets: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " some"]:
        """Return the rows of the values of some points."""
        rows = self.points.rows(self.first, self.first + self.count)
        return rows.start + offsets if isinstance(rows, slice) else rows[offsets]

    def _own(self, device: int, was: Any, now: Any) -> np.ndarray:
        """Return the points of a device that were finished between two places."""
        size = self.batch_size
        own = np.arange(self.count)[self._partition.own(device)]
        return own[int(was[device, BATCH]) * size : int(now[device, BATCH]) * size]

    def _between(self, was: Any, now: Any) -> np.ndarray:
        devices = range(len(self._runner.layout.devices))
        return np.concatenate([self._own(device, was, now) for device in devices])


def _by_device(out: Array) -> list[Array]:
    """Return each device's part of an output of `over_devices`, in their order."""
    # `.addressable_shards` would compute indices that are known here.
    return [out.addressable_data(k) for k in range(out.sharding.num_devices)]


def _collect(
    outputs: list[Any], values: list[np.ndarray], rows: Place, partition: Partition
) -> None:
    """Copy the outputs of one call to their rows, without padding."""
    for out, into in zip(outputs, values, strict=True):
        for device, shard in enumerate(_by_device(out)):
            data, own = np.asarray(shard), partition.own(device)
            if isinstance(rows, slice):
                place = into[rows][own]
                place[...] = data[: len(place)]
            else:
                place = rows[own]
                into[place] = data[: len(place)]


def _selecting(points: Points, first: int, now: int, layout: Layout) -> Any:
    """Return control and table, which may be on the devices already.

    A call takes a fifth of the time if nothing must be copied to devices.
    """
    if isinstance(points, ByTable):
        return points.kernel_args(first, now, layout)
    place = points, first, now, layout
    args = _controls.get(place)
    if args is None:
        control, table = points.kernel_args(first, now, layout)
        args = jax.device_put(control, each_its_rows(layout)), table
        _controls.put(place, args)
    return args


# JAX checks the outputs of a program that was compiled ahead of time at its first call
# only, so a sweep checks them itself.


# The range of points that a kernel computes is data. So a program that failed for many
# points is called for half of them, and so on, without another compilation. Only trying
# tells the memory that a batch needs: other programs use the device too, and CPUs do
# not report their memory.
