"""Groups of points as rows: their points are computed run by run, and reduced.

A group is a number of consecutive points. There are two kinds: cells (`cells.py`),
whose rows have results, and blocks (`blocks.py`), whose rows have states that are
merged.

Points are computed as in any sweep, a run of one group or of many groups at a time, and
a second program reduces the values of groups in parallel.
"""

import abc
import dataclasses
import functools as ft
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Int64

from ..._reduce import ReducerTree
from ..._run import Watch, compiled, put
from ..._tree import as_data, as_keys
from ..._types import PyTree
from ..program.blocks import build_absorb
from ..trace.reducers import TracedReducers, trace_reducers
from .buffer import Asked, Buffer, Errors, Rows, Verdict, joined, stretches_of
from .flight import Flight
from .point_rows import PointRows
from .work import Work


@dataclasses.dataclass
class _Tally:
    """The state of groups after some points of each, up to the point `begin`.

    The first group has the `row` of a buffer, and `inner` has the points of the next
    run. Groups are `live` if they need more points, and `missing` if some were not
    computed.
    There are numbers of their points and of those that failed, and `bits` of them.
    """

    row: int
    live: Bool[np.ndarray, " side"]
    missing: Bool[np.ndarray, " side"]
    points: Int64[np.ndarray, " side"]
    failed: Int64[np.ndarray, " side"]
    bits: Bool[np.ndarray, "side bits"]
    states: list[Array]
    errors: list[Errors] = dataclasses.field(default_factory=list)
    begin: int = 0
    inner: Buffer | None = None

    def flight(self) -> Flight:
        """Return the points in flight, with these groups."""
        assert self.inner is not None
        arrays = self.live, self.missing, self.points, self.failed, self.bits
        errors = {text: at.tolist() for text, at in joined(self.errors).items()}
        flight, place = self.inner.saved(), {"row": self.row, "begin": self.begin}
        entries = {**flight.entries, **place, "errors": errors}
        groups = [*arrays, *map(np.asarray, self.states)]
        return flight._replace(groups=groups, entries=entries)

    def resumed(self, flight: Flight) -> "_Tally":
        """Return the groups of a flight."""
        live, missing, points, failed, bits, *states = flight.groups
        pairs = zip(states, self.states, strict=True)
        states = [jax.device_put(x, like.sharding) for x, like in pairs]
        texts, begin = flight.entries["errors"].items(), flight.entries["begin"]
        errors: Errors = {text: np.array(at) for text, at in texts}
        arrays = live, missing, points, failed, bits
        return _Tally(self.row, *arrays, states, [errors], begin)


class Call(NamedTuple):
    """A call for some rows, the first of which is the `row` of a buffer."""

    row: int
    buffer: Buffer
    watch: Watch


_T = TypeVar("_T")
Steps: TypeAlias = Generator[tuple[int, int], None, _T]
"""Yields the points of each device call, and how many failed; returns the rest."""

Computed: TypeAlias = tuple[Rows, Verdict]


