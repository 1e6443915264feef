"""The states of the blocks of a sweep that is reduced, as rows of plain arrays.

There are two ways to the state of a block: a program that computes points and takes
them in, so that no value leaves the device; and, where that will not do, the values of
the block as an ordinary sweep computes them, taken in by a second program.

A row has the leaves of a block's state and, as bits, which of its points failed. Rows
are what a store keeps and what a worker answers; so they are what is merged here too.
"""

import copy
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Int64

from ..._progress import Progress
from ..._reduce.many import Many
from ..._spaces import Space
from ..._tree import as_data, as_keys, is_key_array
from ..._types import Key, PyTree
from ..._vmap import all_busy
from ..compute.execute import Compiled, compiled_already, compiled_once
from ..compute.failure import Errors, Verdict, joined, quiet
from ..compute.job import Job, stretches_of
from ..compute.memory import TooLarge
from ..compute.partition import Layout
from ..compute.sizes import CHUNK_BYTES, Rows
from .kernel import MOST_BLOCKS, block_batches, build_gap, build_merge, call_blocks
from .states import ByPoints, ByValues, Division, absorb_place, home_of
from .trace import trace_reducers


class BlockStates(eqx.Module):
    """The states of the reducers, and as bits which points of a block failed."""

    state: PyTree
    failed: PyTree


