"""The rows of a call: those asked for, those computed so far, and those handed over."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int64

from ..._jaxprs import digest
from ..._run import nothing
from ..program.layout import Place
from .flight import Flight, RowState

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
    handed over once, in a `part`: its `RowState` rises. Whoever fills the buffer sets
    `in_flight` to a function that returns the points that are computed at the moment,
    if they can go on elsewhere, and takes `resumed`, with which to go on.
    """

    def __init__(self, asked: Asked, values: Rows, resumed: Flight | None = None):
        self.asked, self.index, self.values = asked, asked.numbers, values
        self.in_flight: Callable[[], Flight] | None = None
        self._states = np.zeros(len(self.index), np.int8)
        self._ok: Bool[np.ndarray, " rows"] | None = None
        self._errors: list[Errors] = []
        self._failed = 0
        self.resumed = None if resumed is None else self._taken_from(resumed)

    def finish(self, place: Place) -> None:
        """Record that some rows are computed, failed ones included."""
        self._states[place] = RowState.FINISHED

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
        number, asked, states = self.asked.number, self.asked.rows, self._states
        ends, is_first = bool(states.all()), not (states == RowState.HANDED).any()
        if ends and is_first:  # the usual case, without masks of all rows
            states[:] = RowState.HANDED
            yield Chunk(number, asked, *self.rows())
            return
        # They are handed over before the flight is saved: it counts only what whoever
        # keeps both has written first.
        waits = whole and not ends
        new = np.flatnonzero((states == RowState.FINISHED) & (not waits))
        states[new] = RowState.HANDED
        flight = None
        if self.in_flight is not None and not ends:
            costs = self.asked.costs_text
            flight = self.saved()._replace(rows=asked, costs=costs)
        if not len(new):
            if flight is not None:
                yield Chunk(number, new, [], Verdict(np.zeros(0, bool)), flight)
            return
        rows, (values, verdict) = asked, self.rows()
        if not is_first:
            rows = new if asked is None else asked[new]
            values = [leaf[new] for leaf in values]
            verdict = dataclasses.replace(verdict, ok=verdict.ok[new], missing=None)
        self._errors, self._failed = [], 0
        yield Chunk(number, rows, values, verdict, flight)

    def rows(self) -> tuple[Rows, Verdict]:
        """Return all rows; those that are not computed are missing."""
        done, ok = self._states != RowState.WAITING, self._ok
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
        flight, waiting = self.in_flight(), self._states == RowState.FINISHED
        ok = np.ones(len(waiting), bool) if self._ok is None else self._ok
        handed = self._states == RowState.HANDED
        added = [handed, waiting, ok, *(leaf[waiting] for leaf in self.values)]
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
        self._states[waiting] = RowState.FINISHED
        self._states[handed] = RowState.HANDED
        for into, leaf in zip(self.values, values, strict=True):
            into[waiting] = leaf
        if errors:
            self._ok = ok
            self._errors = [{text: np.array(at) for text, at in errors.items()}]
        entries = {**flight.entries, "failed": failed}
        return flight._replace(buffers=buffers, entries=entries)


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
