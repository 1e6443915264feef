"""The rows of a sweep: work that computes them, and the arrays that receive them.

A sweep computes rows: the outputs at points, or what groups of points are reduced to.
Sinks keep rows and workers return them, and neither depends on the kind of work.
"""

import abc
import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool, Float, Int64

from ..._errors import value_error
from ..._run import Stopped, Watch, nothing
from ..._spaces import Space
from ..._types import Key, PyTree
from ..program.layout import CHUNK_BYTES, Place, nbytes

Rows: TypeAlias = list[np.ndarray]
"""The leaves of some rows, along a leading axis; PRNG keys are raw data."""

Index: TypeAlias = range | Int64[np.ndarray, " rows"]
"""The numbers of the rows to compute."""

Errors: TypeAlias = Mapping[str, Int64[np.ndarray, " _failed"]]
"""The points (or cells) at which each error was raised, by its text."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of some rows: which are `ok`, and the errors of points.

    Rows that are `missing` are not computed yet; they are not `ok` either. `failed` is
    the number of failed points in all rows.
    """

    ok: Bool[np.ndarray, " rows"]
    errors: Errors = dataclasses.field(default_factory=dict)
    missing: Bool[np.ndarray, " rows"] | None = None
    failed: int = 0


class Flight(NamedTuple):
    """A computation that was left in the middle of a batch.

    `call` identifies the device call: its slice of the rows, its case, its first point
    and its number of points, which is 0 between two calls. `place` and `state` are
    those of the program, a row of `place` for each device. Of the rows that were asked
    for (`rows`, or all of the chunk), those in `finished` were handed over before.
    `text` says how far the points in flight are. If rows are groups of points, `groups`
    and `entries` have their states so far. `buffers` have the rows that are finished
    and not handed over, those of the points of a group first.
    """

    call: tuple[int, int, int, int]
    batch_size: int
    place: np.ndarray = np.zeros((0, 4), np.uint32)
    state: Sequence[np.ndarray] = ()
    finished: Bool[np.ndarray, " asked"] = np.zeros(0, bool)
    rows: Int64[np.ndarray, " asked"] | None = None
    text: str = ""
    groups: Sequence[np.ndarray] = ()
    buffers: Sequence[Rows] = ()
    entries: Mapping[str, Any] = {}  # noqa: RUF012


class Part(NamedTuple):
    """Rows that are finished, with their verdict, and the points in flight, if any.

    `at` are their positions among the rows of the call. It is `None` for the first part
    of a call, which has all rows, some of which may be missing.
    """

    at: Int64[np.ndarray, " rows"] | None
    values: Rows
    verdict: Verdict
    flight: Flight | None = None