def ended(steps: Steps[_T]) -> _T:
    """Return what some steps return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@dataclasses.dataclass(frozen=True, eq=False)
class Groups(Work):
    """Groups of `each` points, whose rows are what `reducers` make of them."""

    reducers: ReducerTree

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""
        return jtu.tree_leaves(self.outputs)

    @property
    @abc.abstractmethod
    def at_once(self) -> int:
        """The maximum number of groups computed at once."""

    @abc.abstractmethod
    def _some(self, first: int, last: int, call: Call) -> Steps[Computed]:
        """Compute at most `at_once` neighbouring rows."""

    def _calls(self, buffer: Buffer, watch: Watch) -> Iterator[tuple[int, int]]:
        done = 0
        for first, last in stretches_of(buffer.index):
            for at in range(first, last, self.at_once):
                if watch.stopping():
                    return
                until, begin = min(last, at + self.at_once), done
                done += until - at
                if buffer.resumed and buffer.resumed.entries["row"] != begin:
                    continue  # they were finished before, and are in the buffer
                call = Call(begin, buffer, watch)
                rows, verdict = yield from self._some(at, until, call)
                place = np.arange(begin, done)
                for leaf, new in zip(buffer.values, rows, strict=True):
                    leaf[begin:done] = new
                wrong = ~verdict.ok
                if verdict.missing is not None:
                    place, wrong = place[~verdict.missing], wrong & ~verdict.missing
                if verdict.errors or wrong.any():
                    wrong = begin + np.flatnonzero(wrong)
                    buffer.fail(wrong, verdict.errors, verdict.failed)
                buffer.finish(place)
                yield 0, 0

    def reducing(self, count: int) -> TracedReducers:
        """Return the reducers for `count` points at once."""
        first = self.points.traced[0]
        make = ft.partial(trace_reducers, self.reducers, first, count)
        return self.points.programs.get(("reducers", count), make)

    @property
    def _home(self) -> jax.sharding.SingleDeviceSharding:
        """The device on which values are reduced and states are merged."""
        return jax.sharding.SingleDeviceSharding(self.points.devices[0])

    @property
    def _num_bits(self) -> int:
        """The number of points for which a row has a bit: true if it failed."""
        return 0

    def _reduce(
        self, first: int, count: int, side: int, run: int, call: Call
    ) -> Steps[_Tally]:
        """Reduce the points of `count` groups from `first` on, a `run` of each at once.

        The group `first + k` has the lane k of `side`. The number of lanes and the run
        depend on the space, the outputs and the batch size only, so that nothing else
        changes the bits of a state.
        """
        shape, live = (side, self._num_bits), np.arange(side) < count
        missing, (points, failed) = np.zeros(side, bool), np.zeros((2, side), np.int64)
        arrays = live, missing, points, failed, np.zeros(shape, bool)
        tally = _Tally(call.row, *arrays, self._initial(side, run))
        inner = PointRows(self.points.with_most(side * run))
        resumed, call.buffer.resumed = call.buffer.resumed, None
        if resumed is not None:
            tally = tally.resumed(resumed)
        # Runs are the same in every call, whatever was in flight: a state that absorbs
        # the same points in other runs rounds otherwise.
        for begin in range(tally.begin, self.each, run):
            lanes, length = np.flatnonzero(tally.live), min(run, self.each - begin)
            start = first * self.each + begin
            # All points of adjacent groups, or consecutive points of one group; the
            # last group may have fewer.
            index = range(start, min(start + len(lanes) * length, inner.size))
            if not len(index):
                break
            some = Asked(0, index.start, index.stop)
            buffer = Buffer(some, inner.empty(len(index)), resumed)
            resumed, tally.begin, tally.inner = None, begin, buffer
            # The outer buffer is left whenever the inner one can be.
            for step in inner._calls(buffer, call.watch):
                call.buffer.in_flight = tally.flight if buffer.in_flight else None
                yield step
            if call.buffer.in_flight and call.watch.stopping():
                # These groups stay in flight, as they were before this run: the flight
                # has their states and what the run has finished, so neither is absorbed
                # twice. They count as missing in what is handed over.
                missing = tally.missing | tally.live
                return dataclasses.replace(tally, missing=missing, errors=[])
            call.buffer.in_flight = None
            values, verdict = buffer.rows()
            absent = np.zeros(len(index), bool)
            if verdict.missing is not None:
                absent = verdict.missing
            full = ft.partial(_full, lanes=lanes, length=length, shape=(side, run))
            ok, wrong = full(verdict.ok), full(~(verdict.ok | absent))
            leaves = [full(leaf) for leaf in values]
            tally.states = self._absorb(tally.states, leaves, ok, tally.live)
            tally.points[lanes] += length
            tally.failed += wrong.sum(axis=1)
            tally.bits[:, begin : begin + length] = wrong[:, : min(length, shape[1])]
            tally.errors.append(verdict.errors)
            tally.missing |= full(absent).any(axis=1)
            tally.live &= ~tally.missing
        if tally.missing.any():  # they begin again, so their failed points do not count
            tally.bits[tally.missing], tally.failed[tally.missing] = False, 0
            errors, gone = (
                joined(tally.errors).items(),
                first + np.flatnonzero(tally.missing),
            )
            tally.errors = [
                {x: at[~np.isin(at // self.each, gone)] for x, at in errors}
            ]
        return tally

    def _initial(self, side: int, run: int) -> list[Array]:
        """Return the states of no points, along a leading axis."""
        init = [np.asarray(as_data(leaf)) for leaf in self.reducing(run).init]
        full = [np.broadcast_to(leaf, (side, *leaf.shape)) for leaf in init]
        return jax.device_put(full, self._home)

    def _absorb(
        self,
        states: list[Array],
        values: Rows,
        ok: Bool[np.ndarray, "side run"],
        live: Bool[np.ndarray, " side"],
    ) -> list[Array]:
        """Return the states of live groups after the `ok` values."""
        reducing = self.reducing(ok.shape[1])
        absorb = reducing.absorb.fingerprint
        args = states, values, ok, live, put(absorb.constants, self._home)
        key = "groups", *ok.shape, self.points.devices[0]

        def make() -> Any:
            lower = ft.partial(build_absorb(reducing).lower, *args)
            return compiled([absorb], key, lower)

        # The whole key of a program takes long to compare, once for each run.
        return self.points.programs.get(key, make)(*args)

    def _states(self, leaves: Sequence[Any], run: int) -> list[PyTree]:
        """Return the states of the reducers from raw data."""
        reducing = self.reducing(run)
        on_host = [np.asarray(leaf) for leaf in leaves]
        keys = list(map(as_keys, on_host, reducing.init))
        return jtu.tree_unflatten(reducing.structure, keys)


def _full(
    leaf: np.ndarray,
    *,
    lanes: Int64[np.ndarray, " live"],
    length: int,
    shape: tuple[int, int],
) -> np.ndarray:
    """Return values padded with zeros to the lanes and points of the program."""
    short = np.zeros((len(lanes) * length - len(leaf), *leaf.shape[1:]), leaf.dtype)
    leaf = np.concatenate([leaf, short]) if len(short) else leaf
    leaf = leaf.reshape((len(lanes), length, *leaf.shape[1:]))
    if leaf.shape[:2] == shape:
        return leaf
    full = np.zeros((*shape, *leaf.shape[2:]), leaf.dtype)
    full[lanes, :length] = leaf
    return full
