"""Sinks in memory: the values at all points, or their reduction.

The states of blocks are merged in the order of the index, even if they arrive in
another order.
"""

import contextlib
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

from ..._types import PyTree
from ..compute.groups import Blocks
from ..compute.rows import Errors, Rows, Verdict, clear, in_order, joined
from ..store import FAILED, MISSING, Chunks, count_in, gaps_of, merged
from ..work import Chunk, Outcome, Plan, Todo


class OrderedMerge:
    """The reduction of chunks of blocks, merged in order up to the first one missing.

    A reducer may stop after any block: then it is `stopped`, and later blocks are not
    merged.
    """

    def __init__(self, blocks: Blocks, chunks: Chunks):
        self.blocks, self.chunks = blocks, chunks
        self.state = blocks.begin()
        self.next = 0
        """The number of the next chunk to merge."""
        self.stopped = False
        self._taken = 0
        self._waiting: dict[int, Rows] = {}
        self._errors: list[Errors] = []

    @property
    def errors(self) -> Errors:
        """The errors of points that failed."""
        found = joined(self._errors).items()
        return {text: index[index < self.points] for text, index in found}

    @property
    def points(self) -> int:
        """The number of points before the stop, or of all points."""
        return self.blocks.span(0, self._taken)[1]

    @property
    def failed(self) -> Int64[np.ndarray, " failed"]:
        """The points that failed."""
        none = np.zeros(0, np.int64)
        return np.sort(np.concatenate([none, *self.errors.values()]))

    def put(self, number: int, values: Rows, errors: Errors) -> None:
        """Add a chunk, and merge all chunks whose predecessors are merged."""
        self._waiting[number] = values
        self._errors.append(errors)
        while self.next in self._waiting and not self.stopped:
            self._merge(self._waiting.pop(self.next))
            self.next += 1

    def finish(self) -> PyTree:
        """Return the reduction."""
        return self.blocks.finish(self.state)

    def _merge(self, values: Rows) -> None:
        blocks, count = self.blocks, len(values[-1])
        # Merge one by one if a reducer may stop.
        stops = blocks.reducers.stops
        spans = [(i, i + 1) for i in range(count)] if stops else [(0, count)]
        states = blocks.merge(self.state, values, spans)
        for (first, last), state in zip(spans, states, strict=True):
            self.state = state
            self._taken += last - first
            if stops and blocks.stop(state):
                self.stopped = True
                return


class ArraySink:
    """The values at all points."""

    stopped = False

    def __init__(self, plan: Plan):
        self.plan = plan
        self.size = math.prod(plan.chunks.lengths)
        self._chunks: dict[int, Verdict] = {}
        self._values: Rows | None = None

    @contextlib.contextmanager
    def filling(self) -> Iterator[Todo]:
        """Return all chunks: nothing is there yet."""
        numbers = range(len(self.plan.chunks))
        yield Todo(numbers, numbers)

    def keep(self, chunk: Chunk) -> None:
        """Store the values of a chunk at their points."""
        number, _, values, verdict = chunk
        self._chunks[number] = verdict
        if len(verdict.ok) == self.size:  # the chunk has all points: do not copy
            self._values = values
            return
        if self._values is None:
            self._values = self.plan.work.empty(self.size)
        place = slice(*self.plan.chunks.span(number))
        for into, leaf in zip(self._values, values, strict=True):
            into[place] = leaf

    def outcome(self) -> Outcome:
        """Return the values in the structure of the function's output."""
        plan, values = self.plan, self._values
        if values is None:  # no points, or none computed
            values = plan.work.empty(self.size)
        verdicts = []
        for number in range(len(plan.chunks)):
            first, last = plan.chunks.span(number)
            verdict = self._chunks.get(number)
            if verdict is None:
                clear(values, slice(first, last))
                ok = np.zeros(last - first, bool)
                verdict = Verdict(ok, missing=~ok)
            verdicts.append(verdict)
        all_ = in_order(verdicts)
        values = plan.work.unflatten(values)
        gaps = gaps_of(all_.ok, all_.missing)
        return Outcome(values, gaps, errors=all_.errors)


class ReductionSink:
    """The reduction of all points, which does not depend on the order of arrival."""

    def __init__(self, plan: Plan):
        assert plan.blocks is not None
        self.plan = plan
        self.fold = OrderedMerge(plan.blocks, plan.chunks)

    @property
    def stopped(self) -> bool:
        """True if the `stop` of a reducer was true."""
        return self.fold.stopped

    @contextlib.contextmanager
    def filling(self) -> Iterator[Todo]:
        """Return all chunks: nothing is there yet."""
        numbers = range(len(self.plan.chunks))
        yield Todo(numbers, numbers)

    def keep(self, chunk: Chunk) -> None:
        """Merge a chunk after its predecessors, unless blocks of it are missing."""
        if chunk.verdict.missing is None:
            self.fold.put(chunk.number, chunk.values, chunk.verdict.errors)

    def outcome(self) -> Outcome:
        """Return the reduction of the points before the stop."""
        return reduced_outcome(self.fold)


def reduced_outcome(
    fold: OrderedMerge, missing: Int64[np.ndarray, "ranges 2"] | None = None
) -> Outcome:
    """Return a reduction, its points, and those that failed or are `missing`."""
    absent = np.zeros((0, 2), np.int64) if missing is None else missing
    failed = fold.failed[:, None] + np.array([0, 1])
    gaps = merged({MISSING: absent, FAILED: failed})
    points = fold.points - count_in(gaps, MISSING)
    return Outcome(fold.finish(), gaps, points, fold.points, fold.errors)
