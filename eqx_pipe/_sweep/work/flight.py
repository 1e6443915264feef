"""Points in flight: on the devices (`Begun`), and left in the middle (`Flight`).

A flight has three forms. `Begun` is on the devices: a batch between two calls of a
program that may stop inside of its loops. `Flight` is on the host, a value: what a
`Begun` saves, with the rows that wait for it. A file beside the chunks of a store has
the bytes of a `Flight` (`flight_files.py`). `RowState` and `FileState` are the states
of rows and of files: who moves them on, and what is on disk then.
"""

import enum
import itertools as it
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int64

from ..._errors import log_once
from ..._run import Stopped, check_finite, clock, save_pause, search
from ..program.in_steps import BATCH, BUDGET
from ..program.layout import COUNT, Arguments, Selected
from ..program.runner import Runner, Saved, by_device, fresh_lanes, selecting


class RowState(enum.IntEnum):
    """The state of a row in a call, which only rises; a `Buffer` has that of each."""

    WAITING = 0
    """Not computed, or in flight in a `Begun`: then a store may have a flight of it.

    `PointRows` and `Groups` move it on by `Buffer.finish` after a device call, also if
    its points failed (`Buffer.fail`).
    """
    FINISHED = 1
    """Computed, in memory; a flight that is saved now has its values, too.

    `Buffer.part` moves it on, when the watch asks for what is finished, or at the end.
    """
    HANDED = 2
    """Handed over in a `Chunk`; a sink writes it before the flight of that chunk."""


class FileState(enum.Enum):
    """The state of the flight of a chunk in a store; `Flights` moves it on."""

    ABSENT = enum.auto()
    """No file: missing rows begin. `Flights.keep` makes it `SAVED`."""
    SAVED = enum.auto()
    """A file of this call: `Flights.get` returns it, unless rows that it has handed
    over are missing, and `Flights.keep` replaces it.

    When the chunk is complete, `Flights.keep` or `Flights.tidy` remove it.
    """
    FOREIGN = enum.auto()
    """A file of other devices, versions or batches only: missing rows begin, and the
    file stays for a call that can go on, until the chunk is complete.
    """


class Flight(NamedTuple):
    """A computation that was left in the middle of a batch.

    `call` identifies the device call: its slice of the rows, its case, its first point
    and its number of points, which is 0 between two calls. `place` and `state` are
    those of the program, a row of `place` for each device. `text` says how far the
    points in flight are.

    Around it are buffers: `buffers` has what each adds, the innermost first: the rows
    that were handed over before, those that are finished and wait, those that are ok,
    and the values of the waiting ones. If rows are groups of points, the inner buffer
    has the points of the next run, and `groups` the states of the groups so far.

    Of the chunk, `rows` were asked for, or all of it; `costs` is the digest of their
    costs, which order them. `entries` has what else JSON supports.
    """

    call: tuple[int, int, int, int]
    batch_size: int
    place: np.ndarray = np.zeros((0, 4), np.uint32)
    state: Sequence[np.ndarray] = ()
    text: str = ""
    groups: Sequence[np.ndarray] = ()
    buffers: Sequence[Sequence[np.ndarray]] = ()
    entries: Mapping[str, Any] = {}
    rows: Int64[np.ndarray, " asked"] | None = None
    costs: str = ""

    @property
    def finished(self) -> Bool[np.ndarray, " asked"]:
        """The rows that were handed over before, of those that were asked for."""
        return self.buffers[-1][0]


_LONG_STEP = 60.0
"""Seconds that a step of a loop may take until a hint is logged."""


