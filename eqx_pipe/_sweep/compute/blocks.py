"""The blocks of a reduced sweep: fixed runs of points, with a state for each.

A program computes points and reduces them. States are computed from values for blocks
with a failed point, and if points are listed in a table or need several programs.

A row has the leaves of a block's state and, as bits, which of its points failed. A
store keeps rows and a worker returns rows, so rows are also merged here.
"""

import copy
import functools as ft
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from ..._progress import Progress
from ..._reduce import ReducerTree
from ..._spaces import Space
from ..._tree import as_data, as_keys
from ..._types import Key, PyTree
from ..._vmap import all_busy
from .cases import ByBlock
from .failure import Errors, TooLarge, Verdict, differs, joined, search
from .groups import BlockStates, Groups, OfPoints, home_of
from .kernel import Given, everywhere
from .points import Points
from .programs import Runner, compiled, put, quiet
from .reduce_programs import (
    MOST_BLOCKS,
    block_batches,
    block_lane,
    build_merge,
    call_blocks,
    filled_up,
    trace_reducers,
)
from .rows import CHUNK_BYTES, Rows, empty_values
from .trace import struct_of


class Blocks(OfPoints):
    """The states of blocks, a row for each.

    The points of a block depend on the number of points and the batch size only, and
    the state of a block does not depend on other blocks.
    """

    def __init__(self, points: Points, reducers: ReducerTree):
        self.points, self.reducers = points, reducers
        self.each = points.batch_size * block_batches(points.size, points.batch_size)
        """The number of points in a block."""
        self._bytes = -(-self.each // 8)
        """The number of bytes that have a bit for each point of a block."""
        self.size = -(-points.size // self.each)
        self.reducing = trace_reducers(reducers, points.traced[0], points.batch_size)
        self.home = home_of(points)
        self.most = self.at_once
        """The maximum number of blocks in one call of `compute` or of a merge."""
        self._renew()

    def _renew(self) -> None:
        """Forget programs with their arguments."""
        self._runner: tuple[Runner, Given] | None = None
        self._groups: dict[int, Groups] = {}
        # Threads of an executor share the programs of a sweep.
        self._lock = threading.Lock()

    def at(self, space: Space, key: Key | None) -> "Blocks":
        """Return the blocks of another space of the same structure."""
        blocks = copy.copy(self)
        blocks.points = self.points.at(space, key)
        blocks._renew()
        return blocks

    def with_batch_size(self, batch_size: int) -> "Blocks":
        """Return the blocks for batches of another size."""
        return Blocks(self.points.with_batch_size(batch_size), self.reducers)

    def with_most(self, most: int) -> "Blocks":
        """Return the same blocks for calls of at most `most` of them."""
        blocks = copy.copy(self)
        blocks.most = most
        blocks._renew()
        return blocks

    @property
    def outputs(self) -> BlockStates:
        """The shapes and dtypes of the states of a block, and of its failed points."""
        states = list(map(struct_of, map(as_data, self.reducing.init)))
        bits = jax.ShapeDtypeStruct((self._bytes,), jnp.uint8)
        return self.unflatten([*states, bits])

    def unflatten(self, rows: Sequence[Any]) -> BlockStates:
        """Return the states of blocks, and the bits of their failed points."""
        state = jtu.tree_unflatten(self.reducers.structure, self._states(rows[:-1]))
        return BlockStates(state, rows[-1])

    @property
    def at_once(self) -> int:
        """The maximum number of blocks that one call of a program computes."""
        if not self._in_order:
            room = CHUNK_BYTES // (self.points.row_bytes * self.each)
            return max(1, min(room, MOST_BLOCKS))
        devices, state_bytes = len(self.points.devices), self.reducing.state_bytes
        return devices * call_blocks(self.points.size, self.each, devices, state_bytes)

    @property
    def unit(self) -> int:
        """The number of blocks that fill all lanes."""
        return len(self.points.devices)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the half-open range of the points of a range of blocks."""
        return first * self.each, min(last * self.each, self.points.size)

    @property
    def _in_order(self) -> bool:
        # Otherwise points are listed in a table, or need several programs.
        geometry = self.points.geometry
        return not geometry.static_dims and geometry.rows is None

    def some(self, first: int, last: int, bar: Progress) -> tuple[Rows, Verdict]:
        """Compute the rows of blocks; a row is ok if none of its points failed."""
        if self._in_order:
            rows, errors = self._fitting(first, last)
            begin, end = self.span(first, last)
            bar.done(end - begin)
        else:
            rows, errors = self._by_values(first, last, self.at_once, bar)
        failed = int(np.sum(np.unpackbits(rows[-1])))
        return rows, Verdict(~rows[-1].any(axis=1), errors, None, failed)

    def _fitting(self, first: int, last: int) -> tuple[Rows, Errors]:
        """Compute and reduce blocks at once, in batches that fit into memory."""
        while True:
            try:
                with quiet():
                    return self._fused(first, last)
            except TooLarge as error:
                size = error.batch_size
                # A block must still consist of whole batches.
                smaller = [n for n in range(1, size // 2 + 1) if size % n == 0]
                self.points.halve(error, *smaller)
            with self._lock:
                points = self.points
                given = self.reducers, points.traced[0], points.batch_size
                self.reducing, self._runner = trace_reducers(*given), None

    def _fused(self, first: int, last: int) -> tuple[Rows, Errors]:
        """Compute and reduce blocks at once; reduce failed blocks from values."""
        points, count = self.points, last - first
        runner, given = self._compiled()
        rows = empty_values(count, self.row)
        rows[-1][:] = 0
        begin, _ = self.span(first, last)
        blocks = ByBlock(points.geometry.start + begin, self.each, points.size - begin)

        compute = ft.partial(runner.compute, given, blocks, rows[:-1])
        errors = []
        if compute(0, count) is not None:
            lone = search(compute, 0, count, only_first=not points.isolated)
            for at, _ in lone:
                block = first + at
                nobody = Progress(False, 1)
                own, raised = self._by_values(block, block + 1, 1, nobody)
                for leaf, value in zip(rows, own, strict=True):
                    leaf[at] = value[0]
                errors.append(raised)
            if not points.isolated:
                # Otherwise the error has named the failed point.
                raise differs(
                    points.function, min(count * self.each, points.size - begin)
                )
        return rows, joined(errors)

    def _compiled(self) -> tuple[Runner, Given]:
        """Return the program that computes and reduces points, with its arguments."""
        with self._lock:
            if self._runner is None:
                points, traced = self.points, self.points.traced[0]
                layout = points.layout(
                    batch_size=1,
                    capacity=self.at_once // len(points.devices),
                    unsplit=all_busy(points.devices, self.size),
                    within=points.batch_size,
                )
                absorb = self.reducing.absorb.program
                given = points.given(0)._replace(
                    init=self.reducing.init, reducer_constants=absorb.constants
                )
                given = put(given, everywhere(layout))
                lane_of = block_lane(traced, self.reducing, layout)
                programs = [traced.program, absorb]
                made = traced, programs, lane_of, self.row[:-1], layout
                blocks = ByBlock(points.geometry.start, self.each, points.size)
                self._runner = Runner(*made, blocks, given, finite=False), given
            return self._runner

    def _by_values(
        self, first: int, last: int, most: int, bar: Progress
    ) -> tuple[Rows, Errors]:
        """Compute the values of at most `most` blocks, and reduce them."""
        groups, count = self._groups_of(most), last - first
        states = groups.begin()
        bits = np.zeros((count, 8 * self._bytes), bool)
        errors = []
        for begin in range(0, self.each, groups.run):
            lanes = np.arange(count)
            if first * self.each + begin >= self.points.size:
                break  # the last block is shorter
            states, ok, verdict = groups.absorb(states, first, lanes, begin, bar)
            length = min(groups.run, self.each - begin)
            bits[:, begin : begin + length] = ~ok[:count, :length]
            errors.append(verdict.errors)
        behind = last * self.each - self.points.size
        if behind > 0:  # rows of the last block without a point
            bits[-1, self.each - behind : self.each] = False
        rows = [np.asarray(leaf)[:count] for leaf in states]
        return [*rows, np.packbits(bits, axis=1)], joined(errors)

    def _groups_of(self, side: int) -> Groups:
        with self._lock:
            if side not in self._groups:
                room = max(1, CHUNK_BYTES // self.points.row_bytes)
                run = min(self.each, room)
                given = self.points, self.reducers, self.each, side, run
                self._groups[side] = Groups(*given)
            return self._groups[side]

    # Rows are copied to a device to be merged, so that states from a store or a worker
    # are merged like those computed here.

    def begin(self) -> list[Array]:
        """Return the state of no points."""
        return put(self.reducing.init, self.home)

    def merge(
        self, state: list[Array], values: Rows, spans: Sequence[tuple[int, int]]
    ) -> Iterator[list[Array]]:
        """Yield the state after each of some ranges of rows, in order.

        There are at most `most` rows, so that one program suffices.
        """
        full = filled_up(values[:-1], self.reducing.init, self.most)
        there = list(map(as_keys, jax.device_put(full, self.home), self.reducing.init))
        program = self.reducing.merge.program
        constants = put(program.constants, self.home)
        zero = np.int32(0)
        given = state, there, zero, zero, constants
        lower = ft.partial(build_merge(self.reducing).lower, *given)
        place = "merge", self.most, self.points.devices[0]
        merge = compiled([program], place, lower)
        for first, last in spans:
            state = merge(state, there, np.int32(first), np.int32(last), constants)
            yield state

    def gap(self, count: int) -> Rows:
        """Return rows of missing blocks, as if all of their points had failed."""
        state = self._groups_of(1).without_points()
        rows = [np.stack([leaf] * count) for leaf in state]
        # No bits are set, since missing points are not known to have failed.
        return [*rows, np.zeros((count, self._bytes), np.uint8)]

    def stop(self, state: list[Array]) -> bool:
        """Return whether the `stop` of a reducer is true."""
        return self.reducers.stop(self._states(state))

    def finish(self, state: list[Array]) -> PyTree:
        """Return the reduction."""
        return self.reducers.finish(self._states(state))

    def _states(self, state: Sequence[Any]) -> list[PyTree]:
        """Return the states of the reducers."""
        return jtu.tree_unflatten(self.reducing.structure, state)
