"""The points that a planned sweep would find in its store, and those to compute."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..store import FAILED, MISSING, count_in, statuses_of
from .growth import Grown
from .store_sink import StoreSink


@dataclasses.dataclass(frozen=True)
class Left:
    """The points that a sweep would find in its store, and those to compute.

    `left` are the chunks that it would compute, with `num_left` points. `new` is the
    number of points that the store gains as its space has grown, and `copied` the
    number that move to other files. `value_bytes` is the size of all values.
    """

    left: Sequence[int]
    num_left: int
    done: int = 0
    failed: int = 0
    new: int = 0
    copied: int = 0
    value_bytes: int | None = None


def left_in(sink: StoreSink) -> Left:
    """Return the remaining work in a store that was opened without writing."""
    store, plan = sink.store, sink.plan
    if sink.opened.grown is not None:
        return _after_growth(sink, sink.opened.grown)
    todo, gaps = sink.todo(), store.account().gaps
    for gap in gaps:  # gaps of blocks, if points are reduced
        gap[:2] = plan.work.span(*gap[:2].tolist())
    there = plan.work.span(0, store.chunks.size)[1] - count_in(gaps, MISSING)
    return Left(
        todo.chunks,
        todo.left(plan),
        there,
        count_in(gaps, FAILED),
        value_bytes=store.chunks.size * store.row_bytes,
    )


def _after_growth(sink: StoreSink, grown: Grown) -> Left:
    chunks, left, num_left = grown.layout.chunks, list[int](), 0
    store, done, failed = sink.store, 0, 0
    for number, (_, status) in enumerate(statuses_of(store, chunks, grown.origin)):
        lacks, fails = int(np.sum(status == MISSING)), int(np.sum(status == FAILED))
        done, failed = done + len(status) - lacks, failed + fails
        wanted = lacks + fails * (sink.plan.request.resume == "failed")
        if wanted and number in sink.owned:
            left.append(number)
            num_left += wanted
    new, copied = chunks.size - store.chunks.size, done * grown.moved
    value_bytes = chunks.size * store.row_bytes
    return Left(left, num_left, done, failed, new, copied, value_bytes)
