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
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Int8, Int64

from .._errors import SweepError
from .commit import commit_chunk
from .create import is_part, locked, settle
from .disk import GROWING, PARTS, disk_errors
from .partition import FAILED, MISSING, OK
from .store import Listed, RowErrors, Store

_SOUND, _SOUND_BYTES = (16, 128), (2**24, 2**28)
"""The number of consecutive sound chunks, or their bytes, that end a check of the
chunks written last: of a store that seems complete, and before it is filled.
"""

_TRIES = 20
"""The number of times to write a chunk that another process writes, too."""

RowsByChunk: TypeAlias = Mapping[int, Int64[np.ndarray, " rows"] | None]
"""The chunks to compute, each with the rows that it lacks, or `None` for all."""


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
        # Without a lock, or beside shards, another process may still be writing them.
        may_remove = self.has_locks and not files.conditional
        if not (self.settles and may_remove and self.shard is None):
            return False
        return files.exists(GROWING) or any(map(is_part, files.names(PARTS)))

    def look(self, thorough: int = 0) -> Listed:
        """Return the chunks that exist, and find those of the share that are broken.

        A kill breaks no chunk, but a power failure may leave files without content, and
        a request that was lost may arrive late. So chunks are checked from the newest
        on, until enough consecutive ones are sound; damage in older chunks is found
        when they are read.
        """
        store, owned = self.store, self.owned
        # Statuses are listed before values: a chunk that another process finishes in
        # between has values then, and is not taken for a broken one.
        listed, sound = store.listed(), 0
        # A status without values shows in two listings, without reading any file.
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

    def todo(self, listed: Listed) -> RowsByChunk:
        """Return the chunks of the share to compute, with the rows that they lack."""
        rows_by_chunk: dict[int, Int64[np.ndarray, " rows"] | None] = {}
        # In a bucket the listing is current, so an absent chunk need not be read to see
        # whether another process has written it.
        current = self.store.files.conditional
        for number in np.flatnonzero(~listed.done | listed.odd).tolist():
            if number in self.owned and number not in self.broken:
                is_new = current and not listed.done[number]
                rows = None if is_new else self._wanted(number)
                if rows is None or len(rows):
                    rows_by_chunk[number] = rows
        rows_by_chunk |= dict.fromkeys(self.broken)
        return dict(sorted(rows_by_chunk.items()))

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
        # Most chunks are new: in a bucket they are put without reading first, since a
        # put that expects no object there fails if another process was faster.
        is_new = rows is None and number not in self.broken
        is_new &= self.store.files.conditional
        if is_new and commit_chunk(
            self.store, number, values, status, errors, is_new=True
        ):
            return
        # Each turn looks anew. Two processes that write at once may both find mixed
        # files, and after some turns one of them is alone.
        for _ in range(_TRIES):
            # A sound chunk has come from another process meanwhile: merge the rows.
            whole = rows is None and not self.store.is_sound(number)
            at = None if whole else index
            is_alone = commit_chunk(self.store, number, values, status, errors, at)
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
