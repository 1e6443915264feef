"""The loop of a sweep: it computes chunks, here or elsewhere, and a sink keeps them.

A `Plan` lists the rows and their chunks. Sinks and the code that computes do not depend
on each other.
"""

import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int64

from .._progress import Progress, tell
from .._types import PyTree
from .compute.failure import Errors, Verdict
from .compute.rows import Rows
from .options import fn_name
from .plan import Plan
from .request import Request
from .results.output_coords import reduced_coords
from .results.result import Steps, SweepResult
from .results.schema import CellValues
from .store import MISSING, NO_GAPS, Gaps, count_in

COMMIT_EVERY = 30.0
"""Seconds after which the finished batches of a chunk are committed to a store."""

_clock = time.monotonic


CTRL_C = (signal.SIGINT,)
ENDING = (*CTRL_C, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
"""The signals that end a process which has not installed a handler of its own."""


class Interrupt:
    """A context in which the first signal only sets `asked`; the second acts as usual.

    A handler installed by the program is not replaced. Python calls handlers in the
    main thread, so in other threads no signal is handled.
    """

    def __init__(self, signals: Iterable[signal.Signals], loud: bool = True) -> None:
        self._signals, self._loud = signals, loud
        self._usual: dict[signal.Signals, Any] = {}
        self._came: signal.Signals | None = None

    @property
    def asked(self) -> bool:
        """True if a signal was received."""
        return self._came is not None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in set(self._signals):
                is_ctrl_c = number == signal.SIGINT
                usual = signal.default_int_handler if is_ctrl_c else signal.SIG_DFL
                if signal.getsignal(number) is usual:
                    self._usual[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def end(self) -> None:
        """Raise the exception that ends the sweep, if a signal was received.

        A program that does not catch it ends, also within a loop over sweeps.
        """
        if self._came == signal.SIGINT:
            raise KeyboardInterrupt
        if self._came is not None:
            raise SystemExit(128 + self._came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = signal.Signals(number)
        self._restore()
        name = "Ctrl-C" if number == signal.SIGINT else self._came.name
        if self._loud:
            tell(f"{name}: what is in flight will be finished. {name} again stops.")

    def _restore(self) -> None:
        for number, usual in self._usual.items():
            signal.signal(number, usual)
        self._usual = {}


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

    Chunks in `rows` lack only these rows. A sink that is `partial` can keep some rows
    of a chunk.
    """

    owned: Sequence[int]
    chunks: Sequence[int]
    rows: Mapping[int, Int64[np.ndarray, " _rows"]] = dataclasses.field(
        default_factory=dict
    )
    partial: bool = False

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


Compute: TypeAlias = Callable[
    [Plan, Todo, Progress, Callable[[], bool]], Iterator[Chunk]
]
"""Compute chunks, and yield each when it is finished, in any order.

No chunk begins after the last argument returns true.
"""


def gather(sink: Sink, compute: Compute) -> None:
    """Compute the missing chunks of a sink; after a signal, finish those in flight.

    Ctrl-C then raises a `KeyboardInterrupt`. With a store, SIGTERM and SIGHUP are
    handled too, and raise a `SystemExit`; without one there is nothing to keep.
    """
    plan = sink.plan
    signals = CTRL_C if plan.request.store is None else ENDING
    with sink.filling() as todo, Interrupt(signals) as interrupt:
        if not todo.chunks:
            return

        def stopping() -> bool:
            return interrupt.asked or sink.stopped

        size, left = plan.count(todo.owned), todo.left(plan)
        with Progress(
            plan.request.progress,
            size,
            size - left,
            # `bool()` is False, so the computation never ends early.
            stopping if todo.partial else bool,
            paced=todo.partial and plan.request.store is not None,
        ) as bar:
            failed = 0
            for chunk in compute(plan, todo, bar, stopping):
                sink.keep(chunk)
                failed += chunk.verdict.failed
                bar.failed(failed)
                if sink.stopped:
                    break
        # Also if all chunks are done, since a loop over sweeps should end too.
        interrupt.end()


def compute_here(
    plan: Plan, todo: Todo, bar: Progress, stopping: Callable[[], bool]
) -> Iterator[Chunk]:
    """Compute chunks on the devices of this process, in order.

    For a store, a slow chunk is yielded in several parts, each with the batches that
    were finished meanwhile. The batches are the same in any case.
    """
    # A cell is kept only when its reduction is finished.
    in_parts = bar.paced and plan.work is plan.points
    for number in todo.chunks:
        rows, is_left = todo.rows.get(number), True
        while is_left and not stopping():
            if in_parts:
                bar.stopping = _after_a_while(stopping)
            values, verdict = plan.work.compute(*plan.asked(number, rows), bar)
            missing = verdict.missing
            is_left = missing is not None
            if missing is None or not missing.all():
                yield Chunk(number, rows, values, verdict)
            if missing is not None:
                rows = (np.arange(len(missing)) if rows is None else rows)[missing]


def _after_a_while(stopping: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that ends a call of `compute` after `COMMIT_EVERY` seconds."""
    begun: list[float] = []

    def ended() -> bool:
        # The first call comes after compilation, before the first batch.
        is_first, now = not begun, _clock()
        begun.append(now)
        return stopping() or (not is_first and now - begun[0] >= COMMIT_EVERY)

    return ended


def result_of(
    request: Request,
    outcome: Outcome,
    *,
    batch_size: int,
    num_devices: int,
    attrs: Mapping[str, str],
    started: float,
) -> SweepResult:
    """Return the result of a request, with its provenance."""
    values, steps = outcome.values, None
    if request.count_steps:
        values, *counts = values
        steps = Steps(*counts)
    cells = None
    if isinstance(values, CellValues):
        cells = jtu.tree_map(lambda leaf: np.asarray(leaf[...]), values.cells)
        values = values.values
    output_coords = request.output_coords
    if outcome.points is not None and request.reducers is not None:
        output_coords = reduced_coords(request.reducers, values, output_coords, set())
    return SweepResult(
        values=values,
        space=request.space,
        _gaps=outcome.gaps,
        _ended=outcome.ended,
        batch_size=batch_size,
        num_devices=num_devices,
        started=started,
        seconds=time.time() - started,
        points=outcome.points,
        function=fn_name(request.fn),
        made=tuple(attrs.items()),
        steps=steps,
        _errors={t: np.sort(some) for t, some in outcome.errors.items() if len(some)},
        cells=cells,
        output_coords=output_coords,
    )


def carry(interrupt: KeyboardInterrupt, result: SweepResult, request: Request) -> None:
    """Attach the partial result to the `KeyboardInterrupt`."""
    interrupt.result = result  # pyright: ignore[reportAttributeAccessIssue]
    if request.store is not None:
        return  # the sink has added a note
    done = result.points
    if done is None:
        done = len(result) - count_in(result._gaps, MISSING)
    interrupt.add_note(
        f"{done:,} of {len(result):,} points are finished: they are the `.result` of "
        "this KeyboardInterrupt (`sys.last_value.result` in a notebook)."
    )
