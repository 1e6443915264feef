"""Rows of states, merged in the order of the index whenever they come."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..._store.chunks import Chunks
from ..._store.store import MISSING, Store
from ..reduced.rows import BlockRows
from ..reduced.run import Fold
from .loop import Asked, Source


class InStore:
    """The reduction of what is in a store."""

    def __init__(self, rows: BlockRows, store: Store):
        self.rows, self.store = rows, store
        self.fold = Fold(rows.blocks)
        self._next = 0

    @property
    def stopped(self) -> bool:
        """Whether a reducer asked to stop."""
        return self.fold.stopped

    def advance(self) -> None:
        """Merges the chunks that are finished up to the first one that is not.

        Only where it may stop the sweep.
        """
        if not self.rows.blocks.reducers.stops:
            return
        chunks = self.store.chunks
        while self._next < len(chunks) and not self.stopped:
            try:
                if not (self.store.is_done(self._next) and self._take()):
                    return
            except OSError:  # damaged; it is removed, or named when all is read
                return

    def all(self) -> tuple[Fold, list[tuple[int, int]]]:
        """Merges all that there is; and the blocks that are missing, from and to."""
        gaps, most = [], self.store.chunks.points
        while self._next < len(self.store.chunks) and not self.stopped:
            if not self._take():
                first, last = self.store.chunks.span(self._next)
                gaps.append((first, last))
                self.fold.take(self.rows.gap(first, last - first, most))
                self._next += 1
        return self.fold, gaps

    def _take(self) -> bool:
        """Merges the next chunk; whether it is there."""
        number, store = self._next, self.store
        if (store.read_status(number) == MISSING).any():
            return False
        names = range(len(store.arrays))
        values = [store.read(number, variable) for variable in names]
        first, _ = store.chunks.span(number)
        self.fold.take(self.rows.piece(first, values, store.chunks.points))
        self._next += 1
        return True


class InTurn:
    """The reduction of rows that come in any order."""

    def __init__(self, rows: BlockRows, chunks: Chunks):
        self.rows, self.chunks = rows, chunks
        self.fold = Fold(rows.blocks)
        self.waiting: dict[int, list[np.ndarray]] = {}
        self._next = 0

    @property
    def stopped(self) -> bool:
        """Whether a reducer asked to stop."""
        return self.fold.stopped

    def advance(self) -> None:
        """Merges the chunks that have come up to the first one that has not."""
        while self._next in self.waiting and not self.stopped:
            first, _ = self.chunks.span(self._next)
            values = self.waiting.pop(self._next)
            self.fold.take(self.rows.piece(first, values, self.chunks.points))
            self._next += 1


@dataclasses.dataclass(frozen=True)
class _Either:
    """Asked to stop by Ctrl-C, or by a reducer."""

    stop: Asked
    fold: Any

    @property
    def asked(self) -> bool:
        return self.stop.asked or self.fold.stopped


def until_stopped(inner: Source, fold: Any) -> Source:
    """Chunks, until those at the beginning say that no more are needed."""

    def source(todo: Sequence[int], stop: Asked) -> Iterator[Any]:
        for chunk in inner(todo, _Either(stop, fold)):
            yield chunk
            # By now it has been kept.
            fold.advance()
            if fold.stopped:
                return

    return source
