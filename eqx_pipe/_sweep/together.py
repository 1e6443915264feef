"""Sweeps over a mesh of several processes, each of which gets the whole result."""

import contextlib
import pickle
from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from .._errors import SweepError, message
from .planning import Chunk, Outcome, Todo
from .sinks import ArraySink, ReductionSink, StoreSink

T = TypeVar("T")


class TogetherSink:
    """The share of this process, which it exchanges at the end for those of all.

    `sink` gets the chunks of all processes. A store on a disk that they share has them
    already, so there they only wait for each other.
    """

    def __init__(self, sink: ArraySink | ReductionSink | StoreSink):
        self._sink, self.plan = sink, sink.plan
        self._mine: list[Chunk] = []

    @contextlib.contextmanager
    def filling(self) -> Iterator[Todo]:
        """Yield the missing chunks of this process; exchange all of them at the end.

        Raises a `SweepError` if the sweep failed in another process.
        """
        error: BaseException | None = None
        try:
            with self._sink.filling() as todo:
                if self.plan.request.store is None:
                    index, count = self.plan.request.share or (0, 1)
                    own = todo.owned[index::count]
                    todo = Todo(own, own)
                yield todo
        except BaseException as caught:
            error = caught
        # All processes arrive here, so that none of them waits for another.
        texts = _gathered("" if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            while self._mine:
                self._sink.keep(self._mine.pop())
            raise error
        for process, text in enumerate(texts):
            if text:
                wrong = f"it failed in process {process}: {text}."
                cure = "That process shows the whole error, and which points failed."
                raise SweepError(message("sweep", wrong, cure))
        while True:
            several = _gathered(self._mine[:1])
            if not any(several):
                return
            del self._mine[:1]
            for chunk in (chunk for chunks in several for chunk in chunks):
                self._sink.keep(chunk)

    def keep(self, chunk: Chunk) -> None:
        """Keep a chunk until all processes have theirs, or write it to the store."""
        if self.plan.request.store is None:
            self._mine.append(chunk)
        else:
            self._sink.keep(chunk)

    def outcome(self) -> Outcome:
        """Return all that the sink has kept."""
        return self._sink.outcome()


def _gathered(mine: T) -> list[T]:
    """Return the values of all processes, in order."""
    from jax.experimental import multihost_utils

    data = np.frombuffer(pickle.dumps(mine), np.uint8)
    sizes = np.ravel(multihost_utils.process_allgather(np.int32(len(data))))
    # Use few lengths, since each one compiles.
    padded = np.zeros(1 << int(sizes.max() - 1).bit_length(), np.uint8)
    padded[: len(data)] = data
    rows = multihost_utils.process_allgather(padded).reshape(len(sizes), -1)
    pairs = zip(np.asarray(rows), sizes, strict=True)
    return [pickle.loads(row[:size].tobytes()) for row, size in pairs]
