"""The host's side of a sweep that is reduced as it runs.

Points are taken in by blocks, and the states of blocks are merged in the order of the
index. There are two ways to the state of a block: a program that computes points and
takes them in, so that no value leaves the device; and, where that will not do, the
values of the block as an ordinary sweep computes them, taken in by a second program.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int64, PyTree

from .._reduce.many import Many
from .._spaces.index import digits_of, strides
from .execute import compiled_once
from .failure import Failures, quiet
from .kernel import Layout, control, everywhere
from .parts import Job
from .plan import CHUNK_BYTES
from .program import identify
from .progress import Progress
from .reduced_kernel import (
    arguments_of,
    block_batches,
    block_rows,
    build_absorb,
    build_blocks,
    build_merge,
    call_blocks,
    trace_reducers,
)

_STOP_SECONDS = 0.02
"""About how much work may be done in vain when a reducer stops the sweep."""

_MOST_BLOCKS = 64


@dataclasses.dataclass(frozen=True)
class Reduced:
    """A reduction, of how many points, and which of them failed."""

    values: PyTree
    points: int
    failed: Int64[np.ndarray, " failed"]


class Running:
    """The state of the points so far."""

    def __init__(self, job: Job, reducers: Many, bar: Progress):
        self.job, self.reducers, self.bar = job, reducers, bar
        self.size = job.space.size
        self.batches = block_batches(self.size, job.batch_size)
        self.block_points = job.batch_size * self.batches
        self.reducing = trace_reducers(reducers, job.traced[0], job.batch_size)
        self.home = jax.sharding.SingleDeviceSharding(job.devices[0])
        self.state: list[Any] = jax.device_put(self.reducing.init, self.home)
        self.points: int | None = None
        self._failed: list[np.ndarray] = []

    def span(self, block: int, blocks: int) -> tuple[int, int]:
        """The points of some blocks, from the first to behind the last."""
        first = block * self.block_points
        return first, min(first + blocks * self.block_points, self.size)

    def took_in(self, blocks: int) -> bool:
        """Whether to stop, now that the state is that of the first `blocks` blocks."""
        if self.reducers.stops and self.reducers.stop(self.tree(self.state)):
            self.points = self.span(0, blocks)[1]
        return self.points is not None

    def failing(self, indices: np.ndarray) -> None:
        """Takes note of points that failed."""
        self._failed.append(indices)
        self.bar.failed(sum(map(len, self._failed)))

    def tree(self, state: list[Any]) -> PyTree:
        """The state of the reducers."""
        return jtu.tree_unflatten(self.reducing.structure, state)

    def finish(self) -> Reduced:
        """The reduction."""
        points = self.size if self.points is None else self.points
        failed = np.concatenate([np.zeros(0, np.int64), *self._failed])
        return Reduced(self.reducers.finish(self.tree(self.state)), points, failed)

    def paces(self, most: int, step: Callable[[int, int], None]) -> None:
        """Calls `step(block, blocks)` until all blocks are taken in, or one stops.

        A sweep that may stop begins with few blocks, so that little is done in vain.
        """
        all_blocks = -(-self.size // self.block_points)
        block, pace = 0, 1
        while block < all_blocks and self.points is None:
            count = min(most, all_blocks - block)
            count = min(count, pace) if self.reducers.stops else count
            began = time.perf_counter()
            step(block, count)
            block += count
            if time.perf_counter() - began < _STOP_SECONDS:
                pace *= 2


def run_values(job: Job, reducers: Many, bar: Progress, isolated: bool) -> Reduced:
    """Reduces the values of a sweep, a few blocks at a time."""
    running = Running(job, reducers, bar)
    room = CHUNK_BYTES // (job.point_bytes * running.block_points)
    most = max(1, min(room, _MOST_BLOCKS))
    absorber = Absorber(running, most)
    running.paces(most, lambda block, n: absorber.take(block, n, bar, isolated))
    return running.finish()


def run_blocks(job: Job, reducers: Many, bar: Progress, isolated: bool) -> Reduced:
    """Reduces points where they are computed; blocks in which some fail by values."""
    running = Running(job, reducers, bar)
    blocks = Blocks(running)
    absorbers: list[Absorber] = []

    def by_values(block: int) -> None:
        if not absorbers:
            absorbers.append(Absorber(running, 1))
        absorbers[0].take(block, 1, Progress(False, 1), True)

    def take(block: int, count: int) -> None:
        """Takes in some blocks, halving them until those that fail are alone."""
        if running.points is not None:
            return
        first, last = running.span(block, count)
        if blocks.compute(first, last) is None:
            blocks.join(block, count)
        elif not isolated:
            blocks.name(first, last)
        elif count == 1:
            by_values(block)
        else:
            take(block, count // 2)
            take(block + count // 2, count - count // 2)

    def step(block: int, count: int) -> None:
        with quiet():
            take(block, count)
        first, last = running.span(block, count)
        bar.done(min(last, running.points or last) - first)

    running.paces(blocks.most, step)
    return running.finish()


class Blocks:
    """The program that computes points and takes them in, and that which merges."""

    def __init__(self, running: Running):
        self.running = running
        job, reducing = running.job, running.reducing
        traced, devices = job.traced[0], job.devices
        window = job.space.window
        capacity = call_blocks(
            running.size, running.block_points, len(devices), reducing.state_bytes
        )
        self.layout = layout = Layout(
            lengths=tuple(job.space.grid_dims.values()),
            batch_size=job.batch_size,
            capacity=capacity,
            devices=devices,
            strided=window is not None and window[1] != 1,
            wide=running.size > 2**32,
        )
        self.most = total = capacity * len(devices)
        program = identify(traced.jaxpr)
        absorb, merge = identify(reducing.absorb), identify(reducing.merge)
        given = (
            traced.arrays,
            program.constants,
            job.key,
            reducing.init,
            absorb.constants,
        )
        self._given = given = jax.device_put(given, everywhere(layout))
        self._compute = compiled_once(
            [program, absorb],
            ("blocks", layout),
            lambda: (
                build_blocks(traced, reducing, layout)
                .lower(*arguments_of(self._told(0, 1, 1), *given))
                .compile()
            ),
        )
        self._constants = jax.device_put(merge.constants, running.home)
        stacked = [
            jax.ShapeDtypeStruct((total, *s.shape), s.dtype) for s in running.state
        ]
        rows = block_rows(0, 1, capacity, len(devices))
        self._merge = compiled_once(
            [merge],
            ("merge", total, devices[0]),
            lambda: (
                build_merge(reducing)
                .lower(
                    running.state,
                    stacked,
                    rows,
                    np.int32(0),
                    np.int32(0),
                    self._constants,
                )
                .compile()
            ),
        )
        self._states: list[Any] = []
        self._rows = rows

    def compute(self, first: int, last: int) -> Exception | None:
        """Computes the states of blocks; the error if one of their points fails."""
        layout, running = self.layout, self.running
        blocks = -(-(last - first) // running.block_points)
        count = -(-blocks // len(layout.devices))
        told = self._told(first, last - first, count)
        try:
            states = self._compute(*arguments_of(told, *self._given))
            self._states = jax.block_until_ready(jax.device_put(states, running.home))
        except jax.errors.JaxRuntimeError as error:
            # JAX would complain about it again when Python exits, unless something
            # else has run on the device since: no points at all.
            nothing = self._told(first, 0, 1)
            jax.block_until_ready(self._compute(*arguments_of(nothing, *self._given)))
            return error
        except Exception as error:
            # What JAX raises for `jax_debug_nans`, and `jit` would translate.
            if type(error).__name__ != "InternalFloatingPointError":
                raise
            return FloatingPointError(f"invalid value in the sweep: {error}")
        self._rows = block_rows(blocks, count, layout.capacity, len(layout.devices))
        return None

    def join(self, block: int, count: int) -> None:
        """Merges the states just computed, one by one where one may stop."""
        running = self.running
        stops = running.reducers.stops
        spans = [(i, i + 1) for i in range(count)] if stops else [(0, count)]
        for first, last in spans:
            span = (np.int32(first), np.int32(last))
            running.state = self._merge(
                running.state, self._states, self._rows, *span, self._constants
            )
            if running.took_in(block + last):
                return

    def name(self, first: int, last: int) -> None:
        """Raises an error that names the first of some points that fails."""

        def compute(at: int, points: int) -> Exception | None:
            error = self.compute(at, at + points)
            if isinstance(error, FloatingPointError):
                raise error
            return error

        none = Failures(False, np.ones(0, bool))
        none.found(compute, np.arange, 0, first, last - first, [])

    def _told(self, first: int, points: int, count: int) -> Any:
        start, step, _ = self.running.job.space.window or (0, 1, 0)
        layout = self.layout
        digits = digits_of(start + step * first, layout.lengths)
        table = strides(step, layout.lengths) if layout.strided else None
        return control(points, count, first, digits), table, self.running.batches


class Absorber:
    """The program that takes in values which were computed before."""

    def __init__(self, running: Running, most: int):
        self.running = running
        job, reducing = running.job, running.reducing
        job.stretch = self._rows = most * running.block_points
        traced = job.traced[0]
        absorb, merge = identify(reducing.absorb), identify(reducing.merge)
        given = (reducing.init, absorb.constants, merge.constants)
        self._given = jax.device_put(given, running.home)
        kinds, batch = tuple(traced.key_kinds), job.batch_size
        values = [
            jax.ShapeDtypeStruct((self._rows, *leaf.shape), leaf.dtype)
            for leaf in traced.stored
        ]
        ok = jax.ShapeDtypeStruct((self._rows,), bool)
        numbers = [np.int32(0)] * 3
        self._absorb = compiled_once(
            [absorb, merge],
            ("absorb", self._rows, batch, tuple(map(str, kinds)), job.devices[0]),
            lambda: (
                build_absorb(reducing, kinds, batch)
                .lower(running.state, values, ok, *numbers, *self._given)
                .compile()
            ),
        )

    def take(self, block: int, count: int, bar: Progress, isolated: bool) -> None:
        """Computes the values of some blocks and takes them in."""
        running = self.running
        first, last = running.span(block, count)
        leaves, ok = running.job.compute(first, last, None, bar, isolated)
        if not ok.all():
            running.failing(first + np.flatnonzero(~ok))
        there = jax.device_put([*map(self._full, leaves), self._full(ok)], running.home)
        spans = [(i, i + 1) for i in range(count)]
        for start, stop in spans if running.reducers.stops else [(0, count)]:
            numbers = map(np.int32, (running.batches, start, stop))
            running.state = self._absorb(
                running.state, there[:-1], there[-1], *numbers, *self._given
            )
            if running.took_in(block + stop):
                return

    def _full(self, leaf: np.ndarray) -> np.ndarray:
        """As many rows as the program has; none of those added counts."""
        padding = np.zeros((self._rows - len(leaf), *leaf.shape[1:]), leaf.dtype)
        return np.concatenate([leaf, padding])