class Buffer:
    """The rows of a call while they are computed, with the points that failed."""

    def __init__(self, index: Index, values: Rows, resumed: Flight | None = None):
        self.index, self.values, self.resumed = index, values, resumed
        self.in_flight: Callable[[], Flight] | None = None
        """Returns the points in flight, if they can go on elsewhere."""
        self._given = np.zeros(len(index), bool)
        if resumed is not None:
            self._given = resumed.finished
        self._done = self._given.copy()
        self._is_first = not self._given.any()
        self._ok: Bool[np.ndarray, " rows"] | None = None
        self._errors: list[Errors] = []
        self._failed = 0
        if resumed is not None and "whole" in resumed.entries:
            self.restore(resumed)

    def finish(self, place: Place) -> None:
        """Record that some rows are computed, failed ones included."""
        self._done[place] = True

    def fail(self, place: Place, errors: Errors, points: int) -> None:
        """Record that some rows are not ok, and the errors of the failed `points`."""
        if self._ok is None:
            self._ok = np.ones(len(self.index), bool)
        self._ok[place] = False
        self._errors.append(errors)
        self._failed += points

    def part(self, last: bool = True, whole: bool = False) -> Iterator[Part]:
        """Yield the rows that were finished since the last part, and what is in flight.

        The `last` part of a call is yielded also if no row is finished. If rows may
        only be handed over as a `whole`, finished ones are in flight until then.
        """
        new = self._done & ~self._given
        if last and new.all():
            yield Part(None, self.values, self._taken(slice(None)))
            return
        flight, ends = None, bool(self._done.all())
        keeps = not whole or ends
        if self.in_flight is not None and not ends:
            flight = self.saved(whole=True) if whole else self.in_flight()
        if keeps:
            self._given = self._done.copy()
        else:
            new = np.zeros_like(new)
        if flight is not None:
            flight = flight._replace(finished=self._given)
        if self._is_first and keeps and (last or new.any()):
            self._is_first = False
            # Later parts need the rows of this call.
            values = self.values if last else [leaf.copy() for leaf in self.values]
            clear(values, ~new)
            verdict = self._taken(slice(None))
            ok = verdict.ok & new
            verdict = dataclasses.replace(verdict, ok=ok, missing=~new)
            yield Part(None, values, verdict, flight)
        elif new.any() or flight is not None:
            at = np.flatnonzero(new)
            values = [leaf[at] for leaf in self.values]
            verdict = self._taken(at) if keeps else Verdict(np.ones(0, bool))
            yield Part(at, values, verdict, flight)

    def rows(self) -> tuple[Rows, Verdict]:
        """Return all rows, some of which may be missing, if no part was yielded."""
        done, verdict = self._done, self._verdict(slice(None))
        if done.all():
            return self.values, verdict
        clear(self.values, ~done)
        ok = verdict.ok & done
        return self.values, dataclasses.replace(verdict, ok=ok, missing=~done)

    def saved(self, **entries: Any) -> Flight:
        """Return the points in flight, with the rows that are finished.

        `entries` are added to those of the flight.
        """
        assert self.in_flight is not None
        flight, done = self.in_flight(), self._done & ~self._given
        count = f"{done.sum():,} finished in a chunk that is not" if done.any() else ""
        ok = np.ones(len(done), bool) if self._ok is None else self._ok
        errors = {text: at.tolist() for text, at in joined(self._errors).items()}
        entries = {**flight.entries, **entries}
        entries["failed"] = [*entries.get("failed", []), errors]
        rows = [done, ok, *(leaf[done] for leaf in self.values)]
        text = ", ".join(filter(None, [count, flight.text]))
        buffers = [*flight.buffers, rows]
        return flight._replace(buffers=buffers, entries=entries, text=text)

    def restore(self, flight: Flight) -> None:
        """Go on from what `saved` returned."""
        *buffers, (done, ok, *values) = flight.buffers
        *others, errors = flight.entries["failed"]
        for into, leaf in zip(self.values, values, strict=True):
            into[done] = leaf
        self.finish(done)
        if errors:
            self._ok = ok
            self._errors = [{text: np.array(at) for text, at in errors.items()}]
        entries = {**flight.entries, "failed": others}
        self.resumed = flight._replace(buffers=buffers, entries=entries)

    def _verdict(self, place: Place) -> Verdict:
        """Return the verdict on some rows; without failures it takes no memory."""
        ok = self._ok
        if ok is None:
            ok = np.broadcast_to(np.True_, (len(self.index),))
        return Verdict(ok[place], joined(self._errors), failed=self._failed)

    def _taken(self, place: Place) -> Verdict:
        """Return the verdict on some rows, with the errors since the last one."""
        verdict = self._verdict(place)
        self._errors, self._failed = [], 0
        return verdict