class Blocks:
    """The blocks of a sweep: what is computed where values are reduced.

    Which points make a block depends on the number of points and the batch size only,
    and the state of a block on nothing else that happens in the sweep.
    """

    def __init__(self, job: Job, reducers: Many):
        self.job, self.reducers = job, reducers
        size = job.geometry.size
        batches = block_batches(size, job.batch_size)
        self.division = Division(size, job.batch_size * batches, batches)
        self.size = len(self.division)
        self.reducing = trace_reducers(reducers, job.traced[0], job.batch_size)
        self.home = home_of(job)
        self.most = self.at_once
        """The most blocks that one call of `compute` is asked for, or is merged."""
        self._by_points: ByPoints | None = None
        self._by_values: dict[int, ByValues] = {}
        # Threads of an executor share the programs of a sweep.
        self._lock = threading.Lock()

    def at(self, space: Space, key: Key | None) -> "Blocks":
        """Return the blocks of another space of the same form."""
        blocks = copy.copy(self)
        blocks.job = self.job.at(space, key)
        blocks._by_points, blocks._by_values = None, {}
        # Its programs are its own, and so is the lock that guards them.
        blocks._lock = threading.Lock()
        return blocks

    def with_batch_size(self, batch_size: int) -> "Blocks":
        """Return the blocks that batches of another size make."""
        return Blocks(self.job.with_batch_size(batch_size), self.reducers)

    def with_most(self, most: int) -> "Blocks":
        """Return the same blocks for calls of at most `most` of them."""
        blocks = copy.copy(self)
        blocks.most, blocks._lock = most, threading.Lock()
        return blocks

    @property
    def points(self) -> Job:
        """The points that the blocks are computed from."""
        return self.job

    @property
    def batch_size(self) -> int:
        """The number of points that a device vectorises at once."""
        return self.job.batch_size

    @property
    def attrs(self) -> dict[str, str]:
        """Remarks on how the batch size came about."""
        return self.job.attrs

    @property
    def each(self) -> int:
        """The number of points in a block."""
        return self.division.points

    @property
    def outputs(self) -> BlockStates:
        """The shapes and dtypes of the states of a block, and of its failed points."""
        bits = jax.ShapeDtypeStruct((self.division.num_bytes,), jnp.uint8)
        return self._as_states([*self._structs, bits])

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""
        return jtu.tree_leaves(self.outputs)

    @property
    def kinds(self) -> list[None]:
        """No leaf of a row holds PRNG keys, but their raw data."""
        return [None] * len(self.row)

    def unflatten(self, rows: Rows) -> BlockStates:
        """The states of blocks, and which of their points failed."""
        return self._as_states(rows)

    def _as_states(self, leaves: Sequence[Any]) -> BlockStates:
        state = jtu.tree_unflatten(self.reducers.structure, self._each(leaves[:-1]))
        return BlockStates(state, leaves[-1])

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return self.reducing.state_bytes + self.division.num_bytes

    @property
    def at_once(self) -> int:
        """The most blocks that one call of a program computes."""
        if not self._in_order:
            room = CHUNK_BYTES // (self.job.row_bytes * self.each)
            return max(1, min(room, MOST_BLOCKS))
        devices = len(self.job.devices)
        size = self.division.size
        return devices * call_blocks(
            size, self.each, devices, self.reducing.state_bytes
        )

    @property
    def unit(self) -> int:
        """How many blocks fill all lanes."""
        return len(self.job.devices)

    def programs(self) -> list[Any]:
        """What a sweep needs, each program as it is compiled, or `None`."""
        reducing, job = self.reducing, self.job
        merge = compiled_already(reducing.merging, self._merge_place)
        if self._in_order:
            programs = [job.traced[0].program, *reducing.absorbing]
            return [merge, compiled_already(programs, ("blocks", self.layout))]
        job = job.with_most(self.at_once * self.each)
        absorb = compiled_already(
            reducing.absorbing, absorb_place(job, self.division, self.at_once)
        )
        return [merge, absorb, *job.programs()]

    @property
    def layout(self) -> Layout:
        """What is compiled in where blocks are neighbours in the index."""
        job = self.job
        return Layout(
            lengths=job.geometry.lengths,
            key_dims=job.geometry.key_dims,
            batch_size=job.batch_size,
            capacity=self.at_once // len(job.devices),
            devices=job.devices,
            unsplit=all_busy(job.devices, self.size),
        )

    @property
    def _merge_place(self) -> tuple[Any, ...]:
        return "merge", self.most, self.job.devices[0]

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The points of some blocks, from the first to behind the last."""
        return self.division.span(first, last)

    def compute(
        self,
        index: range | Int64[np.ndarray, " blocks"],
        costs: object,
        bar: Progress,
    ) -> tuple[Rows, Verdict]:
        """The rows of some blocks, and in which of them no point failed."""
        parts = [
            part
            for first, last in stretches_of(index)
            for at in range(first, last, self.at_once)
            for part in self._stretch(at, min(last, at + self.at_once), bar)
        ]
        found, errors = zip(*parts, strict=True)
        rows = [np.concatenate(leaves) for leaves in zip(*found, strict=True)]
        ok = np.asarray(~rows[-1].any(axis=1))
        failed = int(np.sum(np.unpackbits(rows[-1])))
        return rows, Verdict(ok, joined(errors), None, failed)

    def _stretch(
        self, first: int, last: int, bar: Progress
    ) -> list[tuple[Rows, Errors]]:
        """The same of neighbouring blocks, in pieces."""
        if not self._in_order:
            return [self._values(self.at_once).compute(first, last, bar)]
        with quiet():
            found = self._fitting(first, last)
        start, stop = self.span(first, last)
        bar.done(stop - start)
        return found

    # Rows go back to a device to be merged, so that a state that was kept, or that a
    # worker computed, is merged as one that was computed here.

    def begin(self) -> list[Array]:
        """The state of no points."""
        return self.reducing.placed(self.home)[0]

    def merge(
        self,
        state: list[Array],
        values: Rows,
        spans: Sequence[tuple[int, int]],
    ) -> Iterator[list[Array]]:
        """The state after each of some stretches of rows, which follow one another.

        There are never more than `most` rows, so that one program will do.
        """
        there = self._placed(values[:-1])
        constants = self.reducing.placed(self.home)[2]
        merge = self._merging(state, there, constants)
        for first, last in spans:
            state = merge(state, there, np.int32(first), np.int32(last), constants)
            yield state

    def gap(self, count: int) -> Rows:
        """Blocks that are missing: as if all of their points had failed."""
        init, constants, _ = self.reducing.placed(self.home)
        gap = build_gap(self.reducing, self.job.traced[0], self.job.batch_size)
        states = gap(init, np.int32(self.division.batches), constants)
        rows = [np.stack([np.asarray(as_data(leaf))] * count) for leaf in states]
        # No bits: of points that are missing none is known to have failed.
        return [*rows, np.zeros((count, self.division.num_bytes), np.uint8)]

    def stop(self, state: list[Array]) -> bool:
        """Whether a reducer asks to stop."""
        return self.reducers.stop(self._each(state))

    def finish(self, state: list[Array]) -> PyTree:
        """The reduction."""
        return self.reducers.finish(self._each(state))

    @property
    def _structs(self) -> list[jax.ShapeDtypeStruct]:
        return [jax.eval_shape(as_data, leaf) for leaf in self.reducing.init]

    def _each(self, state: Sequence[Any]) -> list[PyTree]:
        """The states of the reducers."""
        return jtu.tree_unflatten(self.reducing.structure, state)

    def _placed(self, leaves: Rows) -> list[Array]:
        """Rows of states on a device, filled up to `most`."""
        full = []
        for leaf, init in zip(leaves, self.reducing.init, strict=True):
            # A store may have kept it in a wider dtype: there is no bfloat16 in files.
            dtype = leaf.dtype if is_key_array(init) else init.dtype
            rows = np.zeros((self.most, *leaf.shape[1:]), dtype)
            rows[: len(leaf)] = leaf
            full.append(rows)
        there = jax.device_put(full, self.home)
        return list(map(as_keys, there, self.reducing.init))

    def _merging(
        self,
        state: list[Array],
        there: list[Array],
        constants: list[list[Array]],
    ) -> Compiled:
        zero = np.int32(0)
        return compiled_once(
            self.reducing.merging,
            self._merge_place,
            lambda: (
                build_merge(self.reducing)
                .lower(state, there, zero, zero, constants)
                .compile()
            ),
        )

    @property
    def _in_order(self) -> bool:
        # Else neighbours in the index are listed, or of several programs.
        geometry = self.job.geometry
        return not geometry.static_dims and geometry.rows is None

    def _fitting(self, first: int, last: int) -> list[tuple[Rows, Errors]]:
        """Computes blocks, in batches for which there is enough memory."""
        while True:
            try:
                return self._halved(first, last)
            except TooLarge as error:
                size = error.batch_size
                # Whole batches make a block, as before.
                smaller = [n for n in range(1, size // 2 + 1) if size % n == 0]
                self.job.halve(error, *smaller)
                self._rebatch()

    def _rebatch(self) -> None:
        """The same blocks of batches of another size."""
        with self._lock:
            size = self.job.batch_size
            batches = self.each // size
            self.division = dataclasses.replace(self.division, batches=batches)
            self.reducing = trace_reducers(self.reducers, self.job.traced[0], size)
            self._by_points, self._by_values = None, {}

    def _halved(self, first: int, last: int) -> list[tuple[Rows, Errors]]:
        """Computes blocks, halving them until those that fail are alone."""
        with self._lock:
            self._by_points = self._by_points or ByPoints(
                self.job, self.reducing, self.division, self.layout
            )
        found = self._by_points.compute(first, last)
        if not isinstance(found, Exception):
            none = np.zeros((last - first, self.division.num_bytes), np.uint8)
            return [([*found, none], {})]
        if not self.job.isolated:
            self._by_points.name(*self.span(first, last))
        if last - first == 1:
            return [self._values(1).compute(first, last, Progress(False, 1))]
        middle = (first + last) // 2
        return self._halved(first, middle) + self._halved(middle, last)

    def _values(self, most: int) -> ByValues:
        with self._lock:
            if most not in self._by_values:
                args = self.job, self.reducing, self.division, most
                self._by_values[most] = ByValues(*args)
            return self._by_values[most]
