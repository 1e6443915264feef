"""The growth of a store: from the chunks of a grid to those of a larger one.

Old points are recognised in `_sweep/stored_plan.py`. Here their values stay in their
files if the grid only appends, or are copied. See `fill.py` for the rules.
"""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Int8, Int64

from .._errors import sweep_error
from .commit import commit_chunk, mark_odd
from .create import lay_out, locked
from .disk import disk_errors
from .format import StoreLayout
from .objects import Files
from .partition import FAILED, MISSING, OK, Chunks
from .store import Damaged, Store, open_store

_GROW = "grow"
"""The lock for growing a store."""

_MOST = 4
"""The maximum number of chunks of a grown store, relative to that of a new one."""

_FEW = 256
"""A number of chunks that is always acceptable."""

_TOGETHER = 2**16
"""The number of rows to look up at once, if chunks are smaller."""

_KEPT_BYTES = 2**28
"""The bytes of values in memory during a copy."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """The old index of each point of a larger grid.

    `positions` has for each dim the old position of each new position, or -1; `lengths`
    are the lengths of the old grid.
    """

    positions: tuple[Int64[np.ndarray, "_"], ...]
    lengths: tuple[int, ...]

    @property
    def appends(self) -> bool:
        """True if all old positions are unchanged."""
        pairs = zip(self.positions, self.lengths, strict=True)
        return all(np.array_equal(at[:n], np.arange(n)) for at, n in pairs)

    def rows(self, first: int, last: int) -> Int64[np.ndarray, " points"]:
        """Return the old index of each point in a range, or -1."""
        lengths = tuple(map(len, self.positions))
        digits = np.unravel_index(np.arange(first, last), lengths)
        pairs = zip(self.positions, digits, strict=True)
        was = np.stack([at[digit] for at, digit in pairs])
        old = tuple(max(1, n) for n in self.lengths)
        index = np.ravel_multi_index(tuple(was), old, mode="clip")
        return np.where(np.all(was >= 0, axis=0), index, -1)


@dataclasses.dataclass(frozen=True)
class Growth:
    """The larger store that a store becomes; if values are `moved`, in other files."""

    layout: StoreLayout
    origin: Origin
    moved: bool


def in_place(old: Chunks, lengths: Sequence[int], fresh: Chunks) -> Chunks | None:
    """Return the chunks of an extended grid if all files can stay, else `None`.

    `fresh` are the chunks that a new store would have. On the dims after the split one
    a chunk has all positions, so it cannot become longer there.
    """
    if len(lengths) != len(old.lengths) or old.size == 0:
        return None
    if tuple(lengths)[old.split + 1 :] != old.lengths[old.split + 1 :]:
        return None
    chunks = Chunks(tuple(lengths), old.split, old.count)
    return chunks if len(chunks) <= max(_FEW, _MOST * len(fresh)) else None


def grow_store(
    files: Files, growth_of: Callable[[Store], Growth | None]
) -> Store | None:
    """Let a store grow, and return it; `None` if another process has done it.

    `growth_of` is called under a lock, and raises for the store of another sweep.
    """
    with contextlib.ExitStack() as stack:
        with disk_errors(files.path_of(), "be locked"):
            stack.enter_context(files.lock(_GROW, wait=True))
        store = open_store("sweep", files)
        growth = growth_of(store)
        if growth is None:
            return None
        with locked(files, None) as has_locks, disk_errors(store.path, "grow"):
            if not has_locks:
                raise sweep_error(
                    "sweep",
                    "growing a store requires file locks, which "
                    f"`{store.path}` does not support.",
                    "Copy the store to a disk with locks, let it grow there, and "
                    "copy it back; or give another path.",
                )
            fill = ft.partial(_mark_ends, store)
            if growth.moved:
                fill = ft.partial(_copy, store, growth.origin)
            lay_out(files, growth.layout, fill, store, growth.moved)
        return open_store("sweep", files)


def _mark_ends(old: Store, new: Store) -> None:
    """Mark the chunks that become longer, since they then lack rows."""
    for number in range(old.chunks.in_row - 1, len(old.chunks), old.chunks.in_row):
        begin, end = old.chunks.span(number)
        if end - begin < old.chunks.points:
            mark_odd(old, number)


def _copy(old: Store, origin: Origin, new: Store) -> None:
    """Commit each new chunk that contains rows of an old one.

    Rows of damaged chunks are missing, and the next sweep computes them.
    """
    most = max(1, _KEPT_BYTES // max(1, old.row_bytes * old.chunks.points))

    @ft.lru_cache(most)  # adjacent new chunks often take rows from the same old chunk
    def read(number: int) -> Sequence[np.ndarray]:
        return [old.read(number, k, must_exist=True) for k in range(len(old.variables))]

    raised = old.account().errors
    for number, (rows, status) in enumerate(statuses_of(old, new.chunks, origin)):
        values = [variable.empty(len(rows)) for variable in new.variables]
        held = np.flatnonzero(status != MISSING)
        for was, at in old.chunks.grouped(rows[held]):
            index, first = held[at], old.chunks.span(was)[0]
            try:
                for leaf, old_leaf in zip(values, read(was), strict=True):
                    leaf[index] = old_leaf[rows[index] - first]
            except Damaged:
                status[index] = MISSING
        if not np.all(status == MISSING):
            failed, pairs = status == FAILED, raised.items()
            errors = {t: np.flatnonzero(np.isin(rows, x) & failed) for t, x in pairs}
            commit_chunk(new, number, values, status, errors)


def statuses_of(
    old: Store, chunks: Chunks, origin: Origin
) -> Iterator[tuple[Int64[np.ndarray, " rows"], Int8[np.ndarray, " rows"]]]:
    """Yield the old index and status of each row, for each chunk of a larger grid."""
    done, odd, _ = old.listed()
    step = max(1, _TOGETHER // max(1, chunks.points))
    for begin in range(0, len(chunks), step):
        spans = list(map(chunks.span, range(begin, min(begin + step, len(chunks)))))
        first, last = spans[0][0], spans[-1][1]
        rows = origin.rows(first, last)
        held = np.flatnonzero(rows >= 0)
        numbers = old.chunks.holding(rows[held])
        status = np.full(last - first, MISSING, np.int8)
        status[held] = np.where(done[numbers], np.int8(OK), np.int8(MISSING))
        unsure = held[(done & odd)[numbers]]
        for number, at in old.chunks.grouped(rows[unsure]):
            manifest, index = old.manifest(number), unsure[at]
            if manifest is not None:
                start = old.chunks.span(number)[0]
                status[index] = manifest.status[rows[index] - start]
        for a, b in spans:
            yield rows[a - first : b - first], status[a - first : b - first]
