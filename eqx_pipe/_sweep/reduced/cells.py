"""The cells of a sweep of which some dims are reduced: each is reduced by itself.

The points of a cell follow each other. They are computed as in any sweep, a stretch of
many cells or of one at a time, and a second program takes them in, cell beside cell. A
cell is finished before the next stretch is begun, so that what is kept, sent and merged
is the results of cells, as if they were the outputs of a function of the cell.
"""

import dataclasses
import functools as ft
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Int64

from ..._progress import Progress
from ..._reduce import ReducerTree
from ..._tree import as_data, as_keys, is_key_array
from ..._types import PyTree
from ..compute.execute import Compiled, compiled_already, compiled_once
from ..compute.failure import Verdict, clear, in_order
from ..compute.job import Job
from ..compute.sizes import CHUNK_BYTES, Rows
from ..results.cells import CellPoints, CellValues
from .kernel import wrapped
from .states import home_of
from .trace import Reducing, trace_reducers

# Between one run of points and the next a bar moves, and Ctrl-C is heard: any number
# near this one will do.
_MOST_POINTS = 2**16


@dataclasses.dataclass(frozen=True)
class Tile:
    """How many `cells` lie side by side, and how many points of each come in a `run`.

    Both depend on the space, the output and the batch size alone; so does after how
    many points a reducer is asked whether to stop.
    """

    cells: int
    run: int


