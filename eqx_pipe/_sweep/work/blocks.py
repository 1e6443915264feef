"""Blocks: points whose states are merged with those of other blocks, in order.

One program computes points and reduces them, where it can: it takes a third of the
time, and no memory for values. States are computed from values for blocks with a failed
point, and if points are listed in a table or need several programs.
"""

import dataclasses
import functools as ft
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool

from ..._reduce import ReducerTree
from ..._run import TooLarge, Watch, compiled, differs, put
from ..._tree import as_data, as_keys
from ..._types import PyTree
from ..._vmap import all_busy
from ..program.blocks import (
    MOST_BLOCKS,
    block_batches,
    block_lane,
    build_merge,
    call_blocks,
    filled_up,
)
from ..program.layout import CHUNK_BYTES, Arguments, ByOffset, Layout
from ..program.runner import Runner
from ..trace.reducers import TracedReducers
from ..trace.trace import abstract
from .buffer import Asked, Buffer, Errors, Rows, Verdict, joined
from .groups import Call, Computed, Groups, Steps, ended
from .points import Points


class BlockStates(eqx.Module):
    """The states of the reducers, and as bits which points of a block failed."""

    state: PyTree
    failed: PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks(Groups):
    """The states of blocks, a row for each; `most` rows may be merged at once.

    The points of a block depend on the number of points and the batch size only, and
    the state of a block does not depend on other blocks.
    """

    most: int = 0
    is_merged: ClassVar[bool] = True

    @staticmethod
    def of(points: Points, reducers: ReducerTree) -> "Blocks":
        """Return the blocks of some points, of whole batches."""
        size = points.batch_size
        each = size * block_batches(points.size, size)
        blocks = Blocks(points, reducers, each)
        return blocks.with_most(blocks.at_once)

    def with_points(self, points: Points) -> "Blocks":
        """Return the blocks of the same points in batches of another size."""
        return Blocks.of(points, self.reducers)

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

    def _some(self, first: int, last: int, call: Call) -> Steps[Computed]:
        """Compute the rows of blocks; a row is ok if none of its points failed."""
        if not self.in_order:
            return (yield from self._by_values(first, last, self.at_once, call))
        while True:
            try:
                rows, verdict = self._fused(first, last, call.watch)
                break
            except TooLarge as error:
                size = error.batch_size
                # A block must still consist of whole batches.
                smaller = [n for n in range(1, size // 2 + 1) if size % n == 0]
                self.points.halve(error, *smaller)
        begin, end = self.span(first, last)
        yield end - begin, verdict.failed
        return rows, verdict

    def _fused(self, first: int, last: int, watch: Watch) -> Computed:
        """Compute and reduce blocks at once; reduce failed blocks from values.

        A program that fails returns nothing, so a block with a failed point has no
        state. A state computed from values leaves out the points that failed.
        """
        points, count = self.points, last - first
        runner, args = self._compiled()
        rows = self.empty(count)
        rows[-1][:] = 0
        begin, end = self.span(first, last)
        blocks = ByOffset(points.geometry.start + begin, self.each, points.size - begin)
        compute = runner.calling(args, blocks, rows[:-1])
        failures = points.failures(compute, 0, count, end - begin)
        if not failures:
            return rows, _verdict(rows[-1], {})
        errors, missing = list[Errors](), np.zeros(count, bool)
        alone = Watch(None, watch.stopping)  # the points count once on the bar
        for at, _ in failures:
            block, call = first + at, Call(0, Buffer(Asked(0, 0, 1), []), alone)
            values, verdict = ended(self._by_values(block, block + 1, 1, call))
            for leaf, value in zip(rows, values, strict=True):
                leaf[at] = value[0]
            errors.append(verdict.errors)
            missing[at] = verdict.missing is not None and verdict.missing[0]
        if not (points.isolated or missing.any()):
            # Otherwise the error has named the failed point.
            raise differs(points.function, end - begin)
        return rows, _verdict(rows[-1], joined(errors), missing)

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
        self, first: int, last: int, side: int, call: Call
    ) -> Steps[Computed]:
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
        """Return rows of missing blocks, as if all of their points had failed.

        So the same program merges the same number of rows, whatever is missing.
        """
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
