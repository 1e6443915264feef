"""The states of the blocks of a sweep that is reduced, as rows of plain arrays.

There are two ways to the state of a block: a program that computes points and takes
them in, so that no value leaves the device; and, where that will not do, the values of
the block as an ordinary sweep computes them, taken in by a second program.

A row has the leaves of a block's state and, as bits, which of its points failed. Rows
are what a store keeps and what a worker answers; so they are what is merged here too.
"""

import contextlib
import copy
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, UInt8

from ..._reduce.many import Many
from ..._spaces.index import digits_of
from ..._tree import is_key_array, leaves_with_names
from ..._types import PyTree
from ..compute.execute import Compiled, compiled_already, compiled_once, put
from ..compute.failure import (
    Errors,
    Failures,
    Verdict,
    as_nonfinite,
    check_finite,
    joined,
    quiet,
)
from ..compute.job import Job
from ..compute.kernel import by_device
from ..compute.memory import TooLarge, is_out_of_memory, noting
from ..compute.partition import Layout, control, everywhere
from ..compute.progress import Progress
from ..compute.sizes import CHUNK_BYTES, Rows
from ..cores import all_busy, compiled
from ..tracing.trace import as_data
from .kernel import (
    block_batches,
    block_rows,
    build_blocks,
    build_gap,
    build_merge,
    build_states,
    call_blocks,
)
from .trace import trace_reducers

_MOST_BLOCKS = 64


