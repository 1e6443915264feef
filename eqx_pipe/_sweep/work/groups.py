"""Groups of points as work: a row for each group, to which its points are reduced.

A group is a run of consecutive points. There are two kinds. The points of a cell are
those along the dims that `over=` names; its row has the result, so cells are stored,
sent and merged like the outputs of a function of the cell. If all points are reduced to
one result, groups are blocks of fixed size: the row of a block has the states of
the reducers, which are merged in order.

Points are computed as in any sweep, a run of one group or of many groups at a time, and
a second program reduces the values of groups in parallel. For blocks one program does
both, where it can: it takes a third of the time, and no memory for values. States are
computed from values for blocks with a failed point, and if points are listed in a table
or need several programs.
"""

import abc
import dataclasses
import functools as ft
import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Int64

from ..._reduce import ReducerTree
from ..._run import TooLarge, Watch, compiled, differs, put, quiet, search
from ..._spaces import Space
from ..._tree import as_data, as_keys, struct_of
from ..._types import Key, PyTree
from ..._vmap import all_busy
from ..program.blocks import (
    MOST_BLOCKS,
    block_batches,
    block_lane,
    build_absorb,
    build_merge,
    call_blocks,
    filled_up,
)
from ..program.layout import CHUNK_BYTES, Arguments, Layout
from ..program.runner import Runner
from ..program.select import ByOffset
from ..trace.reducers import TracedReducers, trace_reducers
from ..trace.trace import abstract
from .buffer import Asked, Buffer, Errors, Rows, Verdict, joined, stretches_of
from .flight import Flight
from .points import Points
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


class _Call(NamedTuple):
    """A call for some rows, the first of which is the `row` of a buffer."""

    row: int
    buffer: Buffer
    watch: Watch


_T = TypeVar("_T")
_Steps: TypeAlias = Generator[tuple[int, int], None, _T]
"""Yields the points of each device call, and how many failed; returns the rest."""

_Made: TypeAlias = tuple[Rows, Verdict]


def _ended(steps: _Steps[_T]) -> _T:
    """Return what some steps return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@dataclasses.dataclass(frozen=True, eq=False)
class Groups(Work):
    """Groups of `each` points; `most` rows may be merged at once."""

    points: Points
    reducers: ReducerTree
    each: int
    most: int = 0

    function = "sweep"

    @property
    def size(self) -> int:
        """The number of groups."""
        return -(-self.points.size // self.each)

    def at(self, space: Space, key: Key | None) -> "Groups":
        """Return the groups of another space of the same structure."""
        return dataclasses.replace(self, points=self.points.at(space, key))

    def with_points(self, points: Points) -> "Groups":
        """Return the groups of points in batches of another size."""
        return groups_of(points, self.reducers)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the half-open range of the points of a range of groups."""
        return first * self.each, min(last * self.each, self.points.size)

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""
        return jtu.tree_leaves(self.outputs)

    @property
    @abc.abstractmethod
    def at_once(self) -> int:
        """The maximum number of groups computed at once."""

    @abc.abstractmethod
    def _some(self, first: int, last: int, call: _Call) -> _Steps[_Made]:
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
                    continue  # they were finished before
                call = _Call(begin, buffer, watch)
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

    def _points_of(self, most: int) -> Points:
        """Return the points for calls of at most `most` of them."""
        return dataclasses.replace(self.points, most=most, ordered=False, turns=False)

    @property
    def _home(self) -> jax.sharding.SingleDeviceSharding:
        """The device on which values are reduced and states are merged."""
        return jax.sharding.SingleDeviceSharding(self.points.devices[0])

    @property
    def _num_bits(self) -> int:
        """The number of points for which a row has a bit: true if it failed."""
        return 0

    def _reduce(
        self, first: int, count: int, side: int, run: int, call: _Call
    ) -> _Steps[_Tally]:
        """Reduce the points of `count` groups from `first` on, a `run` of each at once.

        The group `first + k` has the lane k of `side`. The number of lanes and the run
        depend on the space, the outputs and the batch size only, so that nothing else
        changes the bits of a state.
        """
        shape, live = (side, self._num_bits), np.arange(side) < count
        missing, (points, failed) = np.zeros(side, bool), np.zeros((2, side), np.int64)
        arrays = live, missing, points, failed, np.zeros(shape, bool)
        tally = _Tally(call.row, *arrays, self._initial(side, run))
        inner = self._points_of(side * run)
        resumed, call.buffer.resumed = call.buffer.resumed, None
        if resumed is not None:
            tally = tally.resumed(resumed)
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
                # These groups stay in flight, as they were before this run.
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

        # The whole key of a program takes long to compare.
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


