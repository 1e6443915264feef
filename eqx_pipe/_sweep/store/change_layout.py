"""Changes to the layout of a store, in place: creation, growth, replacement.

The files of a new layout are written under unused names, and become valid when one
file, `zarr.json`, is replaced. So every reader finds either the old or the new store,
and a kill leaves one of them. `settle` removes invalid files.

If a larger grid only appends to the old one, the files of chunks stay, since Zarr names
them by their position. Otherwise values are copied once, to names of the other kind
(see `SIDES`).
"""

import dataclasses
import functools as ft
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int8, Int64

from .chunks import Chunks
from .disk import GROWING, NEW, PARTS, ROOT, Folder
from .layout import StoreLayout, files_of, read_root, sealed
from .ranges import MISSING, OK
from .write_chunks import ODD, Store, store_of

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
        found = np.ravel_multi_index(tuple(was), old, mode="clip")
        return np.where(np.all(was >= 0, axis=0), found, -1)


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


def lay_out(
    files: Folder,
    layout: StoreLayout,
    fill: Callable[[Store], None],
    old: Store | None = None,
    moved: bool = True,
) -> None:
    """Give a store the layout `layout`, without changing valid files of an `old` store.

    `fill` writes known values into the new store before it becomes valid. If values are
    not `moved`, their files stay. No other process may write meanwhile.
    """
    settle(files)
    files.put(GROWING, NEW if old is None else b"old")
    try:
        # A random id distinguishes the files of this growth from those of a failed one.
        cut, sides = uuid.uuid4().hex[:12], dict[str, int]()
        if old is not None:
            kept = [] if moved else [*old.names(), old.record["status"]]
            was = old.record["sides"]
            sides = {name: was[name] if name in kept else 1 - was[name] for name in was}
            cut = cut if moved else old.record["cut"]
        made, root, record = files_of(layout, cut, sides)
        for key, data in made.items():
            files.put(key, data)
        fill(store_of(files, root, record))
        files.put(ROOT, sealed(root, record))
    except BaseException:
        settle(files)
        raise
    if old is None:
        files.remove(GROWING)


def create(
    files: Folder,
    layout: StoreLayout,
    fill: Callable[[Store], None] = lambda store: None,
) -> None:
    """Create a store, and its folder; if that fails, leave nothing."""
    files.path.mkdir(parents=True, exist_ok=True)
    try:
        lay_out(files, layout, fill)
    except BaseException:
        files.give_up()
        raise


def store_without_values(files: Folder, layout: StoreLayout) -> Store:
    """Return the store that would be created, without writing anything."""
    return store_of(files, *files_of(layout, "", {})[1:])


def grow(store: Store, layout: StoreLayout, origin: Origin, moved: bool) -> None:
    """Change the layout of a store for a larger grid, whose points have an `origin`."""
    fill = ft.partial(_copy, store, origin) if moved else ft.partial(_mark_ends, store)
    lay_out(store.files, layout, fill, store, moved)


def _mark_ends(old: Store, new: Store) -> None:
    """Mark the chunks that become longer, since they then lack rows."""
    done = old.done()
    for number in range(old.chunks.in_row - 1, len(old.chunks), old.chunks.in_row):
        begin, end = old.chunks.span(number)
        if done[number] and end - begin < old.chunks.points:
            new.mark(new.chunks.at(old.chunks.place(number)))


def _copy(old: Store, origin: Origin, new: Store) -> None:
    """Commit each new chunk that contains rows of an old one."""
    most = max(1, _KEPT_BYTES // max(1, old.row_bytes * old.chunks.points))
    # Adjacent new chunks often take rows from the same old chunk.
    read = ft.lru_cache(most * len(old.variables))(old.read)
    raised = old.account().errors
    for number, (rows, status) in enumerate(statuses_of(old, new.chunks, origin)):
        if np.all(status == MISSING):
            continue
        values = []
        for k, variable in enumerate(new.variables):
            found = variable.empty(len(rows))
            known = np.flatnonzero(rows >= 0)
            for was, at in old.chunks.grouped(rows[known]):
                here = known[at]
                found[here] = read(was, k)[rows[here] - old.chunks.span(was)[0]]
            values.append(found)
        errors = {
            text: np.flatnonzero(np.isin(rows, points))
            for text, points in raised.items()
        }
        new.commit(number, values, status, errors)


def statuses_of(
    old: Store, chunks: Chunks, origin: Origin
) -> Iterator[tuple[Int64[np.ndarray, " rows"], Int8[np.ndarray, " rows"]]]:
    """Yield the old index and status of each row, for each chunk of a larger grid."""
    done, odd = old.done(), np.zeros(len(old.chunks), bool)
    odd[old.odd()] = True
    step = max(1, _TOGETHER // max(1, chunks.points))
    for begin in range(0, len(chunks), step):
        spans = list(map(chunks.span, range(begin, min(begin + step, len(chunks)))))
        first, last = spans[0][0], spans[-1][1]
        rows = origin.rows(first, last)
        there = np.flatnonzero(rows >= 0)
        numbers = old.chunks.holding(rows[there])
        status = np.full(last - first, MISSING, np.int8)
        status[there] = np.where(done[numbers], np.int8(OK), np.int8(MISSING))
        some = there[(done & odd)[numbers]]
        for number, at in old.chunks.grouped(rows[some]):
            manifest, here = old.manifest(number), some[at]
            if manifest is not None:
                start = old.chunks.span(number)[0]
                status[here] = manifest.status[rows[here] - start]
        for a, b in spans:
            yield rows[a - first : b - first], status[a - first : b - first]


def settle(files: Folder) -> None:
    """Remove the invalid files of a store; no other process may write meanwhile.

    A dataset that was opened before a growth can read its values until then.
    """
    for name in files.names(PARTS):
        files.remove(f"{PARTS}/{name}")
    if not files.exists(GROWING):
        return
    nodes, record = dict[str, Any](), {"cut": "", "sides": {}}
    if files.exists(ROOT):
        root, record = read_root("sweep", files)
        nodes = root["consolidated_metadata"]["metadata"]
    for name in files.names():
        side = record["sides"].get(name)
        for file in () if name.startswith(".") else files.names(name):
            if side is None or (file != ROOT and file.startswith("c.") == bool(side)):
                files.remove(f"{name}/{file}")
    for mark in files.names(ODD):
        if mark.partition(".")[0] != record["cut"]:
            files.remove(f"{ODD}/{mark}")
    for name, node in nodes.items():
        # For readers that do not use the consolidated metadata.
        files.put(f"{name}/{ROOT}", json.dumps(node).encode())
    files.remove(GROWING)
