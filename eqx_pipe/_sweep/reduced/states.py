"""The states of the blocks of a sweep that is reduced.

There are two ways to the state of a block: a program that computes points and takes
them in, so that no value leaves the device; and, where that will not do, the values of
the block as an ordinary sweep computes them, taken in by a second program.
"""

import dataclasses
import math
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int32, Int64

from ..._reduce.many import Many
from ..._spaces.index import digits_of, strides
from ..._tree import is_key_array
from ..compute.execute import compiled_once
from ..compute.failure import Failures, quiet
from ..compute.kernel import Layout, by_device, control, everywhere
from ..compute.parts import Job
from ..compute.placed import put
from ..compute.plan import CHUNK_BYTES
from ..compute.progress import Progress
from ..compute.special import as_special, check_special
from ..compute.threads import all_busy, compiled
from .kernel import (
    arguments_of,
    block_batches,
    block_rows,
    build_blocks,
    build_states,
    call_blocks,
)
from .trace import trace_reducers

_MOST_BLOCKS = 64
_HOST_BYTES = 2**16


@dataclasses.dataclass(frozen=True)
class Piece:
    """The states of some blocks that follow one another.

    That of the i-th of them is row `rows[i]` of `states`; there may be more rows.
    `failed` are the points among them that failed.
    """

    first: int
    count: int
    states: list[Any]
    rows: Int32[np.ndarray, " rows"]
    failed: Int64[np.ndarray, " failed"]


class Blocks:
    """The blocks of a sweep, and the programs that compute their states.

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
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return -(-self.size // self.points)

    def span(self, block: int, count: int) -> tuple[int, int]:
        """The points of some blocks, from the first to behind the last."""
        first = block * self.points
        return first, min(first + count * self.points, self.size)

    @property
    def most(self) -> int:
        """How many blocks are computed at once at most."""
        if not self._in_order:
            room = CHUNK_BYTES // (self.job.point_bytes * self.points)
            return max(1, min(room, _MOST_BLOCKS))
        devices = len(self.job.devices)
        return devices * call_blocks(
            self.size, self.points, devices, self.reducing.state_bytes
        )

    def compute(
        self, block: int, count: int, bar: Progress, isolated: bool
    ) -> list[Piece]:
        """The states of at most `most` blocks, in order."""
        if not self._in_order:
            return [self._values(self.most).compute(block, count, bar, isolated)]
        with quiet():
            found = list(self._halved(block, count, isolated))
        first, last = self.span(block, count)
        bar.done(last - first)
        return found

    @property
    def _in_order(self) -> bool:
        # Neighbours in the index are of several programs where there are static values.
        return not self.job.geometry.static_dims

    def _halved(self, block: int, count: int, isolated: bool) -> Iterator[Piece]:
        """Computes blocks, halving them until those that fail are alone."""
        with self._lock:
            self._by_points = self._by_points or _ByPoints(self)
        found = self._by_points.compute(block, count)
        if isinstance(found, Piece):
            yield found
        elif not isolated:
            self._by_points.name(*self.span(block, count))
        elif count == 1:
            yield self._values(1).compute(block, 1, Progress(False, 1), True)
        else:
            yield from self._halved(block, count // 2, True)
            yield from self._halved(block + count // 2, count - count // 2, True)

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
        traced, devices = job.traced[0], job.devices
        window = job.geometry.window
        self.layout = layout = Layout(
            lengths=job.geometry.lengths,
            batch_size=job.batch_size,
            capacity=blocks.most // len(devices),
            devices=devices,
            strided=window is not None and window[1] != 1,
            unsplit=all_busy(devices, len(blocks)),
        )
        program, place = traced.program, everywhere(layout)
        given = put((traced.arrays, program.constants, job.key), place)
        init, constants, _ = reducing.placed(place)
        self._given = given = (*given, init, constants)

        def make() -> Any:
            traced.note_compilation(("blocks", layout))
            kernel = build_blocks(traced, reducing, layout)
            told = arguments_of(self._told(0, 1), *given)
            return compiled(kernel.lower(*told), layout.unsplit)

        programs = [program, *reducing.absorbing]
        self._compute = compiled_once(programs, ("blocks", layout), make)

    def compute(self, block: int, count: int) -> Piece | Exception:
        """The states of blocks; the error if one of their points fails."""
        found = self._states(*self.blocks.span(block, count))
        if isinstance(found, Exception):
            return found
        return Piece(block, count, *found, np.zeros(0, np.int64))

    def name(self, first: int, last: int) -> None:
        """Raises an error that names the first of some points that fails."""

        def compute(at: int, points: int) -> Exception | None:
            found = self._states(at, at + points)
            return found if isinstance(found, Exception) else None

        none = Failures(False, 0)
        none.found(compute, np.arange, 0, first, last - first, [])

    def _states(self, first: int, last: int) -> Exception | tuple[list[Any], Any]:
        """The states of the blocks from one point to another, and their rows."""
        layout, blocks = self.layout, self.blocks
        number = -(-(last - first) // blocks.points)
        told = self._told(first, last - first)
        try:
            states = self._compute(*arguments_of(told, *self._given))
            check_special(states, infs=False)
            states = _gathered(states, blocks.home)
        except jax.errors.JaxRuntimeError as error:
            # JAX would complain about it again when Python exits, unless something
            # else has run on the device since: no points at all.
            nothing = self._told(first, 0)
            jax.block_until_ready(self._compute(*arguments_of(nothing, *self._given)))
            return error
        except Exception as error:
            return as_special(error)
        return states, block_rows(number, layout.capacity, len(layout.devices))

    def _told(self, first: int, points: int) -> Any:
        start, step, _ = self.blocks.job.geometry.window or (0, 1, 0)
        layout = self.layout
        digits = digits_of(start + step * first, layout.lengths)
        table = strides(step, layout.lengths) if layout.strided else None
        return control(points, digits), table, self.blocks.batches


def _gathered(states: list[Array], home: Any) -> list[Any]:
    """States from all devices where they are merged, once they are computed."""
    bytes_ = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in states)
    if bytes_ > _HOST_BYTES or any(is_key_array(leaf) for leaf in states):
        return jax.block_until_ready(jax.device_put(states, home))
    # By way of the host, which takes less time as long as they are small.
    return [np.concatenate([np.asarray(x) for x in by_device(leaf)]) for leaf in states]


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
            ("absorb", most, self._rows, batch, *map(str, kinds), job.devices[0]),
            lambda: (
                build_states(reducing, kinds, batch, most)
                .lower(values, ok, *numbers, *self._given)
                .compile()
            ),
        )

    def compute(self, block: int, count: int, bar: Progress, isolated: bool) -> Piece:
        """Computes the values of some blocks and takes them in."""
        first, last = self.blocks.span(block, count)
        leaves, ok = self.job.compute(first, last, None, bar, isolated)
        full = [*map(self._full, leaves), self._full(ok)]
        there = jax.device_put(full, self.blocks.home)
        numbers = map(np.int32, (self.blocks.batches, count))
        states = self._absorb(there[:-1], there[-1], *numbers, *self._given)
        rows = np.arange(self.most, dtype=np.int32)
        return Piece(block, count, states, rows, first + np.flatnonzero(~ok))

    def _full(self, leaf: np.ndarray) -> np.ndarray:
        """As many rows as the program has; none of those added counts."""
        padding = np.zeros((self._rows - len(leaf), *leaf.shape[1:]), leaf.dtype)
        return np.concatenate([leaf, padding])
