"""A store laid out anew for a larger grid, in the same folder and all at once.

What there is stays where it is if the larger grid only goes on where the old one ends:
a file of Zarr is named by its place, which does not change. Otherwise values are copied
once, to files beside the old ones that have other names (see `SIDES`).

All is prepared in a folder in the store, and made valid by one file that is replaced:
the metadata of the group, which name the arrays, their shapes, their files and the
ledger. So who opens the store finds the old one or the new one, and a kill leaves one
of them. What is not valid any more is removed by `settle`.
"""

import dataclasses
import functools as ft
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int8, Int64

from .chunks import Chunks
from .errors import ERRORS, folder_of, mask_of, note_errors
from .layout import SIDES, StoreLayout, generation_of, metadata_of, numbered, write
from .ledger import FAILED, LEDGER, MISSING, OK, runs_of
from .published import mark_current
from .store import Store, open_store

_ASIDE = ".growing-"
"""With the number of a generation, the folder for what it is to be, or has become."""

_WRITER = "grown"
"""The log of what a store had when it grew."""

_MOST = 4
"""How many times as many chunks as needed a store may have before it is cut anew."""

_FEW = 256
"""As many chunks as nobody minds."""

_TOGETHER = 2**16
"""About how many rows are looked up at once, of chunks that are smaller."""

_KEPT_BYTES = 2**28
"""How much is held while values are copied."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where the points of a grid come from: its old positions, dim by dim.

    `positions` has for each dim the old position of each position, or -1; `strides` say
    how far apart neighbours on the dim were in the old grid.
    """

    positions: tuple[Int64[np.ndarray, "_"], ...]
    strides: tuple[int, ...]

    def rows(self, first: int, last: int) -> Int64[np.ndarray, " points"]:
        """The old index of each of some points, or -1."""
        lengths = tuple(map(len, self.positions))
        digits = np.unravel_index(np.arange(first, last), lengths)
        found, known = np.zeros(last - first, np.int64), np.ones(last - first, bool)
        triples = zip(digits, self.positions, self.strides, strict=True)
        for digit, positions, stride in triples:
            was = positions[digit]
            found += was * stride
            known &= was >= 0
        return np.where(known, found, -1)


def in_place(old: Chunks, lengths: Sequence[int], fresh: Chunks) -> Chunks | None:
    """The chunks of a grid that only goes on, if all files can stay where they are.

    `fresh` are those that one would cut for it. Behind the dim that is cut a chunk has
    all positions, so there it cannot become longer.
    """
    if len(lengths) != len(old.lengths) or old.size == 0:
        return None
    if tuple(lengths)[old.split + 1 :] != old.lengths[old.split + 1 :]:
        return None
    chunks = Chunks(tuple(lengths), old.split, old.count)
    return chunks if len(chunks) <= max(_FEW, _MOST * len(fresh)) else None


def grow(
    function: str, store: Store, layout: StoreLayout, origin: Origin, moved: bool
) -> None:
    """Lays a store out anew, as `layout` says; nobody else may fill it.

    If values are not `moved` their files stay.
    """
    path, generation = store.path, store.record["generation"] + 1
    settle(path)
    aside, sides = path / f"{_ASIDE}{generation}", _sides(path)
    kept = [] if moved else [variable.name for variable in layout.variables]
    other = {
        name: side if name in kept else SIDES[side == SIDES[0]]
        for name, side in sides.items()
    }
    layout = dataclasses.replace(layout, generation=generation, sides=other)
    write(aside, layout)
    new = open_store(function, aside, _WRITER)
    new.ledger.begin(_copied(store, new, origin, moved))
    for number in range(len(new.chunks.coarse())):
        new.publish(number)
    for folder in _arrays(aside):
        # Files first, then logs: nobody looks for them under these names yet.
        into = path / folder.name
        into.mkdir(exist_ok=True)
        for entry in folder.iterdir():
            if entry.name != "zarr.json":
                os.rename(entry, into / entry.name)
    for folder in (new.ledger.folder, folder_of(new.ledger)):
        if folder.exists():
            os.rename(folder, path / folder.name)
    # From here on the store is the larger one; what follows `settle` can do as well.
    os.replace(aside / "zarr.json", path / "zarr.json")
    _spread(path, aside)
    mark_current(dataclasses.replace(new, path=path))


def settle(path: Path) -> None:
    """Removes what is not valid in a store: what it was before, or was to become."""
    asides = _asides(path)
    if not asides:
        return
    sides, current = _sides(path), generation_of(path)
    for aside in asides:
        if aside.name == f"{_ASIDE}{current}":
            _spread(path, aside)
            continue
        for folder in _arrays(aside):
            if folder.name not in sides:
                shutil.rmtree(path / folder.name, ignore_errors=True)
    for name, side in sides.items():
        for entry in (path / name).iterdir():
            usual = entry.name == "c"
            if entry.name != "zarr.json" and usual != (side == SIDES[0]):
                _remove(entry)
    for entry in path.iterdir():
        for logs in (LEDGER, ERRORS):
            if entry.name.startswith(logs) and entry.name != numbered(logs, current):
                _remove(entry)
    # Last, since they say that there is something to remove: a kill before this leaves
    # them.
    for aside in asides:
        shutil.rmtree(aside, ignore_errors=True)


