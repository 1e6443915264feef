"""Which points have no value, as ranges: where most have one, that takes no memory.

A gap is a range of points with one status, missing or failed: the first one, the one
behind the last, and the status. Gaps are in order and do not overlap.
"""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Int8, Int64, Integer

from ..._store.ledger import FAILED, MISSING, OK, runs_of
from ..._store.store import Store

Gaps: TypeAlias = Int64[np.ndarray, "_gaps 3"]

NO_GAPS = np.zeros((0, 3), np.int64)


def gaps_of(
    ok: Bool[np.ndarray, " points"], missing: Bool[np.ndarray, " points"] | None = None
) -> Gaps:
    """The gaps among points of which some are `ok`, and others not even computed."""
    if ok.all():
        return NO_GAPS
    absent = np.zeros_like(ok) if missing is None else missing
    return merged({MISSING: runs_of(absent), FAILED: runs_of(~(ok | absent))})


def merged(ranges: dict[int, Int64[np.ndarray, "_ranges 2"]]) -> Gaps:
    """Ranges of some statuses in order."""
    each = [
        np.column_stack([spans, np.full(len(spans), status)])
        for status, spans in ranges.items()
    ]
    found = np.concatenate([NO_GAPS, *each])
    return found[np.argsort(found[:, 0], kind="stable")]


def stored_gaps(store: Store) -> Gaps:
    """The points that a store lacks, and those that have failed."""
    ledger, size = store.ledger, store.chunks.size
    edges = np.concatenate([[0], ledger.runs().reshape(-1), [size]]).reshape(-1, 2)
    absent = [edges[edges[:, 0] < edges[:, 1]]]
    for number in ledger.lacking:
        absent.append(store.chunks.span(number)[0] + runs_of(ledger.lacks(number)))
    return merged({MISSING: np.concatenate(absent), FAILED: ledger.failures()})


def status_in(gaps: Gaps, size: int) -> Int8[np.ndarray, " points"]:
    """The status of every one of so many points."""
    edges = np.concatenate([[0], gaps[:, :2].reshape(-1), [size]])
    kinds = np.full(len(edges) - 1, OK, np.int8)
    # Every second stretch between the edges is a gap; those of no length vanish.
    kinds[1::2] = gaps[:, 2]
    return np.repeat(kinds, np.diff(edges))


def status_at(
    gaps: Gaps, index: Integer[np.ndarray, " some"]
) -> Int8[np.ndarray, " some"]:
    """The status of the points at some indices."""
    if not len(gaps):
        return np.full(len(index), OK, np.int8)
    # The last gap that begins at or before each index.
    near = gaps[np.maximum(np.searchsorted(gaps[:, 0], index, side="right") - 1, 0)]
    within = (near[:, 0] <= index) & (index < near[:, 1])
    return np.where(within, near[:, 2], OK).astype(np.int8)


def picked_gaps(gaps: Gaps, index: Integer[np.ndarray, " picked"]) -> Gaps:
    """Those of the points at some indices, in their order."""
    status = status_at(gaps, index)
    return gaps_of(status == OK, status == MISSING)


def joined_gaps(some: Iterable[tuple[Gaps, int]]) -> Gaps:
    """Those of several results, one behind the other, each with its size."""
    found, first = [NO_GAPS], 0
    for gaps, size in some:
        found.append(gaps + np.array([first, first, 0]))
        first += size
    return np.concatenate(found)


def count_in(gaps: Gaps, status: int) -> int:
    """How many points have a status, missing or failed."""
    own = gaps[gaps[:, 2] == status]
    return int(np.sum(own[:, 1] - own[:, 0]))


def first_in(gaps: Gaps, status: int, most: int) -> list[int]:
    """The first points with a status, missing or failed."""
    found: list[int] = []
    for first, stop, _ in gaps[gaps[:, 2] == status][:most].tolist():
        found += range(first, min(stop, first + most))
    return found[:most]
