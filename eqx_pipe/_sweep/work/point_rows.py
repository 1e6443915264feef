"""The outputs at points as rows: the loop over cases, batches and steps.

A call of a program computes some batches. If points take long, it may also end inside
of a batch. Between two calls the watch is asked whether to stop.
"""

import dataclasses
import functools as ft
from collections.abc import Iterator, Sequence

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Float, Int64

from ..._run import TooLarge, Watch, clock, differs, error_text, failed_point, quiet
from ..._tree import as_keys
from ..._types import PyTree
from ..program.layout import ByOffset, ByTable, Selected
from ..trace.cases import case_numbers
from .buffer import Buffer, Rows, clear
from .flight import Begun, Flight
from .work import Work

_LISTED_AT_ONCE = 2**22
"""The maximum number of points sorted into cases at once; each takes about 30 bytes."""


@dataclasses.dataclass(frozen=True, eq=False)
class PointRows(Work):
    """The output at each point as a row."""

    reducers: None = None
    each: int = 1

    def with_most(self, most: int) -> "PointRows":
        """Return the same rows, for calls of at most `most` of them."""
        return PointRows(self.points.with_most(most))

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of an output; PRNG keys are raw data."""
        return self.points.row

    @ft.cached_property
    def outputs(self) -> PyTree:
        """The shapes and dtypes of the output at a point."""
        return self.points.outputs

    @property
    def unit(self) -> int:
        """The number of points computed at once if every case fills its lanes."""
        return self.points.unit

    def unflatten(self, rows: Rows) -> PyTree:
        """Return the outputs as the function gives them, with keys from raw data."""
        first = self.points.traced[0]
        leaves = list(map(as_keys, rows, first.outputs))
        return jtu.tree_unflatten(first.structure, leaves)

    def _calls(self, buffer: Buffer, watch: Watch) -> Iterator[tuple[int, int]]:
        points, index, costs = self.points, buffer.index, buffer.asked.costs
        if isinstance(index, range) and not points.are_listed:
            # Consecutive points of one program, whose table would be the index itself.
            selected = ByOffset(points.geometry.start + index.start)
            yield from self._in_batches((0, 0), selected, len(index), buffer, watch)
            return
        most = _LISTED_AT_ONCE if costs is None else max(1, len(index))
        for first in range(0, len(index), most):
            listed = np.asarray(index[first : first + most], np.int64)
            yield from self._cases(listed, first, costs, buffer, watch)

    def _cases(
        self,
        index: Int64[np.ndarray, " points"],
        first: int,
        costs: Float[np.ndarray, " rows"] | None,
        buffer: Buffer,
        watch: Watch,
    ) -> Iterator[tuple[int, int]]:
        """Compute points case by case; `first` is the row of the first of them."""
        points = self.points
        numbers = case_numbers(points.geometry, points.static_values, index)
        for case, error in points.broken:
            rows = np.flatnonzero(numbers == case.number)
            if len(rows) and buffer.resumed is None:
                self._fail(buffer, first + rows, error)
                buffer.finish(first + rows)
                yield len(rows), len(rows)
        for k, case in enumerate(points.cases):
            rows = np.flatnonzero(numbers == case.number)
            if costs is not None:  # ties in order, NaN last
                rows = rows[np.argsort(costs[rows], kind="stable")]
            if len(rows):
                listed = ByTable(points.geometry, index[rows], first + rows)
                yield from self._in_batches(
                    (first, k), listed, len(rows), buffer, watch
                )

    def _in_batches(
        self,
        which: tuple[int, int],
        selected: Selected,
        count: int,
        buffer: Buffer,
        watch: Watch,
    ) -> Iterator[tuple[int, int]]:
        """Compute points of a case, in batches for which there is enough memory.

        `which` has the slice of the rows and the case.
        """
        points, done, resumed = self.points, 0, buffer.resumed
        if resumed is not None:
            if resumed.call[:2] != which:
                return  # they were finished before
            done, buffer.resumed = resumed.call[2], None
        while done < count and not watch.stopping():
            try:
                watch.compile()
                runner, args = points.runner(which[1], selected)
                watch.begin()
                if watch.stopping():
                    return
                across = runner.layout.batch_size * len(points.devices)
                # A call takes about as long as the watch wants it to, so that Ctrl-C is
                # found. A split program ends by steps, so it gets all batches.
                batches = runner.layout.capacity
                if runner.split is None:
                    batches = min(batches, runner.pace.steps)
                now = min(count - done, across * batches)
                call = args, selected, buffer.values
                if runner.split is not None:
                    begun = Begun(runner, *call, which, done, now)
                    if resumed is not None:
                        begun.resume(resumed)
                    resumed = None
                    yield from self._in_steps(begun, buffer, watch)
                    done += now
                    continue
                before = clock()
                compute = runner.calling(*call)
                failures = points.failures(compute, done, now, now)
            except TooLarge as error:
                # What is finished stays; the next round makes a smaller program.
                points.halve(error)
                continue
            runner.pace.record(-(-now // across), clock() - before, watch.call_seconds)
            self._mark(failures, selected, buffer)
            buffer.finish(selected.rows(done, done + now))
            done += now
            if watch.whole:
                # Finished rows wait in the buffer, so a kill must find them in a flight
                # even if no point is inside of a batch.
                between = Flight((*which, done, 0), points.largest_batch)
                buffer.in_flight = lambda flight=between: flight
            yield now, len(failures)

    def _in_steps(
        self, begun: Begun, buffer: Buffer, watch: Watch
    ) -> Iterator[tuple[int, int]]:
        """Compute points by a program that may stop inside of a batch."""
        while not begun.ended and not watch.stopping():
            failures: list[tuple[int, Exception]] | None = []
            with quiet():
                if begun.advance(watch.call_seconds) is not None:
                    failures = begun.isolate(only_first=not self.points.isolated)
            if failures is None:
                raise differs(self.points.function, begun.count)
            # After a failure, these are the points that `isolate` has left out.
            self._mark(failures, begun.points, buffer)
            buffer.finish(begun.rows(begun.finished))
            keeps = watch.hands_over and (watch.whole or not begun.ended)
            buffer.in_flight = begun.flight if keeps else None
            watch.bar.inside(*begun.progress())
            yield len(begun.finished), len(failures)

    def _mark(
        self,
        failures: Sequence[tuple[int, Exception]],
        selected: Selected,
        buffer: Buffer,
    ) -> None:
        """Record that points failed, and clear their rows.

        Unless failures are isolated, raises a `SweepError` that names the first one, or
        a `FloatingPointError` under `jax_debug_nans`.
        """
        for at, error in failures:
            rows = np.arange(len(buffer.index))[selected.rows(at, at + 1)]
            if not self.points.isolated:
                number = int(buffer.index[int(rows[0])])
                i = self.points.geometry.index_as_written(number)
                raise failed_point(self.points.function, i, error) from error
            self._fail(buffer, rows, error_text(error))

    def _fail(
        self, buffer: Buffer, rows: Int64[np.ndarray, " failed"], text: str
    ) -> None:
        clear(buffer.values, rows)
        numbers = np.asarray(buffer.index, np.int64)[rows]
        buffer.fail(rows, {text: numbers}, len(rows))
