"""The program that computes points and takes them in, called for blocks of points."""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from ..._spaces import digits_of
from ..._tree import as_data
from ..._vmap import by_device
from .failure import Failures, as_nonfinite, check_finite
from .memory import TooLarge, noting
from .partition import Layout, control, everywhere
from .points import Points
from .programs import Compiled, compiled, compiled_once, put
from .recompiled import note_compilation
from .reduce_programs import block_rows, blocks_to, build_blocks
from .trace import struct_of
from .traced_reducers import TracedReducers


class BlockProgram:
    """A program for blocks of `batches` batches each; no value leaves a device."""

    def __init__(
        self, points: Points, reducing: TracedReducers, batches: int, layout: Layout
    ):
        self._points, self._batches, self._layout = points, batches, layout
        self._each = batches * layout.batch_size
        traced, place = points.traced[0], everywhere(layout)
        given = put((points.arrays, traced.program.constants, points.key), place)
        init, constants, _ = reducing.placed(place)
        self._given = (*given, init, constants)

        def make() -> Compiled:
            note_compilation(traced, ("blocks", layout))
            kernel = build_blocks(traced, reducing, layout)
            lowered = kernel.lower(*jtu.tree_map(struct_of, self._arguments(0, 1)))
            return compiled(lowered, layout.unsplit)

        programs = [traced.program, reducing.absorb_program]
        with noting(layout.batch_size):
            self._compute = compiled_once(programs, ("blocks", layout), make)

    def states(self, first: int, points: int) -> list[np.ndarray] | Exception:
        """Return the states of the blocks of some points, or the error of one."""
        layout = self._layout
        try:
            with noting(layout.batch_size, first):
                states = self._compute(*self._arguments(first, points))
                check_finite(states, infs=False)
                # By way of the host, which takes less time than to put small arrays
                # together on one device.
                gathered = [
                    np.concatenate([np.asarray(x) for x in by_device(as_data(leaf))])
                    for leaf in states
                ]
        except (TooLarge, jax.errors.JaxRuntimeError) as error:
            # JAX would complain about it again when Python exits, unless something
            # else has run on the device since: no points at all.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                jax.block_until_ready(self._compute(*self._arguments(first, 0)))
            if isinstance(error, TooLarge):
                raise
            return error
        except Exception as error:
            return as_nonfinite(error)
        count = -(-points // self._each)
        rows = block_rows(count, layout.capacity, len(layout.devices))
        return [leaf[rows] for leaf in gathered]

    def name(self, first: int, points: int) -> None:
        """Raise an error that names the first of some points that fails."""

        def compute(at: int, points: int) -> Exception | None:
            found = self.states(at, points)
            return found if isinstance(found, Exception) else None

        none = Failures(self._points.function, False, 0)
        none.found(compute, slice, first, points, [])

    def _arguments(self, first: int, points: int) -> Sequence[Any]:
        start = self._points.geometry.start
        digits = digits_of(start + first, self._layout.lengths)
        partition = blocks_to(len(self._layout.devices))
        blocks = -(-points // self._each)
        told = control(partition, points, digits, blocks)
        return told, np.uint32(self._batches), *self._given