# Between two runs of points the bar is updated and Ctrl-C is checked. The exact number
# does not matter.
_MOST_POINTS = 2**16


class Cells(Groups):
    """The results of cells, a row for each.

    Cells are finished before the next ones begin. No program depends on the number of
    cells in a call.
    """

    def with_most(self, most: int) -> "Cells":
        """Return the same cells."""
        return self

    @ft.cached_property
    def _tile(self) -> tuple[int, int]:
        """The number of cells computed at once, and of points of each in a run."""
        points = self.points
        room = CHUNK_BYTES // max(points.row_bytes, self.reducing(1).state_bytes)
        room = max(1, min(room, _MOST_POINTS))
        run = max(1, min(self.each, room))
        return max(1, min(self.size, room // run)), run

    @property
    def at_once(self) -> int:
        """The maximum number of cells computed at once."""
        return self._tile[0]

    @ft.cached_property
    def outputs(self) -> PyTree:
        """The shapes and dtypes of the result of a cell."""
        run = self._tile[1]
        states = self._states(self._initial(1, run), run)
        results = self.reducers.finish_each(states, 1)
        return jtu.tree_map(lambda leaf: struct_of(leaf, drop=1), results)

    @property
    def unit(self) -> int:
        """The number of cells whose points fill all lanes."""
        return -(-self.points.unit // self.each)

    def unflatten(self, rows: Rows) -> PyTree:
        """Return the results of cells, from the leaves of their rows."""
        return jtu.tree_unflatten(jtu.tree_structure(self.outputs), rows)

    def _some(self, first: int, last: int, call: _Call) -> _Steps[_Made]:
        """Compute the rows of cells at once; a row is ok if it has a value.

        Errors are numbered by the cells whose points failed.
        """
        (side, run), count = self._tile, last - first
        tally = yield from self._reduce(first, count, side, run, call)
        points, failed, missing = (
            leaf[:count] for leaf in (tally.points, tally.failed, tally.missing)
        )
        ended = self._states([np.asarray(leaf)[:count] for leaf in tally.states], run)
        rows = list(jtu.tree_leaves(self.reducers.finish_each(ended, count)))
        ok, errors = (points > failed) & ~missing, joined(tally.errors).items()
        cells = {text: np.unique(at // self.each) for text, at in errors}
        return rows, Verdict(ok, cells, missing, int(failed.sum()))


class BlockStates(eqx.Module):
    """The states of the reducers, and as bits which points of a block failed."""

    state: PyTree
    failed: PyTree


class Blocks(Groups):
    """The states of blocks, a row for each; they are merged to one result.

    The points of a block depend on the number of points and the batch size only, and
    the state of a block does not depend on other blocks.
    """

    is_merged = True

    def with_most(self, most: int) -> "Blocks":
        """Return the same blocks for calls of at most `most` of them."""
        return dataclasses.replace(self, most=most)

    @property
    def _bytes(self) -> int:
        """The number of bytes that have a bit for each point of a block."""
        return -(-self.each // 8)

    @property
    def _init(self) -> TracedReducers:
        return self.reducing(self.points.batch_size)

    @ft.cached_property
    def outputs(self) -> BlockStates:
        """The shapes and dtypes of the states of a block, and of its failed points."""
        states = list(map(abstract, map(as_data, self._init.init)))
        bits = jax.ShapeDtypeStruct((self._bytes,), jnp.uint8)
        return self.unflatten([*states, bits])

    def unflatten(self, rows: Sequence[Any]) -> BlockStates:
        """Return the states of blocks, and the bits of their failed points."""
        states = jtu.tree_unflatten(self._init.structure, rows[:-1])
        return BlockStates(
            jtu.tree_unflatten(self.reducers.structure, states), rows[-1]
        )

    @property
    def at_once(self) -> int:
        """The maximum number of blocks that one call of a program computes."""
        if not self.in_order:
            room = CHUNK_BYTES // (self.points.row_bytes * self.each)
            return max(1, min(room, MOST_BLOCKS))
        devices, state_bytes = len(self.points.devices), self._init.state_bytes
        return devices * call_blocks(self.points.size, self.each, devices, state_bytes)

    @property
    def in_memory(self) -> int:
        """The number of blocks of a chunk that is kept in memory."""
        return max(1, min(self.at_once, self.size))

    @property
    def unit(self) -> int:
        """The number of blocks that fill all lanes."""
        return len(self.points.devices)

    @property
    def in_order(self) -> bool:
        """True if one program computes points and reduces them."""
        # Otherwise points are listed in a table, need several programs, or take so long
        # that a call may end inside of a batch.
        geometry = self.points.geometry
        listed = geometry.static_dims or geometry.rows is not None
        return not (listed or self.points.is_split)

    def _some(self, first: int, last: int, call: _Call) -> _Steps[_Made]:
        """Compute the rows of blocks; a row is ok if none of its points failed."""
        if not self.in_order:
            return (yield from self._by_values(first, last, self.at_once, call))
        while True:
            try:
                with quiet():
                    rows, verdict = self._fused(first, last)
                break
            except TooLarge as error:
                size = error.batch_size
                # A block must still consist of whole batches.
                smaller = [n for n in range(1, size // 2 + 1) if size % n == 0]
                self.points.halve(error, *smaller)
        begin, end = self.span(first, last)
        yield end - begin, verdict.failed
        return rows, verdict

    def _fused(self, first: int, last: int) -> tuple[Rows, Verdict]:
        """Compute and reduce blocks at once; reduce failed blocks from values."""
        points, count = self.points, last - first
        runner, args = self._compiled()
        rows = self.empty(count)
        rows[-1][:] = 0
        begin, end = self.span(first, last)
        blocks = ByOffset(points.geometry.start + begin, self.each, points.size - begin)
        compute = ft.partial(runner.compute, args, blocks, rows[:-1])
        errors: list[Errors] = []
        if compute(0, count) is not None:
            for at, _ in search(compute, 0, count, only_first=not points.isolated):
                block = first + at
                call = _Call(0, Buffer(Asked(0, 0, 1), []), Watch())
                steps = self._by_values(block, block + 1, 1, call)
                alone, verdict = _ended(steps)
                for leaf, value in zip(rows, alone, strict=True):
                    leaf[at] = value[0]
                errors.append(verdict.errors)
            if not points.isolated:
                # Otherwise the error has named the failed point.
                raise differs(points.function, end - begin)
        return rows, _verdict(rows[-1], joined(errors))

    def _compiled(self) -> tuple[Runner, Arguments]:
        """Return the program that computes and reduces points, with its arguments."""
        points, name = self.points, ("blocks", self.points.largest_batch)
        args = points.on_devices(name, self._arguments)
        return points.programs.get(name, lambda: self._runner(args)), args

    def program(self) -> jax.stages.Compiled:
        """Return that program compiled, without placing its arguments."""
        return self._runner(self._arguments()).kernel

    @property
    def _layout(self) -> Layout:
        points = self.points
        return points.layout(
            batch_size=1,
            capacity=self.at_once // len(points.devices),
            unsplit=all_busy(points.devices, self.size),
            within=points.largest_batch,
        )

    def _arguments(self) -> Arguments:
        reducing = self.reducing(self.points.largest_batch)
        constants = reducing.absorb.fingerprint.constants
        args = self.points.arguments(0, self._layout)
        return args._replace(init=reducing.init, reducer_constants=constants)

    def _runner(self, args: Arguments) -> Runner:
        points, traced, layout = self.points, self.points.traced[0], self._layout
        reducing = self.reducing(points.largest_batch)
        programs = [traced.fingerprint, reducing.absorb.fingerprint]
        lane = block_lane(traced, reducing, layout)
        blocks = ByOffset(points.geometry.start, self.each, points.size)
        made = traced, programs, lane, self.row[:-1], layout, blocks, args
        return Runner(*made, finite=False)

    def _by_values(
        self, first: int, last: int, side: int, call: _Call
    ) -> _Steps[_Made]:
        """Compute the values of at most `side` blocks, and reduce them."""
        count, run = last - first, self._run_of_values
        tally = yield from self._reduce(first, count, side, run, call)
        rows = [np.asarray(leaf)[:count] for leaf in tally.states]
        rows.append(np.packbits(tally.bits[:count], axis=1))
        errors = joined(tally.errors)
        return rows, _verdict(rows[-1], errors, tally.missing[:count])

    @property
    def _num_bits(self) -> int:
        return 8 * self._bytes

    @property
    def _run_of_values(self) -> int:
        return min(self.each, max(1, CHUNK_BYTES // self.points.row_bytes))

    # Rows are copied to a device to be merged, so that states from a store or a worker
    # are merged like those computed here.

    def begin(self) -> list[Array]:
        """Return the state of no points."""
        return put(self._init.init, self._home)

    def merge(self, state: list[Array], values: Rows) -> list[Array]:
        """Return the state after some rows, in order.

        There are at most `most` rows, so that one program suffices.
        """
        reducing = self._init
        full = filled_up(values[:-1], reducing.init, self.most)
        states = list(map(as_keys, jax.device_put(full, self._home), reducing.init))
        program = reducing.merge.fingerprint
        constants = put(program.constants, self._home)
        args = state, states, np.int32(len(values[-1])), constants
        lower = ft.partial(build_merge(reducing).lower, *args)
        key = "merge", self.most, self.points.devices[0]
        return compiled([program], key, lower)(*args)

    def gap(self, count: int) -> Rows:
        """Return rows of missing blocks, as if all of their points had failed."""
        run, live = self._run_of_values, np.ones(1, bool)
        states = self._initial(1, run)
        values = [np.zeros((1, run, *s.shape), s.dtype) for s in self.points.row]
        for _ in range(0, self.each, run):
            states = self._absorb(states, values, np.zeros((1, run), bool), live)
        rows = [np.concatenate([np.asarray(leaf)] * count) for leaf in states]
        # No bits are set, since missing points are not known to have failed.
        return [*rows, np.zeros((count, self._bytes), np.uint8)]

    def finish(self, state: list[Array]) -> PyTree:
        """Return the reduction."""
        return self.reducers.finish(jtu.tree_unflatten(self._init.structure, state))


def _verdict(
    bits: np.ndarray, errors: Errors, missing: Bool[np.ndarray, " blocks"] | None = None
) -> Verdict:
    """Return the verdict on blocks, from the bits of their failed points."""
    ok = ~bits.any(axis=1)
    if missing is not None:
        ok &= ~missing
    return Verdict(ok, errors, missing, int(np.sum(np.unpackbits(bits))))


def groups_of(points: Points, reducers: ReducerTree) -> Groups:
    """Return the cells of some points, or their blocks if all are reduced."""
    if reducers.over is not None:
        dims = points.geometry.dims
        return Cells(points, reducers, math.prod(dims[name] for name in reducers.over))
    size, batch_size = points.size, points.batch_size
    each = batch_size * block_batches(size, batch_size)
    blocks = Blocks(points, reducers, each)
    return blocks.with_most(blocks.at_once)
