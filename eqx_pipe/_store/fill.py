"""The protocol by which processes fill a store together.

Any process may be killed at any step, and on file systems without locks two may write
one chunk. The simulator of the tests (`tests/support/simulate.py`) checks these rules:

1. A file is put as a whole, so a reader finds its old or its new content.
2. `zarr.json` makes a store valid, and is put last. Creation puts files only where
   there are none; a process that comes second compares identities, and goes on.
3. A chunk exists if and only if its status file does, which is put after the values.
4. A status file lists the versions that the values of its chunk may have: the statuses
   and errors of rows, and digests of values. The values show which version is current.
5. A process that rewrites a chunk adds its version to the status file, puts the values,
   then a status file with its version alone. So finished rows are never undone.
6. Values of no version are damaged: reading raises, and the next run computes them.
7. A listing only shows where to look, since one of a network disk may be a minute old.
   A process reads a chunk before it writes it, and does not repeat finished rows.
8. Without locks it writes a chunk as a whole, since of two processes that write some
   of its rows each one could undo those of the other, and reads back what it wrote, in
   case two processes mixed files. Until then, finished rows are saved in a flight.
   Workers of an executor do so in every folder: two may compute the same rows of a
   chunk, but the process that holds the lock waits for one of them, so all rows that
   they found missing are written by both. In a bucket each file of a chunk is put only
   if it is absent or unchanged since it was read: a process that is late reads again,
   and nothing is lost.
9. Growth requires locks. It puts files of the larger layout under unused names (see
   `SIDES`), and replaces `zarr.json`. Files of chunks stay if the grid only appends.
10. Only `settle` removes files, under the lock of the whole store: those that are not
    valid, of which `.growing` has the list.
"""

import contextlib
import dataclasses
import errno
import functools as ft
import itertools as it
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int8, Int64

from .._errors import SweepError, message
from .chunks import FAILED, MISSING, OK, Chunks
from .disk import GROWING, PARTS, ROOT, Taken, Undecodable, disk_errors, is_name
from .format import (
    MALFORMED,
    MOST_CHUNKS,
    SIDES,
    StoreLayout,
    files_of,
    foreign,
    read_root,
    sealed,
)
from .objects import Files
from .store import Damaged, Listed, RowErrors, Store, open_store, store_of

_WHOLE, _GROW = "all", "grow"
"""The locks for filling a whole store, and for growing it."""

_MOST = 4
"""The maximum number of chunks of a grown store, relative to that of a new one."""

_FEW = 256
"""A number of chunks that is always acceptable."""

_TOGETHER = 2**16
"""The number of rows to look up at once, if chunks are smaller."""

_KEPT_BYTES = 2**28
"""The bytes of values in memory during a copy."""

_HIDDEN_SECONDS = 90
"""The time for which a network file system may hide a file that was created."""

_MAY_ARRIVE = {errno.EIO, errno.ETIMEDOUT}
"""The errors of requests that a network file system may still execute."""

_SOUND, _SOUND_BYTES = (16, 128), (2**24, 2**28)
"""The number of consecutive sound chunks, or their bytes, that end a check of the
chunks written last: of a store that seems complete, and before it is filled.
"""

_TRIES = 20
"""The number of times to write a chunk that another process writes, too."""

Todo: TypeAlias = Mapping[int, Int64[np.ndarray, " rows"] | None]
"""The chunks to compute, each with the rows that it lacks, or `None` for all."""


def exists(files: Files) -> bool:
    """Return whether there is a store, by reading: a listing may be outdated."""
    try:
        files.get(ROOT, 0)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except Undecodable:  # it is not empty
        pass
    return True


def create(
    function: str, files: Files, layout: StoreLayout, write: bool = True
) -> Store:
    """Return the store of a layout, created by this process or by another one.

    Raises a `ValueError` if something else is at its path. Without `write`, it has no
    files.
    """
    made, root, record = files_of(layout, files.new_id()[:12], {})
    check_vacant(function, files, made)
    if not write:
        return store_of(files, root, record)
    with disk_errors(files.path_of(), "be made"):
        files.make()
        if files.exists(GROWING):  # left by `save`
            with locked(files, None):
                settle(files)
        for key, data in made.items():
            files.put_new(key, data)
        if not files.put_new(ROOT, sealed(root, record)):
            for _ in range(_HIDDEN_SECONDS):
                if exists(files):
                    break
                files.wait(1)
        return open_store(function, files)


def check_vacant(function: str, files: Files, made: Collection[str]) -> None:
    """Raise a `ValueError` if there is something in the folder of a new store.

    Hidden files, and those that creation has `made`, do not matter.
    """
    if os.path.isfile(files.path_of()):
        raise foreign(function, files, "is a file")
    growing = files.exists(GROWING)  # then `settle` will remove files of chunks
    for name in files.names():
        new = {key.partition("/")[2] for key in made if key.startswith(f"{name}/")}
        is_ours = bool(new) and (growing or files.names(name) <= new)
        # Another process may have created the store since the caller looked for it.
        if not (is_ours or name.startswith(".") or exists(files)):
            raise foreign(function, files, f"has no `{ROOT}`, but {name!r}")