def _asides(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if entry.name.startswith(_ASIDE)]


def _spread(path: Path, aside: Path) -> None:
    """Gives each array its own metadata, for those who read no consolidated ones."""
    for folder in _arrays(aside):
        if (folder / "zarr.json").exists():
            os.replace(folder / "zarr.json", path / folder.name / "zarr.json")


def _copied(
    old: Store, new: Store, origin: Origin, moved: bool
) -> Iterator[tuple[int, Int8[np.ndarray, " rows"]]]:
    """The status of each new chunk, whose values are written if they are `moved`."""
    chunk = old.chunks.points * sum(
        array.dtype.itemsize * math.prod(array.shape[len(old.chunks.lengths) :])
        for array in old.arrays
    )
    raised = _raised(old)
    most = max(1, _KEPT_BYTES // max(1, chunk))
    # New chunks that are neighbours often take rows from the same old one.
    read = ft.lru_cache(most * len(old.arrays))(old.read)
    for number, (rows, status) in enumerate(statuses_of(old, new.chunks, origin)):
        if moved and np.any(status != MISSING):
            values = []
            for k, array in enumerate(new.arrays):
                inner = array.shape[len(new.chunks.lengths) :]
                nothing = np.full(inner, array.fill_value, array.dtype)
                values.append(_gathered(old, rows, ft.partial(_read, read, k), nothing))
            new.write(number, values)
        errors = {
            text: runs_of((status == FAILED) & np.isin(rows, points)).tolist()
            for text, points in raised.items()
        }
        errors = {text: spans for text, spans in errors.items() if spans}
        if errors:
            note_errors(new.ledger, number, errors)
        yield number, status


def statuses_of(
    old: Store, chunks: Chunks, origin: Origin
) -> Iterator[tuple[Int64[np.ndarray, " rows"], Int8[np.ndarray, " rows"]]]:
    """For each chunk of a larger grid the old index and the old status of each row."""
    done, odd = old.ledger.done(), np.zeros(len(old.chunks), bool)
    odd[[*old.ledger.failed, *old.ledger.lacking]] = True
    step = max(1, _TOGETHER // max(1, chunks.points))
    for begin in range(0, len(chunks), step):
        spans = list(map(chunks.span, range(begin, min(begin + step, len(chunks)))))
        first, last = spans[0][0], spans[-1][1]
        rows = origin.rows(first, last)
        there = np.flatnonzero(rows >= 0)
        numbers = _holds(old.chunks, rows[there])
        status = np.full(last - first, MISSING, np.int8)
        status[there] = np.where(done[numbers], np.int8(OK), np.int8(MISSING))
        for number, here in _by_chunk(old, rows, there[odd[numbers]]):
            start = old.chunks.span(number)[0]
            status[here] = old.ledger.status(number)[rows[here] - start]
        for a, b in spans:
            yield rows[a - first : b - first], status[a - first : b - first]


def _raised(store: Store) -> dict[str, Int64[np.ndarray, "_"]]:
    """What was raised at which points of a store."""
    found: dict[str, list[np.ndarray]] = {}
    for number, errors in store.errors():
        first, last = store.chunks.span(number)
        for text, spans in errors.items():
            rows = np.flatnonzero(mask_of(spans, last - first))
            found.setdefault(text, []).append(first + rows)
    return {text: np.concatenate(points) for text, points in found.items()}


def _read(read: Callable[[int, int], np.ndarray], k: int, number: int) -> np.ndarray:
    return read(number, k)


def _gathered(
    old: Store,
    rows: Int64[np.ndarray, " rows"],
    of_chunk: Callable[[int], np.ndarray],
    nothing: Any,
) -> np.ndarray:
    """What old chunks have at some rows of the old grid, or `nothing`."""
    found = np.empty((len(rows), *np.shape(nothing)), nothing.dtype)
    found[:] = nothing
    for number, here in _by_chunk(old, rows, np.flatnonzero(rows >= 0)):
        found[here] = of_chunk(number)[rows[here] - old.chunks.span(number)[0]]
    return found


def _by_chunk(
    old: Store, rows: Int64[np.ndarray, " rows"], some: Int64[np.ndarray, " some"]
) -> Iterator[tuple[int, Int64[np.ndarray, " here"]]]:
    """The old chunks that some of the rows are in, each with the places of these."""
    numbers = _holds(old.chunks, rows[some])
    order = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.diff(numbers[order])) + 1
    for here in np.split(order, ends) if len(order) else []:
        yield int(numbers[here[0]]), some[here]


def _holds(chunks: Chunks, rows: Int64[np.ndarray, " rows"]) -> np.ndarray:
    """The chunk that each of some rows is in."""
    row, place = np.divmod(rows // chunks.inner, chunks.lengths[chunks.split])
    return row * chunks.in_row + place // chunks.count


def _sides(path: Path) -> dict[str, str]:
    """The arrays of a store, and which names their files have."""
    metadata = metadata_of(path).get("consolidated_metadata") or {}
    nodes = metadata.get("metadata") or {p.name: metadata_of(p) for p in _arrays(path)}
    return {name: node["chunk_key_encoding"]["name"] for name, node in nodes.items()}


def _arrays(path: Path) -> list[Path]:
    """The folders of arrays in a folder."""
    return [p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
