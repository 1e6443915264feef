"""The loop over the chunks of a sweep, wherever they are computed and kept."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from .._store.chunks import Chunks
from .interrupt import Interrupt
from .parts import Job
from .progress import Progress

Chunk = tuple[int, list[np.ndarray], Bool[np.ndarray, " points"]]
"""The number of a chunk, its output leaves, and which points have not failed."""


Source = Callable[[Sequence[int], Interrupt], Iterator[Chunk]]
"""Computes chunks by number; gives each when it is finished, in any order."""


def here(
    job: Job,
    chunks: Chunks,
    costs: Float[np.ndarray, " points"] | None,
    bar: Progress,
    isolated: bool,
) -> Source:
    """Chunks that are computed in this process, one after the other."""

    def source(todo: Sequence[int], stop: Interrupt) -> Iterator[Chunk]:
        for number in todo:
            if stop.asked:
                return
            span = chunks.span(number)
            own = None if costs is None else costs[slice(*span)]
            yield number, *job.compute(*span, own, bar, isolated)

    return source


def gather(
    source: Source,
    todo: Sequence[int],
    keep: Callable[[int, list[np.ndarray], Any], None],
    stop: Interrupt,
) -> None:
    """Computes chunks and hands each to `keep`; after Ctrl-C no more than are begun."""
    kept = 0
    chunks = source(todo, stop)
    for chunk in chunks:
        keep(*chunk)
        kept += 1
    if stop.asked and kept < len(todo):
        raise KeyboardInterrupt