def restore(store: Store, layout: Callable[[], StoreLayout]) -> None:
    """Write the coordinates of a store again if files of them are missing or differ.

    Two sweeps that are started at the same path at once may both write theirs, before
    one of them has created the store.
    """
    try:
        for name in store.record["coordinates"]:
            store.coordinate(name)
    except Damaged:
        made, root, _ = files_of(layout(), store.record["cut"], store.record["sides"])
        if root["consolidated_metadata"] != store.root["consolidated_metadata"]:
            raise
        for key, data in made.items():
            store.files.put(key, data)
        for name in store.record["coordinates"]:
            store.coordinate(name)


@contextlib.contextmanager
def locked(
    files: Files, shard: tuple[int, int] | None, function: str = "sweep"
) -> Iterator[bool]:
    """Lock the share of this process, or the whole store without shares.

    Yields whether the file system supports locks.
    """
    what = "the store"
    try:
        with contextlib.ExitStack() as stack:
            with disk_errors(files.path_of(), "be locked", function):
                # Processes with a shard share this lock, so that none locks the whole.
                whole = files.lock(_WHOLE, shared=shard is not None)
                has_locks = stack.enter_context(whole)
                if shard is not None:
                    what = f"shard {shard[0]} of {shard[1]} of the store"
                    stack.enter_context(files.lock(f"shard-{shard[0]}-of-{shard[1]}"))
            yield has_locks
    except Taken as taken:
        wrong = f"{what} `{files.path_of()}` is being filled by {taken}."
        cure = "Wait for it or stop it."
        if function == "sweep":
            cure = f"{cure[:-1]}; processes that fill one store together each take "
            cure += "their own `shard=(index, count)`."
        raise SweepError(message(function, wrong, cure)) from None


def check_current(store: Store) -> None:
    """Raise a `SweepError` if the store has grown or was deleted meanwhile."""
    changed = store.changed()
    if changed is not None:
        raise SweepError(changed)


