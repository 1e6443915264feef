"""Two ways to the states of blocks, and which points make a block.

A program computes points and takes them in, so that no value leaves the device; and,
where that will not do, an ordinary sweep computes the values of a block, and a second
program takes them in.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8

from ..._progress import Progress
from ..._spaces import digits_of
from ..._tree import as_data
from ..._vmap import by_device
from ..compute.execute import Compiled, as_structs, compiled, compiled_once, put
from ..compute.failure import Errors, Failures, as_nonfinite, check_finite
from ..compute.job import Job
from ..compute.memory import TooLarge, is_out_of_memory, noting
from ..compute.partition import Layout, control, everywhere
from ..compute.sizes import Rows
from .kernel import block_rows, blocks_to, build_blocks, build_states
from .trace import Reducing


@dataclasses.dataclass(frozen=True)
class Division:
    """`size` points in blocks of `points` neighbours each, `batches` in a block."""

    size: int
    points: int
    batches: int

    def __len__(self) -> int:
        return -(-self.size // self.points)

    @property
    def num_bytes(self) -> int:
        """How many bytes have a bit for each point of a block."""
        return -(-self.points // 8)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The points of some blocks, from the first to behind the last."""
        return first * self.points, min(last * self.points, self.size)

    def bits(
        self, first: int, last: int, failed: np.ndarray
    ) -> UInt8[np.ndarray, "blocks bytes"]:
        """Which of the points of some blocks failed, a row for each block."""
        marks = np.zeros((last - first, 8 * self.num_bytes), bool)
        at = failed - first * self.points
        marks[at // self.points, at % self.points] = True
        return np.packbits(marks, axis=1)


def home_of(job: Job) -> jax.sharding.SingleDeviceSharding:
    """Where values that were computed are taken in, and states merged."""
    return jax.sharding.SingleDeviceSharding(job.devices[0])


def absorb_place(job: Job, division: Division, most: int) -> tuple[Any, ...]:
    """What the program of `ByValues` is compiled for."""
    kinds = map(str, job.traced[0].key_kinds)
    rows = most * division.points
    return "absorb", most, rows, job.batch_size, *kinds, job.devices[0]


class ByPoints:
    """The program that computes points and takes them in."""

    def __init__(
        self, job: Job, reducing: Reducing, division: Division, layout: Layout
    ):
        self.job, self.division, self.layout = job, division, layout
        traced = job.traced[0]
        program, place = traced.program, everywhere(layout)
        given = put((job.arrays, program.constants, job.key), place)
        init, constants, _ = reducing.placed(place)
        self._given = (*given, init, constants)

        def make() -> Compiled:
            traced.note_compilation(("blocks", layout))
            kernel = build_blocks(traced, reducing, layout)
            lowered = kernel.lower(*as_structs(self._arguments(0, 1)))
            return compiled(lowered, layout.unsplit)

        programs = [program, *reducing.absorbing]
        with noting(layout.batch_size):
            self._compute = compiled_once(programs, ("blocks", layout), make)

    def compute(self, first: int, last: int) -> list[np.ndarray] | Exception:
        """The states of blocks; the error if one of their points fails."""
        start, stop = self.division.span(first, last)
        return self._states(start, stop - start)

    def name(self, first: int, last: int) -> None:
        """Raises an error that names the first of some points that fails."""

        def compute(at: int, points: int) -> Exception | None:
            found = self._states(at, points)
            return found if isinstance(found, Exception) else None

        none = Failures(self.job.function, False, 0)
        none.found(compute, np.arange, first, last - first, [])

    def _states(self, first: int, points: int) -> list[np.ndarray] | Exception:
        """The states of the blocks of some points, in the order of the blocks."""
        layout = self.layout
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
        count = -(-points // self.division.points)
        rows = block_rows(count, layout.capacity, len(layout.devices))
        return [leaf[rows] for leaf in gathered]

    def _arguments(self, first: int, points: int) -> Sequence[Any]:
        start = self.job.geometry.start
        digits = digits_of(start + first, self.layout.lengths)
        partition = blocks_to(len(self.layout.devices))
        blocks = -(-points // self.division.points)
        told = control(partition, points, digits, blocks)
        return told, np.uint32(self.division.batches), *self._given


class ByValues:
    """The program that takes in values which were computed before."""

    def __init__(self, job: Job, reducing: Reducing, division: Division, most: int):
        self.division, self._rows = division, most * division.points
        self._home = home_of(job)
        self.job = job = job.with_most(self._rows)
        traced = job.traced[0]
        self._given = reducing.placed(self._home)[:2]
        kinds, batch = tuple(traced.key_kinds), job.batch_size
        values = [
            jax.ShapeDtypeStruct((self._rows, *leaf.shape), leaf.dtype)
            for leaf in traced.stored
        ]
        ok = jax.ShapeDtypeStruct((self._rows,), bool)
        numbers = [np.int32(0)] * 2
        self._absorb = compiled_once(
            reducing.absorbing,
            absorb_place(job, division, most),
            lambda: (
                build_states(reducing, kinds, batch, most)
                .lower(values, ok, *numbers, *self._given)
                .compile()
            ),
        )

    def compute(self, first: int, last: int, bar: Progress) -> tuple[Rows, Errors]:
        """Computes the values of some blocks and takes them in."""
        division = self.division
        start, stop = division.span(first, last)
        leaves, verdict = self.job.compute(range(start, stop), None, bar)
        ok = verdict.ok
        full = [*map(self._full, leaves), self._full(ok)]
        there = jax.device_put(full, self._home)
        numbers = map(np.int32, (division.batches, last - first))
        states = self._absorb(there[:-1], there[-1], *numbers, *self._given)
        rows = [np.asarray(as_data(leaf))[: last - first] for leaf in states]
        bits = division.bits(first, last, start + np.flatnonzero(~ok))
        return [*rows, bits], verdict.errors

    def _full(self, leaf: np.ndarray) -> np.ndarray:
        """As many rows as the program has; none of those added counts."""
        padding = np.zeros((self._rows - len(leaf), *leaf.shape[1:]), leaf.dtype)
        return np.concatenate([leaf, padding])
