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

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from ..._progress import Progress
from ..._reduce import ReducerTree
from ..._tree import as_data, as_keys, is_key_array, leaves_with_names
from ..._types import PyTree
from ..._vmap import all_busy
from ..compute.execute import Compiled, compiled_already, compiled_once
from ..compute.failure import Errors, Verdict, joined, quiet
from ..compute.job import Job
from ..compute.memory import TooLarge
from ..compute.partition import Layout
from ..compute.sizes import CHUNK_BYTES, Rows
from .kernel import MOST_BLOCKS, block_batches, build_gap, build_merge, call_blocks
from .states import ByPoints, ByValues, Division, absorb_place, home_of
from .trace import trace_reducers


class Blocks:
    """The blocks of a sweep: what is computed where values are reduced.

    Which points make a block depends on the number of points and the batch size only,
    and the state of a block on nothing else that happens in the sweep.
    """

    def __init__(self, job: Job, reducers: ReducerTree):
        self.job, self.reducers = job, reducers
        self.size = job.geometry.size
        batches = block_batches(self.size, job.batch_size)
        self.division = Division(self.size, job.batch_size * batches, batches)
        self.reducing = trace_reducers(reducers, job.traced[0], job.batch_size)
        self.home = home_of(job)
        self._by_points: ByPoints | None = None
        self._by_values: dict[int, ByValues] = {}
        # Threads of an executor share the programs of a sweep.
        self._lock = threading.Lock()

    def at(self, job: Job) -> "Blocks":
        """The same of a space of the same form."""
        blocks = copy.copy(self)
        blocks.job, blocks._by_points, blocks._by_values = job, None, {}
        # Its programs are its own, and so is the lock that guards them.
        blocks._lock = threading.Lock()
        return blocks

    def __len__(self) -> int:
        return len(self.division)

    @property
    def points(self) -> int:
        """How many points make a block."""
        return self.division.points

    @property
    def variables(self) -> list[tuple[str, jax.ShapeDtypeStruct]]:
        """The name, shape and dtype of each leaf of a row."""
        each = self._each(self.reducing.init)
        state = jtu.tree_unflatten(self.reducers.structure, each)
        names = [
            f"state.{name}" if name else "state" for name, _ in leaves_with_names(state)
        ]
        bits = jax.ShapeDtypeStruct((self.division.num_bytes,), jnp.uint8)
        return [*zip(names, self._structs, strict=True), ("failed", bits)]

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""
        return [struct for _, struct in self.variables]

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return self.reducing.state_bytes + self.division.num_bytes

    @property
    def most(self) -> int:
        """How many blocks are computed at once at most."""
        if not self._in_order:
            room = CHUNK_BYTES // (self.job.row_bytes * self.points)
            return max(1, min(room, MOST_BLOCKS))
        devices = len(self.job.devices)
        return devices * call_blocks(
            self.size, self.points, devices, self.reducing.state_bytes
        )

    @property
    def unit(self) -> int:
        """How many blocks fill all lanes."""
        return len(self.job.devices)

    def programs(self, most: int) -> list[Any]:
        """What a sweep needs whose chunks have at most `most` blocks.

        Each program as it is compiled, or `None` if it is not.
        """
        reducing, job = self.reducing, self.job
        merge = compiled_already(reducing.merging, self._merge_place(most))
        if self._in_order:
            programs = [job.traced[0].program, *reducing.absorbing]
            return [merge, compiled_already(programs, ("blocks", self.layout))]
        job = dataclasses.replace(job, stretch=self.most * self.points)
        absorb = compiled_already(
            reducing.absorbing, absorb_place(job, self.division, self.most)
        )
        return [merge, absorb, *job.programs(most)]

    @property
    def layout(self) -> Layout:
        """What is compiled in where blocks are neighbours in the index."""
        job = self.job
        return Layout(
            lengths=job.geometry.lengths,
            key_dims=job.geometry.key_dims,
            batch_size=job.batch_size,
            capacity=self.most // len(job.devices),
            devices=job.devices,
            unsplit=all_busy(job.devices, len(self)),
        )

    def _merge_place(self, most: int) -> tuple[Any, ...]:
        return "merge", most, self.job.devices[0]

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The points of some blocks, from the first to behind the last."""
        return self.division.span(first, last)

    def compute(
        self, first: int, last: int, costs: object, bar: Progress
    ) -> tuple[Rows, Verdict]:
        """The rows of some blocks, and in which of them no point failed."""
        parts: list[tuple[Rows, Errors]] = []
        while first < last:
            end = min(last, first + self.most)
            if self._in_order:
                with quiet():
                    parts += self._fitting(first, end)
                start, stop = self.span(first, end)
                bar.done(stop - start)
            else:
                parts.append(self._values(self.most).compute(first, end, bar))
            first = end
        found, errors = zip(*parts, strict=True)
        rows = [np.concatenate(leaves) for leaves in zip(*found, strict=True)]
        return rows, Verdict(np.asarray(~rows[-1].any(axis=1)), joined(errors))

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
        most: int,
    ) -> Iterator[list[Array]]:
        """The state after each of some stretches of rows, which follow one another.

        There are never more than `most` rows, so that one program will do.
        """
        there = self._placed(values[:-1], most)
        constants = self.reducing.placed(self.home)[2]
        merge = self._merging(state, there, most, constants)
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

    def _each(self, state: list[Array]) -> list[PyTree]:
        """The states of the reducers."""
        return jtu.tree_unflatten(self.reducing.structure, state)

    def _placed(self, leaves: Rows, most: int) -> list[Array]:
        """Rows of states on a device, filled up to `most`."""
        full = []
        for leaf, init in zip(leaves, self.reducing.init, strict=True):
            # A store may have kept it in a wider dtype: there is no bfloat16 in files.
            dtype = leaf.dtype if is_key_array(init) else init.dtype
            rows = np.zeros((most, *leaf.shape[1:]), dtype)
            rows[: len(leaf)] = leaf
            full.append(rows)
        there = jax.device_put(full, self.home)
        return list(map(as_keys, there, self.reducing.init))

    def _merging(
        self,
        state: list[Array],
        there: list[Array],
        most: int,
        constants: list[list[Array]],
    ) -> Compiled:
        zero = np.int32(0)
        return compiled_once(
            self.reducing.merging,
            self._merge_place(most),
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
            batches = self.points // size
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