@dataclasses.dataclass
class Filling:
    """The chunks of a store that one process fills: all of them, or its `shard`.

    With `again`, failed rows are computed once more. `broken` has the chunks that exist
    with missing or damaged files, and are computed anew. It `settles` unless it has let
    the store grow, since readers may still have the smaller store open.
    """

    store: Store
    shard: tuple[int, int] | None = None
    again: bool = False
    broken: set[int] = dataclasses.field(default_factory=set)
    settles: bool = True
    has_locks: bool = True

    def __post_init__(self) -> None:
        index, count = self.shard or (0, 1)
        self.owned = range(index, len(self.store.chunks), count)

    @property
    def in_parts(self) -> bool:
        """True if a chunk may be written in parts, which nobody else can undo."""
        return self.has_locks or self.store.files.conditional

    @contextlib.contextmanager
    def locked(self) -> Iterator[Listed]:
        """Lock the share, remove invalid files, and yield the chunks that exist."""
        store = self.store
        with locked(store.files, self.shard) as self.has_locks:
            check_current(store)
            with disk_errors(store.path, "be mended"):
                if self.has_leftovers():
                    settle(store.files)
                listed = self.look(1)
            yield listed

    def has_leftovers(self) -> bool:
        """Return whether a growth or a kill left files that this process may remove."""
        files = self.store.files
        may_remove = self.has_locks and not files.conditional
        if not (self.settles and may_remove and self.shard is None):
            return False
        return files.exists(GROWING) or any(map(_is_part, files.names(PARTS)))

    def look(self, thorough: int = 0) -> Listed:
        """Return the chunks that exist, and find those of the share that are broken.

        A kill breaks no chunk, but a power failure may leave files without content, and
        a request that was lost may arrive late. So chunks are checked from the newest
        on, until enough consecutive ones are sound; damage in older chunks is found
        when they are read.
        """
        store, owned = self.store, self.owned
        listed, sound = store.listed(), 0
        lost = np.flatnonzero(store.lacks_values(listed.done)).tolist()
        self.broken = {n for n in lost if n in owned and not store.is_sound(n)}
        chunk_bytes = max(1, store.row_bytes * store.chunks.points)
        enough = min(_SOUND[thorough], max(1, _SOUND_BYTES[thorough] // chunk_bytes))
        for number in np.argsort(-listed.when, kind="stable").tolist():
            if not listed.done[number] or sound >= enough:
                break
            if number not in owned or number in self.broken:
                continue
            if store.is_sound(number):
                sound += 1
            else:
                self.broken.add(number)
                sound = 0
        return listed

    def todo(self, listed: Listed) -> Todo:
        """Return the chunks of the share to compute, with the rows that they lack."""
        found: dict[int, Int64[np.ndarray, " rows"] | None] = {}
        current = self.store.files.conditional
        for number in np.flatnonzero(~listed.done | listed.odd).tolist():
            if number in self.owned and number not in self.broken:
                is_new = current and not listed.done[number]
                rows = None if is_new else self._wanted(number)
                if rows is None or len(rows):
                    found[number] = rows
        found |= dict.fromkeys(self.broken)
        return dict(sorted(found.items()))

    def keep(
        self,
        number: int,
        rows: Int64[np.ndarray, " rows"] | None,
        values: Sequence[np.ndarray],
        status: Int8[np.ndarray, " rows"],
        errors: RowErrors | None = None,
    ) -> None:
        """Write a chunk, or some of its rows, but none that another process finished.

        Without locks, that process may be writing at this moment, and the files of both
        may be mixed. So the files are read back, and written again if they differ.
        """
        index, errors = np.arange(len(status)) if rows is None else rows, errors or {}
        is_new = rows is None and number not in self.broken
        is_new &= self.store.files.conditional
        if is_new and self.store.commit(number, values, status, errors, is_new=True):
            return
        for _ in range(_TRIES):
            whole = rows is None and not self.store.is_sound(number)
            at = None if whole else index
            is_alone = self.store.commit(number, values, status, errors, at)
            # In a bucket a process that is late knows it.
            is_safe = self.has_locks or self.store.files.conditional
            if (is_alone and is_safe) or self._is_kept(number, rows, status):
                break
        self.broken.discard(number)

    def _is_kept(
        self,
        number: int,
        rows: Int64[np.ndarray, " rows"] | None,
        status: Int8[np.ndarray, " rows"],
    ) -> bool:
        if not self.store.is_sound(number):
            return False
        manifest = self.store.manifest(number)
        computed = np.arange(len(status)) if rows is None else rows
        computed = computed[status == OK]
        return manifest is not None and bool(np.all(manifest.status[computed] == OK))

    def is_complete(self, number: int) -> bool:
        """Return whether a chunk has no row left to compute."""
        wanted = self._wanted(number)
        return wanted is not None and not len(wanted)

    def _wanted(self, number: int) -> Int64[np.ndarray, " rows"] | None:
        """Return the rows of a chunk to compute; `None` if the chunk is missing."""
        manifest = self.store.manifest(number)
        if manifest is None:
            return None
        failed = self.again & (manifest.status == FAILED)
        return np.flatnonzero((manifest.status == MISSING) | failed)


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


def grow(files: Files, growth_of: Callable[[Store], Growth | None]) -> Store | None:
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
                raise SweepError(
                    message(
                        "sweep",
                        "growing a store requires file locks, which "
                        f"`{store.path}` does not support.",
                        "Copy the store to a disk with locks, let it grow there, and "
                        "copy it back; or give another path.",
                    )
                )
            fill = ft.partial(_mark_ends, store)
            if growth.moved:
                fill = ft.partial(_copy, store, growth.origin)
            lay_out(files, growth.layout, fill, store, growth.moved)
        return open_store("sweep", files)


def lay_out(
    files: Files,
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
    # A random id distinguishes the files of this growth from those of a failed one.
    cut, sides, old_sides = files.new_id()[:12], dict[str, int](), dict[str, int]()
    if old is not None:
        old_sides = old.record["sides"]
        stay = [] if moved else [*old.names(), old.record["status"]]
        sides = {k: side if k in stay else 1 - side for k, side in old_sides.items()}
        cut = cut if moved else old.record["cut"]
    made, root, record = files_of(layout, cut, sides)
    listed = [_counts(root), *([] if old is None else [_counts(old.root)])]
    files.put(GROWING, json.dumps(listed).encode())
    try:
        # Requests of processes that were killed may have arrived since.
        _remove_invalid(files, listed, old_sides)
        for key, data in made.items():
            files.put(key, data)
        fill(store_of(files, root, record))
        try:
            if old is not None:
                files.put(ROOT, sealed(root, record))
            elif not files.put_new(ROOT, sealed(root, record)):
                raise Taken("another process, which has created a store meanwhile")
        except OSError as error:
            if error.errno in _MAY_ARRIVE:  # and make the files valid
                files.wait(_HIDDEN_SECONDS)
            raise
    except BaseException:
        with contextlib.suppress(OSError):
            settle(files)
        raise
    if old is None:
        files.remove(GROWING)


def _mark_ends(old: Store, new: Store) -> None:
    """Mark the chunks that become longer, since they then lack rows."""
    for number in range(old.chunks.in_row - 1, len(old.chunks), old.chunks.in_row):
        begin, end = old.chunks.span(number)
        if end - begin < old.chunks.points:
            old.mark_odd(number)


def _copy(old: Store, origin: Origin, new: Store) -> None:
    """Commit each new chunk that contains rows of an old one.

    Rows of damaged chunks are missing, and the next sweep computes them.
    """
    most = max(1, _KEPT_BYTES // max(1, old.row_bytes * old.chunks.points))

    @ft.lru_cache(most)  # adjacent new chunks often take rows from the same old chunk
    def read(number: int) -> Sequence[np.ndarray]:
        return [old.read(number, k, known=True) for k in range(len(old.variables))]

    raised = old.account().errors
    for number, (rows, status) in enumerate(statuses_of(old, new.chunks, origin)):
        values = [variable.empty(len(rows)) for variable in new.variables]
        known = np.flatnonzero(status != MISSING)
        for was, at in old.chunks.grouped(rows[known]):
            index, first = known[at], old.chunks.span(was)[0]
            try:
                for leaf, old_leaf in zip(values, read(was), strict=True):
                    leaf[index] = old_leaf[rows[index] - first]
            except Damaged:
                status[index] = MISSING
        if not np.all(status == MISSING):
            errors = {
                text: np.flatnonzero(np.isin(rows, points) & (status == FAILED))
                for text, points in raised.items()
            }
            new.commit(number, values, status, errors)


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
        known = np.flatnonzero(rows >= 0)
        numbers = old.chunks.holding(rows[known])
        status = np.full(last - first, MISSING, np.int8)
        status[known] = np.where(done[numbers], np.int8(OK), np.int8(MISSING))
        unsure = known[(done & odd)[numbers]]
        for number, at in old.chunks.grouped(rows[unsure]):
            manifest, index = old.manifest(number), unsure[at]
            if manifest is not None:
                start = old.chunks.span(number)[0]
                status[index] = manifest.status[rows[index] - start]
        for a, b in spans:
            yield rows[a - first : b - first], status[a - first : b - first]


def settle(files: Files) -> None:
    """Remove the invalid files of a store; no other process may write meanwhile.

    Only files that this store, or one that it was or was to become, has names for are
    removed. A dataset that was opened before a growth can read its values until then.
    """
    for name in filter(_is_part, files.names(PARTS)):
        files.remove(f"{PARTS}/{name}")
    try:
        found = files.get(GROWING)
    except FileNotFoundError:
        return
    except Undecodable:  # not a file of this store
        found = b"[]"
    nodes, listed, sides = dict[str, Any](), _listed(found), dict[str, int]()
    if exists(files):
        root, record = read_root("sweep", files)
        nodes, sides = root["consolidated_metadata"]["metadata"], record["sides"]
        listed.append(_counts(root))
    _remove_invalid(files, listed, sides)
    for name, node in nodes.items():
        # For readers that do not use the consolidated metadata.
        files.put(f"{name}/{ROOT}", json.dumps(node).encode())
    files.remove(GROWING)


_Counts: TypeAlias = Mapping[str, Sequence[int]]
"""The number of files of each array along its axes."""


def _counts(root: Mapping[str, Any]) -> _Counts:
    found = {}
    for name, node in root["consolidated_metadata"]["metadata"].items():
        chunk = node["chunk_grid"]["configuration"]["chunk_shape"]
        pairs = zip(node["shape"], chunk, strict=True)
        found[name] = [-(-n // size) for n, size in pairs]
    return found


def _listed(data: bytes) -> list[_Counts]:
    """Return the arrays that `.growing` lists; none if it is damaged."""
    try:
        found = json.loads(data)
        names = [name for counts in found for name in counts]
        each = [n for counts in found for n in counts.values()]
        whole = all(type(x) is int for n in each for x in n)
        few = max(map(math.prod, each), default=0) <= MOST_CHUNKS
        return found if whole and few and all(map(is_name, names)) else []
    except MALFORMED:
        return []


def _remove_invalid(
    files: Files, listed: Sequence[_Counts], sides: Mapping[str, int]
) -> None:
    """Remove the files of `listed` arrays, but those of valid ones on their `sides`."""
    for name in sorted({name for counts in listed for name in counts}):
        if files.conditional and not files.names(name):  # a request for each file
            continue
        for counts in listed:
            positions = it.product(*(map(str, range(n)) for n in counts.get(name, [0])))
            for position in map(".".join, positions):
                for side, kind in enumerate(SIDES):
                    if side != sides.get(name):
                        files.remove(f"{name}/{kind['root']}{position}")
        if name not in sides:
            files.remove(f"{name}/{ROOT}")


def _is_part(name: str) -> bool:
    """Return whether a file in `.parts` is one that a process was writing."""
    return re.fullmatch("[0-9a-f]{32}", name) is not None
