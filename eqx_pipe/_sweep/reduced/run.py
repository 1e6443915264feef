"""The states of blocks, merged in the order of the index."""

import dataclasses
import time
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int64

from ..._types import PyTree
from ..compute.execute import compiled_once
from ..compute.progress import Progress
from .kernel import build_merge
from .states import Blocks, Piece

_STOP_SECONDS = 0.02
"""About how much work may be done in vain when a reducer stops the sweep."""


@dataclasses.dataclass(frozen=True)
class Reduced:
    """A reduction, of how many points, and which of them failed."""

    values: PyTree
    points: int
    failed: Int64[np.ndarray, " failed"]


class Fold:
    """The state of the first `taken` blocks; `stopped` if a reducer asked to stop."""

    def __init__(self, blocks: Blocks):
        self.blocks, self.taken, self.stopped = blocks, 0, False
        self._failed: list[np.ndarray] = []
        self.state, _, self._constants = blocks.reducing.placed(blocks.home)

    @property
    def points(self) -> int:
        """How many points the sweep has up to where it stopped."""
        return self.blocks.span(0, self.taken)[1]

    @property
    def failed(self) -> Int64[np.ndarray, " failed"]:
        """Which of these points failed."""
        failed = np.concatenate([np.zeros(0, np.int64), *self._failed])
        return failed[failed < self.points]

    def take(self, piece: Piece) -> None:
        """Merges the states of the next blocks, one by one where one may stop."""
        assert piece.first == self.taken
        merge = self._compiled(piece)
        self._failed.append(piece.failed)
        stops, count = self.blocks.reducers.stops, piece.count
        spans = [(i, i + 1) for i in range(count)] if stops else [(0, count)]
        for first, last in spans:
            span = (np.int32(first), np.int32(last))
            self.state = merge(
                self.state, piece.states, piece.rows, *span, self._constants
            )
            self.taken = piece.first + last
            if stops and self.blocks.reducers.stop(self._tree()):
                self.stopped = True
                return

    def finish(self) -> Reduced:
        """The reduction."""
        values = self.blocks.reducers.finish(self._tree())
        return Reduced(values, self.points, self.failed)

    def _tree(self) -> PyTree:
        return jtu.tree_unflatten(self.blocks.reducing.structure, self.state)

    def _compiled(self, piece: Piece) -> Any:
        total = len(piece.rows)
        stacked = [jax.ShapeDtypeStruct((total, *s.shape), s.dtype) for s in self.state]
        given = (self.state, stacked, piece.rows, np.int32(0), np.int32(0))
        return compiled_once(
            self.blocks.reducing.merging,
            ("merge", total, self.blocks.job.devices[0]),
            lambda: (
                build_merge(self.blocks.reducing)
                .lower(*given, self._constants)
                .compile()
            ),
        )


def run(blocks: Blocks, bar: Progress, isolated: bool) -> Reduced:
    """Reduces a sweep; one that may stop begins with few blocks."""
    fold, pace = Fold(blocks), 1
    while fold.taken < len(blocks) and not fold.stopped:
        count = min(blocks.most, len(blocks) - fold.taken)
        count = min(count, pace) if blocks.reducers.stops else count
        began = time.perf_counter()
        for piece in blocks.compute(fold.taken, count, bar, isolated):
            if not fold.stopped:
                fold.take(piece)
        bar.failed(len(fold.failed))
        if time.perf_counter() - began < _STOP_SECONDS:
            pace *= 2
    return fold.finish()
