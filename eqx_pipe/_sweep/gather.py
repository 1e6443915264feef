"""The loop of a sweep: it computes chunks, here or elsewhere, and a sink keeps them.

A `Plan` lists the rows and their chunks. Sinks and the code that computes do not depend
on each other.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int64

from .._progress import Progress
from .._types import PyTree
from .compute.rows import Errors, Rows, Verdict
from .compute.watch import CTRL_C, ENDING, Interrupt, Watch
from .plan import Plan
from .store import NO_GAPS, Gaps


class Chunk(NamedTuple):
    """Computed rows of a chunk: all rows, or those with the numbers `rows`.

    The verdict marks rows that are still missing because the computation ended early.
    """

    number: int
    rows: Int64[np.ndarray, " rows"] | None
    values: Rows
    verdict: Verdict


@dataclasses.dataclass(frozen=True)
class Todo:
    """The missing chunks of a sink, among those `owned` by this process.

    Chunks in `rows` lack only these rows.
    """

    owned: Sequence[int]
    chunks: Sequence[int]
    rows: Mapping[int, Int64[np.ndarray, " _rows"]] = dataclasses.field(
        default_factory=dict
    )

    def left(self, plan: Plan) -> int:
        """Return the number of missing points."""
        whole = [number for number in self.chunks if number not in self.rows]
        return plan.count(whole) + sum(map(len, self.rows.values()))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The final rows of a sink: the fields of a `SweepResult` that it provides."""

    values: PyTree
    gaps: Gaps = dataclasses.field(default_factory=lambda: NO_GAPS)
    points: int | None = None
    ended: int | None = None
    errors: Errors = dataclasses.field(default_factory=dict)


@runtime_checkable
class Sink(Protocol):
    """An object that keeps chunks: in memory, in a store, or merged to a reduction."""

    @property
    def plan(self) -> Plan:
        """The plan, with the batch size and chunks of a store that exists."""
        ...

    @property
    def stopped(self) -> bool:
        """True if it needs no more chunks: a reducer asked to stop."""
        ...

    def filling(self) -> AbstractContextManager[Todo]:
        """Return a context in which chunks may be kept; it yields the missing ones."""
        ...

    def keep(self, chunk: Chunk) -> None:
        """Keep a chunk."""
        ...

    def outcome(self) -> Outcome:
        """Return all that has been kept."""
        ...


Compute: TypeAlias = Callable[[Plan, Todo, Watch], Iterator[Chunk]]
"""Compute chunks, and yield each when it is finished, in any order.

No chunk begins after the watch asks to stop.
"""


def gather(sink: Sink, compute: Compute) -> None:
    """Compute the missing chunks of a sink; after a signal, finish those in flight.

    Ctrl-C then raises a `KeyboardInterrupt`. With a store, SIGTERM and SIGHUP are
    handled too, and raise a `SystemExit`; without one there is nothing to keep.
    """
    plan = sink.plan
    is_stored = plan.request.store is not None
    with (
        sink.filling() as todo,
        Interrupt(ENDING if is_stored else CTRL_C) as interrupt,
    ):
        if not todo.chunks:
            return
        size, left = plan.count(todo.owned), todo.left(plan)
        with Progress(plan.request.progress, size, size - left) as bar:
            watch = Watch(
                bar,
                lambda: interrupt.asked or sink.stopped,
                hands_over=is_stored,
            )
            for chunk in compute(plan, todo, watch):
                sink.keep(chunk)
                if sink.stopped:
                    break
        # Also if all chunks are done, since a loop over sweeps should end too.
        interrupt.end()


def compute_here(plan: Plan, todo: Todo, watch: Watch) -> Iterator[Chunk]:
    """Compute chunks on the devices of this process, in order.

    For a store, a slow chunk is yielded in several parts, each with the rows that were
    finished meanwhile.
    """
    for number in todo.chunks:
        if watch.stopping():
            return
        rows = todo.rows.get(number)
        index, costs = plan.asked(number, rows)
        for at, values, verdict in plan.work.compute(index, costs, watch):
            if verdict.missing is not None and verdict.missing.all():
                continue
            if at is not None:
                at = at if rows is None else rows[at]
            yield Chunk(number, rows if at is None else at, values, verdict)
