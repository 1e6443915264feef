"""The cells of a sweep that reduces some dims: each cell is reduced by itself.

Cells are finished before the next ones begin, so that results of cells are stored, sent
and merged like the outputs of a function of the cell.
"""

import functools as ft
import math

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool

from ..._progress import Progress
from ..._reduce import ReducerTree
from ..._spaces import Space
from ..._types import Key
from ..results.schema import CellPoints, CellValues
from .failure import Verdict, clear
from .groups import Groups, OfPoints
from .points import Points
from .reduce_programs import trace_reducers
from .rows import CHUNK_BYTES, Rows

# Between two runs of points the bar is updated and Ctrl-C is checked. The exact number
# does not matter.
_MOST_POINTS = 2**16


def tile(
    count: int, each: int, room: int, batch_size: int, stops: bool
) -> tuple[int, int]:
    """Return how many of `count` cells are computed at once, and the points in a run.

    A cell has `each` points, and `room` points fit into memory.
    """
    if not stops:
        run = max(1, min(each, room))
        return max(1, min(count, room // run)), run
    # Use the shortest run that fills a batch, so that little is computed after a stop.
    cells = max(1, min(count, room))
    return cells, max(1, min(each, -(-batch_size // cells)))


class Cells(OfPoints):
    """The results of cells, a row for each.

    The last two leaves of a row are the numbers of computed and of failed points of the
    cell.
    """

    def __init__(self, points: Points, reducers: ReducerTree):
        self.reducers = reducers
        dims = points.geometry.dims
        self.each = math.prod(dims[name] for name in reducers.over or ())
        self.size = points.size // self.each
        state_bytes = trace_reducers(reducers, points.traced[0], 1).state_bytes
        room = CHUNK_BYTES // max(points.row_bytes, state_bytes)
        room = max(1, min(room, _MOST_POINTS))
        args = self.size, self.each, room, points.batch_size, reducers.stops
        self.groups = Groups(points, reducers, self.each, *tile(*args))
        self.points, self.at_once = self.groups.points, self.groups.side

    def at(self, space: Space, key: Key | None) -> "Cells":
        """Return the cells of another space of the same structure."""
        return Cells(self.points.at(space, key), self.reducers)

    def with_batch_size(self, batch_size: int) -> "Cells":
        """Return the same cells in batches of another size."""
        return Cells(self.points.with_batch_size(batch_size), self.reducers)

    def with_most(self, most: int) -> "Cells":
        """Return the same cells: no program depends on the number in a call."""
        return self

    @ft.cached_property
    def outputs(self) -> CellValues:
        """The shapes and dtypes of the result of a cell."""
        none = self.groups.states([x[:1] for x in self.groups.begin()])
        found = jtu.tree_map(_struct, self.reducers.finish_each(none, 1))
        counts = CellPoints(np.zeros(0, np.int64), np.zeros(0, np.int64))
        count = jax.ShapeDtypeStruct((), np.int64)
        return CellValues(found, jtu.tree_map(lambda _: count, counts))

    @property
    def unit(self) -> int:
        """The number of cells whose points fill all lanes."""
        return -(-self.points.unit // self.each)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the half-open range of the points of a range of cells."""
        return first * self.each, last * self.each

    def unflatten(self, rows: Rows) -> CellValues:
        """Return the results of cells, from the leaves of their rows."""
        return jtu.tree_unflatten(jtu.tree_structure(self.outputs), rows)

    def some(self, first: int, last: int, bar: Progress) -> tuple[Rows, Verdict]:
        """Compute the rows of cells at once; a row is ok if it has a value.

        Errors are numbered by the cells whose points failed. After Ctrl-C, unfinished
        cells are missing.
        """
        groups, count = self.groups, last - first
        missing, live = np.zeros((2, groups.side), bool)
        points, failed = np.zeros((2, groups.side), np.int64)
        live[:count] = True
        errors: dict[int, str] = {}
        states = groups.begin()
        for begin in range(0, self.each, groups.run):
            lanes = np.flatnonzero(live)
            if not len(lanes) or bar.stopping():
                missing |= live
                break
            states, ok, verdict = groups.absorb(states, first, lanes, begin, bar)
            length = min(groups.run, self.each - begin)
            points[lanes] += length
            failed[lanes] += length - ok[lanes].sum(axis=1)
            for text, at in verdict.errors.items():
                for cell in np.unique(at // self.each).tolist():
                    errors.setdefault(cell, text)
            if verdict.missing is not None:
                lost = verdict.missing.reshape(len(lanes), -1).any(axis=1)
                missing[lanes[lost]] = True
                live = live & ~missing
            left = self.each - begin - length
            if self.reducers.stops and left:
                stopped = self.reducers.stop_each(groups.states(states), live)
                bar.done(int(stopped.sum()) * left)
                live = live & ~stopped
        there = groups.states([np.asarray(leaf)[:count] for leaf in states])
        found = jtu.tree_leaves(self.reducers.finish_each(there, count))
        rows = [*found, points[:count], failed[:count]]
        return _judged(rows, missing[:count], errors)


def _judged(
    rows: Rows, missing: Bool[np.ndarray, " cells"], errors: dict[int, str]
) -> tuple[Rows, Verdict]:
    """Return the rows of cells, with missing ones cleared, and their verdict."""
    if missing.any():
        rows = [leaf.copy() for leaf in rows]
        clear(rows, missing)
    by_text: dict[str, list[int]] = {}
    for cell, text in errors.items():
        by_text.setdefault(text, []).append(cell)
    found = {text: np.array(cells) for text, cells in by_text.items()}
    ok = (rows[-2] > rows[-1]) & ~missing
    failed = int(rows[-1].sum())
    return rows, Verdict(ok, found, missing if missing.any() else None, failed)


def _struct(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