class Begun:
    """Some points that a split program computes, from the index `first` on.

    The place, the sources of lanes and the state are those between two calls. They are
    saved at times: the search for a point that failed begins at the last save.
    """

    def __init__(
        self,
        runner: Runner,
        args: Arguments,
        points: Selected,
        values: list[np.ndarray],
        which: tuple[int, int],
        first: int,
        count: int,
    ):
        """Begin points of the slice of the rows and the case that `which` has."""
        self._call = *which, first, count
        # Lane k computes the point of the lane `sources[k]`: its own, unless that has
        # failed. So failed points leave no hole, and no other point changes its lane,
        # which could change its bits.
        self._runner, self._arguments, self.points = runner, args, points
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

    # The state on the devices is donated to each call, so a call that raises has
    # destroyed it. The last save is then all there is, and the search for points that
    # failed begins there.

    def save(self) -> None:
        """Save the state on the host."""
        begun = clock()
        state = [np.array(leaf) for leaf in self._state]
        self._saved = self._place, self._sources, state
        self._since, self._when = 0, clock()
        self._save_seconds = self._when - begun

    def flight(self) -> Flight:
        """Save the state on the host, and return it as a value."""
        self.save()
        place, sources, state = self._saved
        call, text = self._call, self.progress()[1]
        return Flight(call, self.batch_size, place, [sources, *state], text)

    def resume(self, flight: Flight) -> None:
        """Go on from a flight, if it is one of this call and fits the program.

        Otherwise its points begin again, such as with another batch size.
        """
        place, state = flight.place, flight.state
        fresh = [self._place, self._sources, *self._runner.state]
        form, like = (
            [(x.shape, x.dtype) for x in xs] for xs in ([place, *state], fresh)
        )
        if flight.call != self._call or form != like:
            return
        self._go_to((place, state[0], list(state[1:])))
        # Batches before the place are finished: a buffer or the store has their rows.
        self._is_left[self._between(np.zeros_like(place), place)] = False
        # Lanes compute other points if their own have failed.
        alive = self._sources == fresh_lanes(self._runner.layout)[1]
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
        # The failed call was given the state and destroyed it, so all of them go back.
        budget, since = self._runner.pace.steps, self._since
        self._go_to(self._saved)
        if since and self._enter(since) is None:
            self.save()
        elif since:
            self._go_to(self._saved)
            budget += since
        # Now the failure lies within the next `budget` steps of these batches.
        saved, end = self._saved, self._place[:, BATCH] + 1
        left = [(at, lane) for at, lane in self._lanes() if self._is_left[at]]

        def fails(first: int, count: int) -> Exception | None:
            some = left[first : first + count]
            self._go_to(self._only(saved, [lane for _, lane in some]))
            return self._enter(budget, end, trial=True)

        # A trial computes some lanes, and all others repeat one of these. So the same
        # program runs, and every point keeps its lane.
        failures = search(fails, 0, len(left), only_first)
        failed = {k for k, _ in failures}
        healthy = [lane for k, (_, lane) in enumerate(left) if k not in failed]
        self._go_to(self._only(saved, healthy))
        if not failures:
            if self._enter(budget, end) is not None:
                return None
            # The next call begins after these batches. It is shorter, as all that it
            # computes before the failure is lost.
            self.save()
            self._runner.pace.steps = max(1, self._runner.pace.steps // 8)
            return []
        offsets = np.array([left[k][0] for k, _ in failures])
        self._is_left[offsets], self.finished = False, offsets
        return [(self.first + left[k][0], error) for k, error in failures]

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
        for device, lanes_of_device in enumerate(into):
            some = [lane % size for lane in lanes if lane // size == device]
            if some:
                lanes_of_device[:] = some[0]
                lanes_of_device[some] = some
            else:
                place[device] = place[device, BATCH] + 1, 0, 0, 0
        rows = (np.arange(len(into))[:, None] * size + into).reshape(-1)
        batched = [size > 1 and len(leaf) == len(rows) for leaf in state]
        state = [
            x[rows] if has_lanes else x
            for x, has_lanes in zip(state, batched, strict=True)
        ]
        return place, into.reshape(-1), state

    def _enter(
        self, budget: int, end: np.ndarray | None = None, trial: bool = False
    ) -> Exception | None:
        """Run the program for some steps; return the error if a point fails.

        `end` has the batch of each device at which a call stops at the latest; a
        `trial` keeps no rows.
        """
        # The program is given the state, and returns the next one in the same memory.
        runner, was, place = self._runner, self._place, self._place.copy()
        place[:, BUDGET] = budget

        def call() -> None:
            selected = selecting(self.points, self.first, self.count, runner.layout)
            control, table = selected
            if end is not None:
                control = np.array(control)
                control[:, COUNT] = np.minimum(control[:, COUNT], end)
            # JAX would check the state, in which NaN is allowed; outputs are checked
            # below.
            with jax.debug_nans(False), jax.debug_infs(False):
                args = (
                    control,
                    table,
                    place,
                    self._sources,
                    self._state,
                    self._arguments,
                )
                now, self._state, outputs = runner.kernel(*args)
                self._place = np.asarray(now)
            new = self._between(was, self._place)
            if len(new):
                check_finite(outputs, infs=runner.finite)
            if not trial:
                self._finish(new, outputs, was)

        return runner.guarded(self._arguments, self.points, self.first, call)

    def _finish(self, new: np.ndarray, outputs: list[Any], was: np.ndarray) -> None:
        """Copy the rows of the points of batches that were finished since `was`.

        The outputs of a call have the rows of all batches, 0 in those before and after.
        """
        for out, into in zip(outputs, self._values, strict=True):
            for device, shard in enumerate(by_device(out)):
                points = self._own(device, was, self._place)
                begin = int(was[device, BATCH]) * self.batch_size
                data, left = np.asarray(shard)[begin:], self._is_left[points]
                into[self.rows(points[left])] = data[: len(points)][left]
        self.finished = new[self._is_left[new]]
        self._is_left[new] = False
        # The next batch begins with each lane computing its own point again.
        changed = was[:, BATCH] != self._place[:, BATCH]
        fresh = fresh_lanes(self._runner.layout)[1]
        again = np.repeat(changed, self.batch_size)
        self._sources = np.where(again, fresh, self._sources)

    def _lanes(self) -> list[tuple[int, int]]:
        """Return the offset and the lane of each point of the batches in flight."""
        now, size = self._place, self.batch_size
        then = now + (np.arange(4) == BATCH).astype(np.uint32)
        each = [self._own(device, now, then) for device in range(len(now))]
        pairs = [
            (x, d * size + k)
            for d, points in enumerate(each)
            for k, x in enumerate(points.tolist())
        ]
        return sorted(pairs)

    def progress(self) -> tuple[float, str]:
        """Return the work on points in flight, in points, and how far they are."""
        assert self._runner.split is not None
        split, size = self._runner.split, self.batch_size
        # A place counts the steps of one loop, after those before it.
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
        points = np.arange(self.count)[self._partition.own(device)]
        return points[int(was[device, BATCH]) * size : int(now[device, BATCH]) * size]

    def _between(self, was: Any, now: Any) -> np.ndarray:
        devices = range(len(self._runner.layout.devices))
        return np.concatenate([self._own(device, was, now) for device in devices])
