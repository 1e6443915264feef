"""The points without a value, as ranges, which need little memory if there are few.

A gap is a half-open range of points with one status, missing or failed: its first
point, its end and the status. Gaps are in order and do not overlap.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Int8, Int64, Integer

MISSING, OK, FAILED = 0, 1, 2
"""The status of a row."""

Gaps: TypeAlias = Int64[np.ndarray, "_gaps 3"]

NO_GAPS = np.zeros((0, 3), np.int64)


def runs_of(mask: Bool[np.ndarray, " rows"]) -> Int64[np.ndarray, "ranges 2"]:
    """Return the ranges in which a mask is true."""
    padded = np.concatenate([[False], mask, [False]])
    return np.flatnonzero(padded[1:] != padded[:-1]).reshape(-1, 2)


def ranges_of(points: Int64[np.ndarray, " points"]) -> list[list[int]]:
    """Return sorted points as ranges."""
    ends = np.flatnonzero(np.diff(points) != 1) + 1
    parts = np.split(points, ends) if len(points) else []
    return [[int(part[0]), int(part[-1]) + 1] for part in parts]


def points_in(
    ranges: Iterable[Iterable[int]] | Int64[np.ndarray, "ranges 2"],
) -> Int64[np.ndarray, " points"]:
    """Return the points of ranges."""
    each = [np.arange(first, stop, dtype=np.int64) for first, stop in ranges]
    return np.concatenate([np.zeros(0, np.int64), *each])


def gaps_of(
    ok: Bool[np.ndarray, " points"], missing: Bool[np.ndarray, " points"] | None = None
) -> Gaps:
    """Return the gaps among points of which some are `ok`, and others `missing`."""
    if ok.all():
        return NO_GAPS
    absent = np.zeros_like(ok) if missing is None else missing
    return merged({MISSING: runs_of(absent), FAILED: runs_of(~(ok | absent))})


def merged(ranges: Mapping[int, Int64[np.ndarray, "_ranges 2"]]) -> Gaps:
    """Return ranges of several statuses as gaps in order."""
    each = [
        np.column_stack([spans, np.full(len(spans), status)])
        for status, spans in ranges.items()
    ]
    found = np.concatenate([NO_GAPS, *each])
    return found[np.argsort(found[:, 0], kind="stable")]


def status_in(gaps: Gaps, size: int) -> Int8[np.ndarray, " points"]:
    """Return the status of each of `size` points."""
    edges = np.concatenate([[0], gaps[:, :2].reshape(-1), [size]])
    kinds = np.full(len(edges) - 1, OK, np.int8)
    # Every second range between the edges is a gap; empty ranges have no effect.
    kinds[1::2] = gaps[:, 2]
    return np.repeat(kinds, np.diff(edges))


def picked_gaps(gaps: Gaps, index: Integer[np.ndarray, " picked"]) -> Gaps:
    """Return the gaps among the points at some indices, in their order."""
    if not len(gaps):
        return NO_GAPS
    # Find the last gap that begins at or before each index.
    near = gaps[np.maximum(np.searchsorted(gaps[:, 0], index, side="right") - 1, 0)]
    within = (near[:, 0] <= index) & (index < near[:, 1])
    return gaps_of(~within, within & (near[:, 2] == MISSING))


def joined_gaps(some: Iterable[tuple[Gaps, int]]) -> Gaps:
    """Return the gaps of several concatenated results, given each with its size."""
    found, first = [NO_GAPS], 0
    for gaps, size in some:
        found.append(gaps + np.array([first, first, 0]))
        first += size
    return np.concatenate(found)


def count_in(gaps: Gaps, status: int) -> int:
    """Return the number of points with a status: missing or failed."""
    own = gaps[gaps[:, 2] == status]
    return int(np.sum(own[:, 1] - own[:, 0]))


def first_in(gaps: Gaps, status: int, most: int) -> list[int]:
    """Return the first points with a status: missing or failed."""
    found: list[int] = []
    for first, stop, _ in gaps[gaps[:, 2] == status][:most].tolist():
        found += range(first, min(stop, first + most))
    return found[:most]