class Blocks:
    """The blocks of a sweep: what is computed where values are reduced.

    Which points make a block depends on the number of points and the batch size only,
    and the state of a block on nothing else that happens in the sweep.
    """

    def __init__(self, job: Job, reducers: Many):
        self.job, self.reducers = job, reducers
        self.size = job.geometry.size
        self.batches = block_batches(self.size, job.batch_size)
        self.points = job.batch_size * self.batches
        self.reducing = trace_reducers(reducers, job.traced[0], job.batch_size)
        self.home = jax.sharding.SingleDeviceSharding(job.devices[0])
        self._by_points: _ByPoints | None = None
        self._by_values: dict[int, _ByValues] = {}
        # Threads of an executor share the programs of a sweep.
        self._lock = threading.Lock()

    def at(self, job: Job) -> "Blocks":
        """The same of a space of the same form."""
        blocks = copy.copy(self)
        blocks.job, blocks._by_points, blocks._by_values = job, None, {}
        blocks._lock = threading.Lock()
        return blocks

    def __len__(self) -> int:
        return -(-self.size // self.points)

    @property
    def variables(self) -> list[tuple[str, jax.ShapeDtypeStruct]]:
        """The name, shape and dtype of each leaf of a row."""
        each = self._each(self.reducing.init)
        state = jtu.tree_unflatten(self.reducers.structure, each)
        names = [
            f"state.{name}" if name else "state" for name, _ in leaves_with_names(state)
        ]
        bits = jax.ShapeDtypeStruct((self._num_bytes,), jnp.uint8)
        return [*zip(names, self._structs, strict=True), ("failed", bits)]

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""
        return [struct for _, struct in self.variables]

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return self.reducing.state_bytes + self._num_bytes

    @property
    def most(self) -> int:
        """How many blocks are computed at once at most."""
        if not self._in_order:
            room = CHUNK_BYTES // (self.job.row_bytes * self.points)
            return max(1, min(room, _MOST_BLOCKS))
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
        absorb = compiled_already(reducing.absorbing, self._absorb_place(self.most))
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

    def _absorb_place(self, most: int) -> tuple[Any, ...]:
        job = self.job
        kinds = map(str, job.traced[0].key_kinds)
        rows = most * self.points
        return "absorb", most, rows, job.batch_size, *kinds, job.devices[0]

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The points of some blocks, from the first to behind the last."""
        return first * self.points, min(last * self.points, self.size)

    def bits(
        self, first: int, last: int, failed: np.ndarray
    ) -> UInt8[np.ndarray, "blocks bytes"]:
        """Which of the points of some blocks failed, a row for each block."""
        marks = np.zeros((last - first, 8 * self._num_bytes), bool)
        at = failed - first * self.points
        marks[at // self.points, at % self.points] = True
        return np.packbits(marks, axis=1)

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
        states = gap(init, np.int32(self.batches), constants)
        rows = [np.stack([np.asarray(as_data(leaf))] * count) for leaf in states]
        # No bits: of points that are missing none is known to have failed.
        return [*rows, np.zeros((count, self._num_bytes), np.uint8)]

    def stop(self, state: list[Array]) -> bool:
        """Whether a reducer asks to stop."""
        return self.reducers.stop(self._each(state))

    def finish(self, state: list[Array]) -> PyTree:
        """The reduction."""
        return self.reducers.finish(self._each(state))

    @property
    def _num_bytes(self) -> int:
        return -(-self.points // 8)

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
        pairs = zip(there, self.reducing.init, strict=True)
        return [
            jr.wrap_key_data(leaf, impl=jr.key_impl(init))
            if is_key_array(init)
            else leaf
            for leaf, init in pairs
        ]

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
        return not geometry.static_dims and not geometry.is_scattered

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
            self.batches = self.points // size
            self.reducing = trace_reducers(self.reducers, self.job.traced[0], size)
            self._by_points, self._by_values = None, {}

    def _halved(self, first: int, last: int) -> list[tuple[Rows, Errors]]:
        """Computes blocks, halving them until those that fail are alone."""
        with self._lock:
            self._by_points = self._by_points or _ByPoints(self)
        found = self._by_points.compute(first, last)
        if not isinstance(found, Exception):
            none = np.zeros((last - first, self._num_bytes), np.uint8)
            return [([*found, none], {})]
        if not self.job.isolated:
            self._by_points.name(*self.span(first, last))
        if last - first == 1:
            return [self._values(1).compute(first, last, Progress(False, 1))]
        middle = (first + last) // 2
        return self._halved(first, middle) + self._halved(middle, last)

    def _values(self, most: int) -> "_ByValues":
        with self._lock:
            if most not in self._by_values:
                self._by_values[most] = _ByValues(self, most)
            return self._by_values[most]


class _ByPoints:
    """The program that computes points and takes them in."""

    def __init__(self, blocks: Blocks):
        self.blocks = blocks
        job, reducing = blocks.job, blocks.reducing
        traced = job.traced[0]
        self.layout = layout = blocks.layout
        program, place = traced.program, everywhere(layout)
        given = put((job.arrays, program.constants, job.key), place)
        init, constants, _ = reducing.placed(place)
        self._given = (*given, init, constants)

        def make() -> Compiled:
            traced.note_compilation(("blocks", layout))
            kernel = build_blocks(traced, reducing, layout)
            lowered = kernel.lower(*self._arguments(0, 1))
            return compiled(lowered, layout.unsplit)

        programs = [program, *reducing.absorbing]
        with noting(layout.batch_size):
            self._compute = compiled_once(programs, ("blocks", layout), make)

    def compute(self, first: int, last: int) -> list[np.ndarray] | Exception:
        """The states of blocks; the error if one of their points fails."""
        start, stop = self.blocks.span(first, last)
        return self._states(start, stop - start)

    def name(self, first: int, last: int) -> None:
        """Raises an error that names the first of some points that fails."""

        def compute(at: int, points: int) -> Exception | None:
            found = self._states(at, points)
            return found if isinstance(found, Exception) else None

        none = Failures(self.blocks.job.function, False, 0)
        none.found(compute, np.arange, first, last - first, [])

    def _states(self, first: int, points: int) -> list[np.ndarray] | Exception:
        """The states of the blocks of some points, in the order of the blocks."""
        layout, blocks = self.layout, self.blocks
        try:
            states = self._compute(*self._arguments(first, points))
            check_finite(states, infs=False)
            # By way of the host, which takes less time than to put small arrays
            # together on one device.
            gathered = [
                np.concatenate([np.asarray(x) for x in by_device(as_data(leaf))])
                for leaf in states
            ]
        except jax.errors.JaxRuntimeError as error:
            # JAX would complain about it again when Python exits, unless something
            # else has run on the device since: no points at all.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                jax.block_until_ready(self._compute(*self._arguments(first, 0)))
            if is_out_of_memory(error):
                raise TooLarge(layout.batch_size, first) from error
            return error
        except Exception as error:
            return as_nonfinite(error)
        count = -(-points // blocks.points)
        rows = block_rows(count, layout.capacity, len(layout.devices))
        return [leaf[rows] for leaf in gathered]

    def _arguments(self, first: int, points: int) -> Sequence[Any]:
        start = (self.blocks.job.geometry.window or (0,))[0]
        digits = digits_of(start + first, self.layout.lengths)
        return control(points, digits), np.int32(self.blocks.batches), *self._given


class _ByValues:
    """The program that takes in values which were computed before."""

    def __init__(self, blocks: Blocks, most: int):
        self.blocks, self.most = blocks, most
        reducing, self._rows = blocks.reducing, most * blocks.points
        self.job = job = dataclasses.replace(blocks.job, stretch=self._rows)
        traced = job.traced[0]
        self._given = reducing.placed(blocks.home)[:2]
        kinds, batch = tuple(traced.key_kinds), job.batch_size
        values = [
            jax.ShapeDtypeStruct((self._rows, *leaf.shape), leaf.dtype)
            for leaf in traced.stored
        ]
        ok = jax.ShapeDtypeStruct((self._rows,), bool)
        numbers = [np.int32(0)] * 2
        self._absorb = compiled_once(
            reducing.absorbing,
            blocks._absorb_place(most),
            lambda: (
                build_states(reducing, kinds, batch, most)
                .lower(values, ok, *numbers, *self._given)
                .compile()
            ),
        )

    def compute(self, first: int, last: int, bar: Progress) -> tuple[Rows, Errors]:
        """Computes the values of some blocks and takes them in."""
        blocks = self.blocks
        start, stop = blocks.span(first, last)
        leaves, verdict = self.job.compute(start, stop, None, bar)
        ok = verdict.ok
        full = [*map(self._full, leaves), self._full(ok)]
        there = jax.device_put(full, blocks.home)
        numbers = map(np.int32, (blocks.batches, last - first))
        states = self._absorb(there[:-1], there[-1], *numbers, *self._given)
        rows = [np.asarray(as_data(leaf))[: last - first] for leaf in states]
        bits = blocks.bits(first, last, start + np.flatnonzero(~ok))
        return [*rows, bits], verdict.errors

    def _full(self, leaf: np.ndarray) -> np.ndarray:
        """As many rows as the program has; none of those added counts."""
        padding = np.zeros((self._rows - len(leaf), *leaf.shape[1:]), leaf.dtype)
        return np.concatenate([leaf, padding])