class Work(abc.ABC):
    """The rows of a sweep as a value: `size` rows, computed from `points`.

    There are two kinds. Points are rows themselves. A group of points is a row that has
    their reduction: a cell of a sweep over some dims, or a block, whose row has states
    that are merged with those of other blocks.
    """

    function: str
    """The public function that was called, for messages."""
    points: Any
    reducers: Any
    """The reducers of groups; `None` for points."""
    size: int
    outputs: Any
    """The shapes and dtypes of the outputs of a row, as a pytree."""
    unit: int
    """The number of rows that fill the lanes of all devices."""
    is_merged: bool = False
    """True if all rows are merged to one result."""

    @property
    def in_memory(self) -> int:
        """The number of rows of a chunk that is kept in memory."""
        return max(1, self.size)

    def compute(
        self,
        index: Index,
        costs: Float[np.ndarray, " rows"] | None,
        watch: Watch,
        resumed: Flight | None = None,
    ) -> Iterator[Part]:
        """Compute some rows, and yield them: in one part unless `watch` asks for more.

        Pass consecutive rows as a `range`, which needs no table. Points of similar cost
        share a batch. A `resumed` flight goes on, and rows that it has finished are
        omitted.
        """
        watch.restart()
        buffer = Buffer(index, self.empty(len(index)), resumed)
        try:
            for points, failed in self._calls(buffer, costs, watch):
                if watch.after(points, failed):
                    with watch.saving():
                        yield from buffer.part(last=False, whole=watch.whole)
        except Stopped:
            if not watch.stopping():  # the signal is meant for another sweep
                raise
        yield from buffer.part(whole=watch.whole)

    @abc.abstractmethod
    def _calls(
        self, buffer: Buffer, costs: Float[np.ndarray, " rows"] | None, watch: Watch
    ) -> Iterator[tuple[int, int]]:
        """Fill a buffer; yield the points of each device call, and how many failed."""

    @property
    @abc.abstractmethod
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""

    @property
    def row_bytes(self) -> int:
        """The size of a row in bytes, at least 1."""
        return max(1, nbytes(self.row))

    def empty(self, size: int) -> Rows:
        """Return arrays for some rows.

        Raises a `ValueError` if they do not fit into the memory of this machine or its
        container.
        """
        # Operating systems overcommit memory, and kill the process that uses too much.
        # Its limit is read from files, which would be a tenth of a small sweep.
        needed = size * self.row_bytes
        memory = _memory() if needed > CHUNK_BYTES else math.inf
        try:
            if needed > memory:
                raise MemoryError
            return [np.empty((size, *leaf.shape), leaf.dtype) for leaf in self.row]
        except (MemoryError, ValueError) as error:  # more than NumPy can count
            raise value_error(
                self.function,
                f"the values of {size:,} points take {needed / 2**30:,.0f} GiB, and "
                f"this process may use {memory / 2**30:,.0f} GiB of memory.",
                "Keep less of them: a reduction by `reduce=`, or values on disk by "
                '`store="runs.zarr"`; or sweep over a part of the space, `space[a:b]`.',
            ) from error

    @abc.abstractmethod
    def unflatten(self, rows: Rows) -> PyTree:
        """Return the outputs of some rows as the user gets them."""

    @abc.abstractmethod
    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the half-open range of the points of a range of rows."""

    @abc.abstractmethod
    def at(self, space: Space, key: Key | None) -> "Work":
        """Return the same work for another space of the same structure."""

    @abc.abstractmethod
    def with_points(self, points: Any) -> "Work":
        """Return the same work on other points, such as in batches of another size."""

    @abc.abstractmethod
    def with_most(self, most: int) -> "Work":
        """Return the same work for calls of at most `most` rows."""


def whole(parts: Iterator[Part]) -> tuple[Rows, Verdict]:
    """Return the rows of a call that hands over nothing before its end."""
    ((_, values, verdict, _),) = parts
    return values, verdict


def in_order(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on consecutive rows, from the verdicts on parts."""
    if len(verdicts) == 1:
        return verdicts[0]
    missing = None
    if any(verdict.missing is not None for verdict in verdicts):
        missing = np.concatenate(
            [np.zeros_like(v.ok) if v.missing is None else v.missing for v in verdicts]
        )
    # An empty part of a space has no rows, and so no verdicts.
    ok = np.concatenate([np.zeros(0, bool), *(verdict.ok for verdict in verdicts)])
    errors = joined([verdict.errors for verdict in verdicts])
    return Verdict(ok, errors, missing, sum(verdict.failed for verdict in verdicts))


def joined(errors: Sequence[Errors]) -> Errors:
    """Return several mappings of errors as one, each text once."""
    by_text: dict[str, list[np.ndarray]] = {}
    for some in errors:
        for text, points in some.items():
            by_text.setdefault(text, []).append(points)
    return {text: np.sort(np.concatenate(points)) for text, points in by_text.items()}


def clear(values: Sequence[np.ndarray], place: Place) -> None:
    """Write NaN, or 0 if the dtype has no NaN, into rows without a result."""
    for leaf in values:
        leaf[place] = nothing(leaf.dtype)


def stretches_of(index: Index) -> list[tuple[int, int]]:
    """Return sorted numbers as half-open ranges."""
    if isinstance(index, range):
        return [(index.start, index.stop)]
    parts = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)]


# The limits of a container, for both versions of Linux's control groups. A file with
# "max" sets no limit.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def _memory() -> float:
    """Return the bytes of memory available to this process; infinity if unknown."""
    found = math.inf
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found = min(found, float(limit.read_text()))
    return found
