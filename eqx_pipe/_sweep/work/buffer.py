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
from ..._jaxprs import digest
from ..._run import Stopped, Watch, nothing
from ..._spaces import Space
from ..._types import Key, PyTree
from ..program.layout import CHUNK_BYTES, Place, nbytes
from .flight import Flight

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


class Asked(NamedTuple):
    """Rows to compute: those of a chunk from `first` to before `last`, or some of them.

    `rows` are their numbers in the chunk, and `costs` the costs of their points.
    """

    number: int
    first: int
    last: int
    rows: Int64[np.ndarray, " rows"] | None = None
    costs: Float[np.ndarray, " rows"] | None = None

    @property
    def numbers(self) -> Index:
        """The numbers of the rows; consecutive ones are a range, without a table."""
        every = range(self.first, self.last)
        return every if self.rows is None else self.first + self.rows

    @property
    def costs_text(self) -> str:
        """The digest of the costs."""
        return "" if self.costs is None else digest(self.costs.tobytes())


class Chunk(NamedTuple):
    """Computed rows of a chunk: all rows, or those with the numbers `rows`.

    The verdict marks rows that are still missing because the computation ended early;
    the points in `flight` among them can go on in another call. `values` is empty if a
    worker has written them.
    """

    number: int
    rows: Int64[np.ndarray, " rows"] | None
    values: Rows
    verdict: Verdict
    flight: Flight | None = None


class Buffer:
    """The rows that a call has asked for while they are computed.

    A row is first computed (`finish`), perhaps without a result (`fail`), and then
    handed over once, in a `part`. Whoever fills the buffer sets `in_flight` to a
    function that returns the points that are computed at the moment, if they can go on
    elsewhere, and takes `resumed`, with which to go on.
    """

    def __init__(self, asked: Asked, values: Rows, resumed: Flight | None = None):
        self.asked, self.index, self.values = asked, asked.numbers, values
        self.in_flight: Callable[[], Flight] | None = None
        self._handed, self._done = np.zeros((2, len(self.index)), bool)
        self._ok: Bool[np.ndarray, " rows"] | None = None
        self._errors: list[Errors] = []
        self._failed = 0
        self.resumed = None if resumed is None else self._taken_from(resumed)

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

    def part(self, whole: bool) -> Iterator[Chunk]:
        """Yield the rows that were finished since the last part, and what is in flight.

        The first part of a call has all rows, some of which may be missing, so that it
        makes a chunk that does not exist; later ones have the new rows only. If rows
        may only be handed over as a `whole`, finished ones wait in the flight.
        """
        ends = bool(self._done.all())
        waits = whole and not ends
        new = self._done & ~self._handed & (not waits)
        is_first = not self._handed.any() and (ends or bool(new.any()))
        self._handed = self._handed | new
        flight = None
        if self.in_flight is not None and not ends:
            costs = self.asked.costs_text
            flight = self.saved()._replace(rows=self.asked.rows, costs=costs)
        if not (new.any() or is_first or flight is not None):
            return
        rows, (values, verdict) = self.asked.rows, self.rows()
        if not is_first:
            at = np.flatnonzero(new)
            rows, values = at if rows is None else rows[at], [x[at] for x in values]
            verdict = dataclasses.replace(verdict, ok=verdict.ok[at], missing=None)
        if waits:
            verdict = Verdict(verdict.ok)
        else:  # otherwise they are in the flight
            self._errors, self._failed = [], 0
        yield Chunk(self.asked.number, rows, values, verdict, flight)

    def rows(self) -> tuple[Rows, Verdict]:
        """Return all rows; those that are not computed are missing."""
        done, ok = self._done, self._ok
        if ok is None:  # without failures it takes no memory
            ok = np.broadcast_to(np.True_, (len(done),))
        verdict = Verdict(ok, joined(self._errors), failed=self._failed)
        if done.all():
            return self.values, verdict
        clear(self.values, ~done)
        return self.values, dataclasses.replace(verdict, ok=ok & done, missing=~done)

    def saved(self) -> Flight:
        """Return the points in flight, with what this buffer adds."""
        assert self.in_flight is not None
        flight, waiting = self.in_flight(), self._done & ~self._handed
        ok = np.ones(len(waiting), bool) if self._ok is None else self._ok
        added = [self._handed, waiting, ok, *(leaf[waiting] for leaf in self.values)]
        errors = {text: at.tolist() for text, at in joined(self._errors).items()}
        failed = [*flight.entries.get("failed", []), errors]
        count = waiting.sum()
        text = f"{count:,} finished in a chunk that is not" if count else ""
        return flight._replace(
            text=", ".join(filter(None, [text, flight.text])),
            buffers=[*flight.buffers, added],
            entries={**flight.entries, "failed": failed},
        )

    def _taken_from(self, flight: Flight) -> Flight:
        """Take what `saved` has added, and return the rest."""
        *buffers, (handed, waiting, ok, *values) = flight.buffers
        *failed, errors = flight.entries["failed"]
        self._handed, self._done = handed, handed | waiting
        for into, leaf in zip(self.values, values, strict=True):
            into[waiting] = leaf
        if errors:
            self._ok = ok
            self._errors = [{text: np.array(at) for text, at in errors.items()}]
        entries = {**flight.entries, "failed": failed}
        return flight._replace(buffers=buffers, entries=entries)


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
        self, asked: Asked, watch: Watch, resumed: Flight | None = None
    ) -> Iterator[Chunk]:
        """Compute rows, and yield them: in one part unless `watch` asks for more.

        Points of similar cost share a batch. A `resumed` flight goes on, and rows that
        it has handed over before are omitted.
        """
        watch.restart()
        buffer = Buffer(asked, self.empty(len(asked.numbers)), resumed)
        try:
            for points, failed in self._calls(buffer, watch):
                if watch.after(points, failed):
                    with watch.saving():
                        yield from buffer.part(watch.whole)
        except Stopped:
            if not watch.stopping():  # another sweep was to be stopped
                raise
        yield from buffer.part(watch.whole)

    @abc.abstractmethod
    def _calls(self, buffer: Buffer, watch: Watch) -> Iterator[tuple[int, int]]:
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


def whole(parts: Iterator[Chunk]) -> tuple[Rows, Verdict]:
    """Return the rows of a call that hands over nothing before its end."""
    ((_, _, values, verdict, _),) = parts
    return values, verdict


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
    available = math.inf
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows
        available = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            available = min(available, float(limit.read_text()))
    return available
