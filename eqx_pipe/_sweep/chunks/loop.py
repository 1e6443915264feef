"""The loop over the chunks of a sweep, wherever they are computed and kept."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Bool, Float

from ..._store.chunks import Chunks
from ..compute.progress import Progress


@runtime_checkable
class Work(Protocol):
    """What is computed: rows, each of a point or of a block of points."""

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        ...

    @property
    def row(self) -> Sequence[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""
        ...

    def count(self, first: int, last: int) -> int:
        """How many points some rows stand for."""
        ...

    def failures(self, values: list[np.ndarray], ok: Any) -> int:
        """How many points have failed in some rows."""
        ...

    def compute(
        self, first: int, last: int, costs: Any, bar: Progress, isolated: bool
    ) -> tuple[list[np.ndarray], Bool[np.ndarray, " rows"]]:
        """Some rows, and in which of them no point failed."""
        ...


@runtime_checkable
class Asked(Protocol):
    """Whether to begin no more chunks."""

    @property
    def asked(self) -> bool:
        """Whether somebody has asked for that."""
        ...


Chunk = tuple[int, list[np.ndarray], Bool[np.ndarray, " points"]]
"""The number of a chunk, its output leaves, and which points have not failed."""


Source = Callable[[Sequence[int], Asked], Iterator[Chunk]]
"""Computes chunks by number; gives each when it is finished, in any order."""


Costs = Callable[[int, int], Float[np.ndarray, " points"]]
"""What points cost, from one to the one behind the last."""


def here(
    work: Work,
    chunks: Chunks,
    costs: Costs | None,
    bar: Progress,
    isolated: bool,
) -> Source:
    """Chunks that are computed in this process, one after the other."""

    def source(todo: Sequence[int], stop: Asked) -> Iterator[Chunk]:
        for number in todo:
            if stop.asked:
                return
            span = chunks.span(number)
            own = None if costs is None else costs(*span)
            yield number, *work.compute(*span, own, bar, isolated)

    return source


def gather(
    source: Source,
    todo: Sequence[int],
    keep: Callable[[int, list[np.ndarray], Any], None],
    stop: Asked,
) -> None:
    """Computes chunks and hands each to `keep`; after Ctrl-C no more than are begun."""
    kept = 0
    chunks = source(todo, stop)
    for chunk in chunks:
        keep(*chunk)
        kept += 1
    if stop.asked and kept < len(todo):
        raise KeyboardInterrupt
