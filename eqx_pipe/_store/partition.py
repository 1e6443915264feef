"""The points of a grid in chunks, and those without a value as ranges.

The points of a chunk are consecutive in the flat index, and a box in the grid. Chunks
of whole trailing rows are both: a chunk has one position on each leading dim, a range
of positions on one dim, and all positions on the dims after it.

A gap is a half-open range of points with one status, missing or failed: its first
point, its end and the status. Gaps are in order and do not overlap; they need little
memory if there are few.

How a chunk is written is in `commit.py`, by the rules of `fill.py`.
"""

import dataclasses
import functools as ft
import itertools as it
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Int8, Int64, Integer

MISSING, OK, FAILED = 0, 1, 2
"""The status of a row."""

Gaps: TypeAlias = Int64[np.ndarray, "_gaps 3"]

NO_GAPS = np.zeros((0, 3), np.int64)

_AT_LEAST = 256
"""The minimum number of chunks of a large sweep; a kill loses at most one chunk."""


@dataclasses.dataclass(frozen=True)
class Chunks:
    """The points of a grid in chunks: `count` positions on the dim `split` in each.

    The last chunk of a row may be smaller.
    """

    lengths: tuple[int, ...]
    split: int
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of a chunk on each dim."""
        return (1,) * self.split + (self.count,) + self.lengths[self.split + 1 :]

    @property
    def size(self) -> int:
        """The number of points of the grid."""
        return math.prod(self.lengths)

    @property
    def inner(self) -> int:
        """The number of points for each position on the split dim."""
        return math.prod(self.lengths[self.split + 1 :])

    @property
    def points(self) -> int:
        """The maximum number of points of a chunk."""
        return self.count * self.inner

    @property
    def in_row(self) -> int:
        """The number of chunks along the split dim."""
        return -(-self.lengths[self.split] // self.count)

    def __len__(self) -> int:
        return math.prod(self.lengths[: self.split]) * self.in_row

    def span(self, number: int) -> tuple[int, int]:
        """Return the half-open range of the points of a chunk."""
        row, column = divmod(number, self.in_row)
        n = self.lengths[self.split]
        first, last = column * self.count, min((column + 1) * self.count, n)
        return (row * n + first) * self.inner, (row * n + last) * self.inner

    def holding(self, points: Integer[np.ndarray, "*_"]) -> Integer[np.ndarray, "*_"]:
        """Return the number of the chunk of each point."""
        row, index = np.divmod(points // self.inner, self.lengths[self.split])
        return np.asarray(row * self.in_row + index // self.count)

    def grouped(
        self, points: Integer[np.ndarray, " points"]
    ) -> Iterator[tuple[int, Integer[np.ndarray, " here"]]]:
        """Yield the chunks of some points, each with the positions of its points."""
        numbers = self.holding(points)
        order = np.argsort(numbers, kind="stable")
        ends = np.flatnonzero(np.diff(numbers[order])) + 1
        for here in np.split(order, ends) if len(order) else []:
            yield int(numbers[here[0]]), here

    @ft.cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of chunks along each dim."""
        pairs = zip(self.lengths, self.shape, strict=True)
        return tuple(-(-n // max(1, size)) for n, size in pairs)

    def names(self, root: str) -> Iterator[str]:
        """Return the names of the files of all chunks, in order."""
        positions = it.product(*(list(map(str, range(n))) for n in self.counts))
        return map(root.__add__, map(".".join, positions))

    def position(self, number: int) -> str:
        """Return the position of a chunk among the chunks on each dim, as text."""
        return ".".join(map(str, np.unravel_index(number, self.counts)))


def choose_chunks(
    lengths: Sequence[int], across: int, most: int, parts: int = 1
) -> Chunks:
    """Return the division of a grid into chunks.

    A chunk has a small share of all points, so that a kill costs little. It has at
    least `across` points, which are computed at once, and at most `most`, which fit
    into memory. Each of `parts` processes gets a chunk, if there are enough points.
    """
    lengths = tuple(lengths)
    size = math.prod(lengths)
    if size == 0:
        return Chunks(lengths, 0, 1)
    share = -(-size // _AT_LEAST)
    aim = min(max(share, across), max(most, across), max(1, size // parts))
    # Split the first dim of which one position is not too large.
    inners = [math.prod(lengths[split + 1 :]) for split in range(len(lengths))]
    split, inner = next((k, inner) for k, inner in enumerate(inners) if inner <= aim)
    # Use as many full rounds of all lanes as fit, or fewer points if parts need some.
    points = max(1, aim // across) * across
    points = points if parts == 1 else min(points, aim)
    return Chunks(lengths, split, min(lengths[split], max(1, points // inner)))


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
    pairs = ranges.items()
    each = [np.column_stack([x, np.full(len(x), status)]) for status, x in pairs]
    gaps = np.concatenate([NO_GAPS, *each])
    return gaps[np.argsort(gaps[:, 0], kind="stable")]


def picked_gaps(gaps: Gaps, index: Integer[np.ndarray, " picked"]) -> Gaps:
    """Return the gaps among the points at some indices, in their order."""
    if not len(gaps):
        return NO_GAPS
    # Find the last gap that begins at or before each index.
    near = gaps[np.maximum(np.searchsorted(gaps[:, 0], index, side="right") - 1, 0)]
    within = (near[:, 0] <= index) & (index < near[:, 1])
    return gaps_of(~within, within & (near[:, 2] == MISSING))


def joined_gaps(parts: Iterable[tuple[Gaps, int]]) -> Gaps:
    """Return the gaps of several concatenated results, given each with its size."""
    shifted, first = [NO_GAPS], 0
    for gaps, size in parts:
        shifted.append(gaps + np.array([first, first, 0]))
        first += size
    return np.concatenate(shifted)


def statuses_in(gaps: Gaps, size: int) -> Int8[np.ndarray, " points"]:
    """Return the status of each of `size` points."""
    edges = np.concatenate([[0], gaps[:, :2].reshape(-1), [size]])
    status = np.full(len(edges) - 1, OK, np.int8)
    status[1::2] = gaps[:, 2]  # every second range between the edges is a gap
    return np.repeat(status, np.diff(edges))


def count_in(gaps: Gaps, status: int) -> int:
    """Return the number of points with a status: missing or failed."""
    ranges = gaps[gaps[:, 2] == status]
    return int(np.sum(ranges[:, 1] - ranges[:, 0]))


def first_in(gaps: Gaps, status: int, most: int) -> list[int]:
    """Return the first points with a status: missing or failed."""
    points: list[int] = []
    for first, stop, _ in gaps[gaps[:, 2] == status][:most].tolist():
        points += range(first, min(stop, first + most))
    return points[:most]
