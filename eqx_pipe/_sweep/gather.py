"""The way of a sweep: chunks are computed, here or elsewhere, and a sink keeps them.

A `Plan` says what is computed and in which chunks. Neither the sink nor what computes
knows of the other.
"""

import dataclasses
import functools as ft
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int64

from .._progress import Progress, Watched, is_shown, watched
from .._types import ProgressLike
from .compute.failure import Verdict
from .compute.points import Index
from .compute.rows import Rows
from .interrupt import CTRL_C, ENDING, Interrupt
from .order_by import CostsBySpan
from .outcome import Outcome
from .plan import Plan

COMMIT_EVERY = 30.0
"""Seconds after which the finished batches of a chunk are committed to a store."""

_clock = time.monotonic


class Chunk(NamedTuple):
    """Rows of a chunk as they come: all rows, or those with some numbers.

    The verdict says which of them are still missing, if computing ended early.
    """

    number: int
    rows: Int64[np.ndarray, " rows"] | None
    values: Rows
    verdict: Verdict


@dataclasses.dataclass(frozen=True)
class Todo:
    """The chunks that a sink lacks, of those `owned` by this process.

    Of those in `rows` it lacks these rows alone. It takes `partial` chunks if it can
    keep some rows of one.
    """

    owned: Sequence[int]
    chunks: Sequence[int]
    rows: Mapping[int, Int64[np.ndarray, " _rows"]] = dataclasses.field(
        default_factory=dict
    )
    partial: bool = False

    def left(self, plan: Plan) -> int:
        """Return how many points are lacking."""
        whole = [number for number in self.chunks if number not in self.rows]
        return plan.count(whole) + sum(map(len, self.rows.values()))


@runtime_checkable
class Sink(Protocol):
    """Keeps chunks: in memory, in a store, or merged to a reduction."""

    @property
    def plan(self) -> Plan:
        """What is computed: a store may have been begun with another batch size."""
        ...

    @property
    def stopped(self) -> bool:
        """True if it needs no more chunks: a reducer asked to stop."""
        ...

    def filling(self) -> AbstractContextManager[Todo]:
        """Return a context within which chunks may be kept."""
        ...

    def keep(self, chunk: Chunk) -> None:
        """Keep a chunk."""
        ...

    def outcome(self) -> Outcome:
        """Return all that has been kept."""
        ...


Compute: TypeAlias = Callable[
    [Plan, Todo, CostsBySpan | None, Progress, Callable[[], bool]], Iterator[Chunk]
]
"""Computes what is to be done, and yields chunks when they are finished, in any order.

It begins no more chunks once the last argument returns true.
"""


def gather(sink: Sink, compute: Compute, costs: CostsBySpan | None) -> None:
    """Compute the chunks that a sink lacks; after a signal only what is in flight.

    Ctrl-C then raises a `KeyboardInterrupt`. With a store, SIGTERM and SIGHUP are taken
    too, and raise a `SystemExit`; in memory there would be nothing to keep.
    """
    plan = sink.plan
    progress = plan.request.progress
    signals = CTRL_C if plan.request.store is None else ENDING
    with sink.filling() as todo, Interrupt(signals) as interrupt:
        if not todo.chunks:
            return
        stopping = ft.partial(_stopping, interrupt, sink)
        size, left = plan.count(todo.owned), todo.left(plan)
        with Progress(
            is_shown(progress),
            size,
            size - left,
            # `bool()` is False: it never ends early.
            stopping if todo.partial else bool,
            watched_in(plan, progress),
            paced=todo.partial and plan.request.store is not None,
        ) as bar:
            failed = 0
            for chunk in compute(plan, todo, costs, bar, stopping):
                sink.keep(chunk)
                bar.saw(chunk.values, slice(None))
                failed += chunk.verdict.failed
                bar.failed(failed)
                if sink.stopped:
                    break
        # Also if all was done by then: a loop round the sweep should end too.
        interrupt.end()


def _stopping(interrupt: Interrupt, sink: Sink) -> bool:
    return interrupt.asked or sink.stopped


def watched_in(plan: Plan, progress: ProgressLike) -> Watched | None:
    """Return the output whose best is shown; raise a `ValueError` if it is none."""
    outputs = plan.points.outputs
    if plan.request.counting:  # the steps come after the outputs
        outputs = outputs[0]
    return watched(plan.request.function, outputs, progress)


def compute_here(
    plan: Plan,
    todo: Todo,
    costs: CostsBySpan | None,
    bar: Progress,
    stopping: Callable[[], bool],
) -> Iterator[Chunk]:
    """Compute chunks on the devices of this process, in order.

    For a store, a chunk that takes long comes in several parts, each with the batches
    that were finished meanwhile. They are the same batches in any case.
    """
    # Of a cell that is reduced there is nothing to keep before it is finished.
    in_parts = bar.paced and plan.work is plan.points
    for number in todo.chunks:
        rows, is_left = todo.rows.get(number), True
        while is_left and not stopping():
            if in_parts:
                bar.stopping = _after_a_while(stopping)
            index, own = asked_of(plan, number, rows, costs)
            values, verdict = plan.work.compute(index, own, bar)
            missing = verdict.missing
            is_left = missing is not None
            if missing is None or not missing.all():
                yield Chunk(number, rows, values, verdict)
            if missing is not None:
                rows = (np.arange(len(missing)) if rows is None else rows)[missing]
            if in_parts:
                plan = _in_smaller_batches(plan, bar.seconds)


def _after_a_while(stopping: Callable[[], bool]) -> Callable[[], bool]:
    """Return what ends a call of `compute` after some batches."""
    begun: list[float] = []

    def ended() -> bool:
        # Asked first when programs are compiled, and before the first batch.
        is_first, now = not begun, _clock()
        begun.append(now)
        return stopping() or (not is_first and now - begun[0] >= COMMIT_EVERY)

    return ended


def _in_smaller_batches(plan: Plan, seconds: float) -> Plan:
    """The plan in smaller batches, if an automatic one took so many seconds."""
    size = plan.batch_size
    if seconds <= COMMIT_EVERY or size == 1 or not plan.points.adapts:
        return plan
    smaller = 1
    while 2 * smaller * seconds <= COMMIT_EVERY * size:
        smaller *= 2
    sizes = plan.points.remarks.get("slow", f"{size}")
    plan.points.remarks["slow"] = f"{sizes}, {smaller}"
    work = plan.work.with_batch_size(smaller)
    return dataclasses.replace(plan, work=work)


def asked_of(
    plan: Plan,
    number: int,
    rows: Int64[np.ndarray, " some"] | None,
    costs: CostsBySpan | None,
) -> tuple[Index, Float[np.ndarray, " rows"] | None]:
    """Return the rows of a chunk to compute, with the costs of their points."""
    first, last = plan.chunks.span(number)
    own = None if costs is None else costs(first, last)
    if rows is None:
        return range(first, last), own
    return first + rows, None if own is None else own[rows]
