"""Cells: the points along the dims that `over=` names, and their result.

Cells are stored, sent and merged like the outputs of a function of the cell.
"""

import functools as ft

import jax.tree_util as jtu
import numpy as np

from ..._tree import struct_of
from ..._types import PyTree
from ..program.layout import CHUNK_BYTES
from .buffer import Rows, Verdict, joined
from .groups import Call, Computed, Groups, Steps

# Between two runs of points the bar is updated and Ctrl-C is checked. The exact number
# does not matter.
_MOST_POINTS = 2**16


class Cells(Groups):
    """The results of cells, a row for each.

    Cells are finished before the next ones begin. No program depends on the number of
    cells in a call.
    """

    @ft.cached_property
    def _tile(self) -> tuple[int, int]:
        """The number of cells computed at once, and of points of each in a run."""
        points = self.points
        room = CHUNK_BYTES // max(points.row_bytes, self.reducing(1).state_bytes)
        room = max(1, min(room, _MOST_POINTS))
        run = max(1, min(self.each, room))
        return max(1, min(self.size, room // run)), run

    @property
    def at_once(self) -> int:
        """The maximum number of cells computed at once."""
        return self._tile[0]

    @ft.cached_property
    def outputs(self) -> PyTree:
        """The shapes and dtypes of the result of a cell."""
        run = self._tile[1]
        states = self._states(self._initial(1, run), run)
        results = self.reducers.finish_each(states, 1)
        return jtu.tree_map(lambda leaf: struct_of(leaf, drop=1), results)

    @property
    def unit(self) -> int:
        """The number of cells whose points fill all lanes."""
        return -(-self.points.unit // self.each)

    def unflatten(self, rows: Rows) -> PyTree:
        """Return the results of cells, from the leaves of their rows."""
        return jtu.tree_unflatten(jtu.tree_structure(self.outputs), rows)

    def _some(self, first: int, last: int, call: Call) -> Steps[Computed]:
        """Compute the rows of cells at once; a row is ok if it has a value.

        Errors are numbered by the cells whose points failed.
        """
        (side, run), count = self._tile, last - first
        tally = yield from self._reduce(first, count, side, run, call)
        points, failed, missing = (
            leaf[:count] for leaf in (tally.points, tally.failed, tally.missing)
        )
        ended = self._states([np.asarray(leaf)[:count] for leaf in tally.states], run)
        rows = list(jtu.tree_leaves(self.reducers.finish_each(ended, count)))
        ok, errors = (points > failed) & ~missing, joined(tally.errors).items()
        cells = {text: np.unique(at // self.each) for text, at in errors}
        return rows, Verdict(ok, cells, missing, int(failed.sum()))
