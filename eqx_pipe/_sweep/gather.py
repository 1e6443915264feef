"""The one road of a sweep: chunks from a source of finished work to a sink.

What is computed and how it is cut into chunks is said by a `Plan`. A source computes
chunks: in this process, or by the workers of an executor. A sink keeps them: as arrays,
in a store, or merged to a reduction. Neither knows of the other.
"""

import dataclasses
import functools as ft
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int64

from .._progress import Progress, Watched, is_shown, watched
from .._store.ledger import MISSING
from .._types import ProgressLike, PyTree
from .call import fn_name
from .compute.failure import Errors, Verdict
from .plan import Plan
from .request import Request
from .results.cells import CellPoints, CellValues
from .results.gaps import NO_GAPS, Gaps, count_in
from .results.raised import Raised
from .results.result import SweepResult
from .results.steps import Steps

Chunk: TypeAlias = tuple[int, list[np.ndarray], Verdict]
"""The number of a chunk, the leaves of its rows, and what became of these."""

Parts: TypeAlias = Mapping[int, Int64[np.ndarray, " _rows"]]
"""For chunks of which some rows are asked for, and not all: which."""

Source: TypeAlias = Callable[
    [Sequence[int], Parts, Callable[[], bool], Progress], Iterator[Chunk]
]
"""Computes the chunks with some numbers; gives each when it is finished, in any order.

It is called as `source(numbers, parts, stopping, bar)`: of chunks in `parts` it gives
these rows alone; no more chunks are begun once `stopping()` is true, and `bar` is told
how many points are done.
"""


_SAID = "\nWhat is in flight will be finished. Ctrl-C again stops at once.\n"


class Interrupt:
    """Within it the first Ctrl-C only sets `asked`; the second one is as ever.

    Somebody else's way to deal with Ctrl-C is left as it is, and signals come to the
    main thread only.
    """

    def __init__(self, said: str = _SAID) -> None:
        self.asked = False
        self._said = said
        self._installed = False

    def __enter__(self) -> "Interrupt":
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()
        sys.stderr.write(self._said)

    def _restore(self) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False


@dataclasses.dataclass(frozen=True)
class Todo:
    """Which chunks a sink is to have, and which of them it lacks.

    Of those in `parts` it lacks these rows alone. It takes `partial` chunks if not all
    rows of one need be computed.
    """

    mine: Sequence[int]
    missing: Sequence[int]
    interrupt: Interrupt
    partial: bool = False
    parts: Parts = dataclasses.field(default_factory=dict)

    def left(self, plan: Plan) -> int:
        """How many points are lacking."""
        whole = [number for number in self.missing if number not in self.parts]
        return plan.count(whole) + sum(map(len, self.parts.values()))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a sink has in the end: the fields of a `SweepResult` that it knows."""

    values: PyTree
    gaps: Gaps = dataclasses.field(default_factory=lambda: NO_GAPS)
    points: int | None = None
    ended: int | None = None
    errors: Errors = dataclasses.field(default_factory=dict)


@runtime_checkable
class Sink(Protocol):
    """What keeps chunks."""

    @property
    def plan(self) -> Plan:
        """What is computed: a store may have been begun with another batch size."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether it needs no more chunks: a reducer asked to stop."""
        ...

    def filling(self) -> AbstractContextManager[Todo]:
        """Within it chunks may be kept."""
        ...

    def keep(self, number: int, values: list[np.ndarray], verdict: Verdict) -> None:
        """Keeps a chunk."""
        ...

    def outcome(self) -> Outcome:
        """All that has been kept."""
        ...


def gather(source: Source, sink: Sink, progress: ProgressLike) -> None:
    """Computes the chunks that a sink lacks; after Ctrl-C only what is begun.

    A `KeyboardInterrupt` tells of that, even if all had been begun.
    """
    plan = sink.plan
    shown = is_shown(progress)
    with sink.filling() as todo:
        if not todo.missing:
            return
        size, left = plan.count(todo.mine), todo.left(plan)
        failed = 0
        stopping = ft.partial(_stopping, todo.interrupt, sink)
        # `bool()` is False: it never ends early.
        early = stopping if todo.partial else bool
        with Progress(
            shown, size, size - left, early, watched_in(plan, progress)
        ) as bar:
            chunks = source(todo.missing, todo.parts, stopping, bar)
            for number, values, verdict in chunks:
                sink.keep(number, values, verdict)
                bar.saw(values, slice(None))
                failed += verdict.failed
                bar.failed(failed)
                if sink.stopped:
                    break
        # Also if all was done by then: a loop round the sweep should end too.
        if todo.interrupt.asked:
            raise KeyboardInterrupt


def watched_in(plan: Plan, progress: ProgressLike) -> Watched | None:
    """What a bar shows the best of; raises a `ValueError` if that is no output."""
    outputs = plan.points.outputs
    if plan.request.counting:  # of which the steps come behind
        outputs = outputs[0]
    return watched("sweep", outputs, progress)


def _stopping(interrupt: Interrupt, sink: Sink) -> bool:
    return interrupt.asked or sink.stopped


def result_of(
    request: Request,
    outcome: Outcome,
    *,
    batch_size: int,
    num_devices: int,
    attrs: Mapping[str, str],
    started: float,
) -> SweepResult:
    """Return the result of a request, with what made it."""
    values, steps = outcome.values, None
    if request.counting:
        values, *counts = values
        steps = Steps(*counts)
    cells = None
    if isinstance(values, CellValues):
        values, counted = values.values, values.cells
        both = counted.points, counted.failed
        cells = CellPoints(*(np.asarray(leaf[...]) for leaf in both))
    fields = dict(
        values=values,
        space=request.space,
        gaps=outcome.gaps,
        ended=outcome.ended,
        batch_size=batch_size,
        num_devices=num_devices,
        started=started,
        seconds=time.time() - started,
        points=outcome.points,
        function=fn_name(request.fn),
        made=tuple(attrs.items()),
        steps=steps,
        raised=Raised.of(outcome.errors),
        cells=cells,
        output_coords=request.output_coords,
    )
    # Not by Equinox's constructor, which would take a fifth of a small sweep.
    result = object.__new__(SweepResult)
    for name, value in fields.items():
        object.__setattr__(result, name, value)
    return result


def carry(interrupt: KeyboardInterrupt, result: SweepResult, request: Request) -> None:
    """Attach the partial result to the `KeyboardInterrupt`."""
    interrupt.result = result  # pyright: ignore[reportAttributeAccessIssue]
    if request.store is not None:
        return  # whose sink has said so
    done = result.points
    if done is None:
        done = len(result) - count_in(result.gaps, MISSING)
    interrupt.add_note(
        f"{done:,} of {len(result):,} points are finished: they are the `.result` of "
        "this KeyboardInterrupt (`sys.last_value.result` in a notebook)."
    )
