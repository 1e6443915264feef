"""The states of blocks, merged in the order of the index whenever they come."""

import numpy as np
from jaxtyping import Int64

from ..._store.chunks import Chunks
from ..._types import PyTree
from ..compute.capacity import Rows
from ..plan import BlockWork


class Fold:
    """The reduction of chunks of blocks, merged in order up to the first one missing.

    A reducer may ask to stop after any block: then it is `stopped`, and what comes
    later is not merged.
    """

    def __init__(self, blocks: BlockWork, chunks: Chunks):
        self.blocks, self.chunks = blocks, chunks
        self.state = blocks.begin()
        self.next = 0
        """The number of the chunk that is merged next."""
        self.stopped = False
        self._taken = 0
        self._waiting: dict[int, Rows] = {}
        self._failed: list[np.ndarray] = []

    @property
    def points(self) -> int:
        """How many points the sweep has up to where it stopped."""
        return self.blocks.span(0, self._taken)[1]

    @property
    def failed(self) -> Int64[np.ndarray, " failed"]:
        """Which of these points failed."""
        failed = np.concatenate([np.zeros(0, np.int64), *self._failed])
        return failed[failed < self.points]

    def put(self, number: int, values: Rows) -> None:
        """Takes a chunk, and merges all that can be."""
        self._waiting[number] = values
        while self.next in self._waiting and not self.stopped:
            self._merge(self._waiting.pop(self.next))
            self.next += 1

    def finish(self) -> PyTree:
        """The reduction."""
        return self.blocks.finish(self.state)

    def _merge(self, values: Rows) -> None:
        blocks, count = self.blocks, len(values[-1])
        first, _ = blocks.span(self._taken, self._taken)
        bits = np.unpackbits(values[-1], axis=1)[:, : blocks.points]
        self._failed.append(first + np.flatnonzero(bits))
        # One by one where a reducer may stop.
        stops = blocks.reducers.stops
        spans = [(i, i + 1) for i in range(count)] if stops else [(0, count)]
        states = blocks.merge(self.state, values, spans, self.chunks.points)
        for (first, last), state in zip(spans, states, strict=True):
            self.state = state
            self._taken += last - first
            if stops and blocks.stop(state):
                self.stopped = True
                return