def tile(count: int, each: int, room: int, batch_size: int, stops: bool) -> Tile:
    """The tile for `count` cells of `each` points, of which `room` fit in memory."""
    if not stops:
        run = min(each, room)
        return Tile(max(1, min(count, room // run)), run)
    # A run as short as fills a batch, so that little is computed behind a stop.
    cells = min(count, room)
    return Tile(cells, min(each, -(-batch_size // cells)))


class Cells:
    """What computes the results of cells, a row for each.

    The last two leaves of a row say how many points of the cell were computed, and how
    many of these failed.
    """

    def __init__(self, job: Job, reducers: ReducerTree):
        self.reducers = reducers
        dims = job.geometry.dims
        self.each = math.prod(dims[name] for name in reducers.over or ())
        self.size = job.geometry.size // self.each
        state_bytes = trace_reducers(reducers, job.traced[0], 1).state_bytes
        room = CHUNK_BYTES // max(job.row_bytes, state_bytes)
        room = max(1, min(room, _MOST_POINTS))
        args = self.size, self.each, room, job.batch_size
        self.tile = tile(*args, reducers.stops)
        self.job = dataclasses.replace(
            job, stretch=self.tile.cells * self.tile.run, costs=reducers.stops
        )
        self.reducing = trace_reducers(reducers, job.traced[0], self.tile.run)
        self.home = home_of(job)

    def at(self, job: Job) -> "Cells":
        """The same of a space of the same form."""
        return Cells(job, self.reducers)

    def __len__(self) -> int:
        return self.size

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The points of some cells, from the first to behind the last."""
        return first * self.each, last * self.each

    @ft.cached_property
    def outputs(self) -> CellValues:
        """The shapes and dtypes of what comes of a cell."""
        none = [np.asarray(as_data(leaf))[None] for leaf in self.reducing.init]
        found = jtu.tree_map(_struct, self.reducers.finish_each(self._states(none), 1))
        none = np.zeros(0, np.int64)
        count = jax.ShapeDtypeStruct((), np.int64)
        counts = jtu.tree_map(lambda _: count, CellPoints(none, none))
        return CellValues(found, counts)

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""
        return jtu.tree_leaves(self.outputs)

    @property
    def kinds(self) -> list[None]:
        """No leaf of a row holds PRNG keys."""
        return [None] * len(self.row)

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return sum(math.prod(s.shape) * s.dtype.itemsize for s in self.row)

    @property
    def unit(self) -> int:
        """How many cells lie side by side."""
        return self.tile.cells

    @property
    def most(self) -> int:
        """How many cells are computed at once at most."""
        return self.tile.cells

    def programs(self, most: int) -> list[Any]:
        """What a sweep needs, each program as it is compiled, or `None`."""
        absorb = compiled_already(self.reducing.absorbing, self._place)
        return [absorb, *self.job.programs(most)]

    def unflatten(self, leaves: Sequence[np.ndarray]) -> CellValues:
        """What comes of cells, from the leaves of their rows."""
        return jtu.tree_unflatten(jtu.tree_structure(self.outputs), leaves)

    def compute(
        self, first: int, last: int, costs: object, bar: Progress
    ) -> tuple[Rows, Verdict]:
        """The rows of some cells, and which of them have a point with a value.

        What was raised is told by the cells whose points failed. After Ctrl-C the cells
        that are not finished are missing.
        """
        starts = range(first, last, self.tile.cells)
        found = [self._tile(at, min(at + self.tile.cells, last), bar) for at in starts]
        if not found:
            return [np.zeros((0, *s.shape), s.dtype) for s in self.row], Verdict(
                np.zeros(0, bool)
            )
        parts, verdicts = zip(*found, strict=True)
        rows = [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
        return rows, in_order(verdicts)

    def _tile(self, first: int, last: int, bar: Progress) -> tuple[Rows, Verdict]:
        """The rows of cells that lie side by side."""
        count, run = last - first, self.tile.run
        missing = np.zeros(self.tile.cells, bool)
        live = np.arange(self.tile.cells) < count
        points, failed = np.zeros((2, self.tile.cells), np.int64)
        errors: dict[int, str] = {}
        state = self._begin()
        for begin in range(0, self.each, run):
            end = min(begin + run, self.each)
            cells = np.flatnonzero(live)
            if not len(cells) or bar.stopping():
                missing |= live
                break
            values, verdict = self._values(first, cells, begin, end, bar)
            for text, rows in verdict.errors.items():
                for cell in np.unique(cells[rows // (end - begin)]):
                    errors.setdefault(first + int(cell), text)
            ok = self._full(verdict.ok, cells, end - begin)
            full = [self._full(leaf, cells, end - begin) for leaf in values]
            state = self._absorb(state, full, ok, live, self._constants)
            points[live] += end - begin
            failed[live] += end - begin - ok[live].sum(axis=1)
            if verdict.missing is not None:
                lost = verdict.missing.reshape(len(cells), -1).any(axis=1)
                missing[cells[lost]] = True
                live = live & ~missing
            if self.reducers.stops and end < self.each:
                there = [np.asarray(leaf) for leaf in state]
                stopped = self.reducers.stop_each(self._states(there), live)
                bar.done(int(stopped.sum()) * (self.each - end))
                live = live & ~stopped
        there = [np.asarray(leaf)[:count] for leaf in state]
        found = jtu.tree_leaves(self.reducers.finish_each(self._states(there), count))
        rows, missing = [*found, points[:count], failed[:count]], missing[:count]
        return self._with_verdict(rows, missing, errors)

    def _with_verdict(
        self, rows: Rows, missing: Bool[np.ndarray, " cells"], errors: dict[int, str]
    ) -> tuple[Rows, Verdict]:
        """The rows of cells and what became of these; the missing are cleared."""
        ok = (rows[-2] > rows[-1]) & ~missing
        if missing.any():
            rows = [leaf.copy() for leaf in rows]
            clear(rows, missing)
        by_text: dict[str, list[int]] = {}
        for cell, text in errors.items():
            by_text.setdefault(text, []).append(cell)
        found = {text: np.array(cells) for text, cells in by_text.items()}
        return rows, Verdict(ok, found, missing if missing.any() else None)

    def _values(
        self,
        first: int,
        cells: Int64[np.ndarray, " live"],
        begin: int,
        end: int,
        bar: Progress,
    ) -> tuple[Rows, Verdict]:
        """The outputs at some points of each of some cells, and what became of them.

        `first` is the cell of the first lane. What was raised is told by row.
        """
        start, length = first * self.each + begin, end - begin
        if self.job.costs:
            index = start + cells[:, None] * self.each + np.arange(length)
            return self.job.compute_listed(index.ravel(), bar)
        # Either all points of neighbouring cells, or neighbours of one cell.
        stop = start + len(cells) * length
        values, verdict = self.job.compute(start, stop, None, bar)
        errors = {text: points - start for text, points in verdict.errors.items()}
        return values, dataclasses.replace(verdict, errors=errors)

    def _full(
        self, leaf: np.ndarray, cells: Int64[np.ndarray, " live"], length: int
    ) -> np.ndarray:
        """As many lanes and points as the program has; none of those added counts."""
        shape = self.tile.cells, self.tile.run
        leaf = leaf.reshape((len(cells), length, *leaf.shape[1:]))
        if leaf.shape[:2] == shape:
            return leaf
        full = np.zeros((*shape, *leaf.shape[2:]), leaf.dtype)
        full[cells, :length] = leaf
        return full

    def _begin(self) -> list[Array]:
        """The states of no points, side by side."""
        lanes = (self.tile.cells,)
        init = [np.asarray(as_data(leaf)) for leaf in self.reducing.init]
        full = [np.broadcast_to(leaf, lanes + leaf.shape) for leaf in init]
        return jax.device_put(full, self.home)

    def _states(self, leaves: Sequence[np.ndarray]) -> list[PyTree]:
        """The states of the reducers side by side, from raw data on the host."""
        found = list(map(as_keys, leaves, self.reducing.init))
        return jtu.tree_unflatten(self.reducing.structure, found)

    @ft.cached_property
    def _constants(self) -> list[list[Any]]:
        return self.reducing.placed(self.home)[1]

    @property
    def _place(self) -> tuple[Any, ...]:
        """What the program that takes points in depends on besides the reducers."""
        shape, job = (self.tile.cells, self.tile.run), self.job
        return "cells", *shape, *map(str, job.kinds), job.devices[0]

    @ft.cached_property
    def _absorb(self) -> Compiled:
        job, shape = self.job, (self.tile.cells, self.tile.run)
        values = [jax.ShapeDtypeStruct((*shape, *s.shape), s.dtype) for s in job.row]
        ok = jax.ShapeDtypeStruct(shape, bool)
        live = jax.ShapeDtypeStruct(shape[:1], bool)
        return compiled_once(
            self.reducing.absorbing,
            self._place,
            lambda: (
                build_cells(self.reducing, job.kinds)
                .lower(self._begin(), values, ok, live, self._constants)
                .compile()
            ),
        )


def build_cells(reducing: Reducing, kinds: Sequence[Any]) -> Any:
    """`absorb(states, values, ok, live, constants)`: the states after a run of points.

    All have a leading axis over cells; only those that are `live` change. PRNG keys are
    raw data, of the `kinds` that the values have.
    """
    own = [jr.key_impl(leaf) if is_key_array(leaf) else None for leaf in reducing.init]

    def absorb(
        states: list[Array],
        values: list[Array],
        ok: Bool[Array, "cells run"],
        live: Bool[Array, " cells"],
        constants: list[list[Array]],
    ) -> list[Array]:
        def one(
            state: list[Array],
            values: list[Array],
            ok: Bool[Array, " run"],
            live: Bool[Array, ""],
        ) -> list[Array]:
            before, outputs = wrapped(state, own), wrapped(values, kinds)
            after = map(as_data, reducing.absorb(constants, before, outputs, ok))
            pairs = zip(after, state, strict=True)
            return [jnp.where(live, new, old) for new, old in pairs]

        return jax.vmap(one)(states, values, ok, live)

    return jax.jit(absorb)


def _struct(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
