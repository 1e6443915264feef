"""The sink that writes a sweep to a store, chunk by chunk as it is computed."""

import contextlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

from ..._errors import SweepError, message
from ..gather import Chunk, Outcome, Todo
from ..plan import Plan
from ..results.label import storable
from ..store import FAILED, GROWING, MISSING, OK, PARTS, settle
from .identity import disk_errors
from .opened import check_current, contents_of, locked, open_for

_SOUND, _SOUND_BYTES = 128, 256 * 1024 * 1024
"""The number of consecutive chunks, or bytes, that must be sound to resume a sweep."""


class StoreSink:
    """A store that a sweep fills, alone or with other processes.

    It is created if it does not exist, and grown if its space has grown. With
    `write=False` nothing is written.
    """

    def __init__(self, plan: Plan, write: bool = True):
        self.opened = open_for(plan, write)
        self.store, self.plan = self.opened.store, self.opened.plan
        self.contents = contents_of(self.plan)
        index, count = self.plan.request.shard or (0, 1)
        self.owned = range(index, len(self.plan.chunks), count)
        self._kept: set[int] = set()

    @property
    def stopped(self) -> bool:
        """True if the `stop` of a reducer was true."""
        return self.contents.stopped

    @contextlib.contextmanager
    def filling(self) -> Iterator[Todo]:
        """Lock the share of this process, and yield the missing chunks.

        After Ctrl-C the chunk in flight finishes; errors get a note with the number of
        stored points.
        """
        store, shard = self.store, self.plan.request.shard
        with disk_errors(store.path, "be opened"):
            done = store.done()
            lost = [number for number in store.lost(done) if number in self.owned]
        self._refuse(done)
        self.contents.advance(store)
        leftovers = self._has_leftovers()
        if self.stopped or not (lost or leftovers or self._lacking(done)):
            yield Todo(self.owned, [])
            return
        with locked(self.opened.files, shard):
            check_current(store)
            with disk_errors(store.path, "be mended"):
                if leftovers and shard is None:
                    settle(store.files)
                # List files once more: a listing of a network disk may be outdated.
                again = store.lost(store.done()) if lost else []
                for number in set(lost).intersection(again):
                    store.discard(number)
                # Include chunks that other processes have written meanwhile.
                done = self._look_again()
            self._refuse(done)
            try:
                yield self.todo(done)
            # Also for Ctrl-C, whose note counts the stored points.
            except BaseException as error:
                self._note_kept(error)
                raise

    def keep(self, chunk: Chunk) -> None:
        """Write a chunk, or some rows of it."""
        store, (number, rows, values, verdict) = self.store, chunk
        status = np.where(verdict.ok, OK, FAILED).astype(np.int8)
        if verdict.missing is not None:
            status[verdict.missing] = MISSING
        begin = self.contents.begin(store, number)
        errors = {text: at - begin for text, at in verdict.errors.items()}
        kept = list(map(storable, values))
        with disk_errors(store.path, "take a chunk"):
            # Another process may have written the chunk first.
            if rows is None and not store.is_done(number):
                store.commit(number, kept, status, errors)
            elif rows is not None and np.isin(rows, self._wanted(number)).any():
                store.put_rows(number, rows, kept, status, errors)
        self._kept.add(number)
        self.contents.advance(store)

    def outcome(self) -> Outcome:
        """Return the current contents of the store."""
        check_current(self.store)
        account = self.store.account()
        gone = self._kept - {*np.flatnonzero(account.done).tolist()}
        if gone:
            wrong = f"{len(gone)} chunks of the store `{self.store.path}` were deleted "
            wrong += "while it was filled."
            cure = "Call the same sweep again, which computes them once more."
            raise SweepError(message("sweep", wrong, cure))
        return self.contents.outcome(self.store, account)

    def todo(self, done: np.ndarray | None = None) -> Todo:
        """Return the chunks of a share to compute, whole or some of their rows."""
        lacking = self._lacking(self.store.done() if done is None else done)
        begun = [number for number in lacking if self.store.is_done(number)]
        rows = {number: self._wanted(number) for number in begun}
        return Todo(self.owned, lacking, rows, partial=True)

    def _lacking(self, done: np.ndarray) -> list[int]:
        lacking = ~done
        for number in self.store.odd():
            lacking[number] |= done[number] and len(self._wanted(number)) > 0
        return [n for n in np.flatnonzero(lacking).tolist() if n in self.owned]

    def _wanted(self, number: int) -> Int64[np.ndarray, " rows"]:
        """Return the missing rows of a chunk, and failed rows with `"failed"`."""
        manifest = self.store.manifest(number)
        if manifest is None:
            return np.zeros(0, np.int64)
        again = FAILED if self.plan.request.resume == "failed" else MISSING
        return np.flatnonzero(np.isin(manifest.status, [MISSING, again]))

    def _refuse(self, done: np.ndarray) -> None:
        """Raise if there are failed points that are neither marked nor recomputed."""
        if self.plan.request.resume != "failed":
            self.contents.refuse(self.store, self.store.account(done))

    def _note_kept(self, error: BaseException) -> None:
        all_ = self.plan.count(self.owned)
        with contextlib.suppress(OSError):
            left = self.todo().left(self.plan)
            error.add_note(
                f"{all_ - left:,} of {all_:,} points are finished and kept in "
                f"`{self.store.path}`. The same call goes on from there."
            )

    def _has_leftovers(self) -> bool:
        """Return whether a growth or a kill left invalid files."""
        if self.opened.has_grown:  # readers may still have the smaller store open
            return False
        files = self.store.files
        return files.exists(GROWING) or bool(files.names(PARTS))

    def _look_again(self) -> np.ndarray:
        """Remove damaged chunks among those written last; return the remaining ones.

        A kill does not damage chunks, but a power failure may leave a file without its
        content. Chunks are checked from the newest on, until enough consecutive ones
        are sound; damage in older chunks is found when they are read.
        """
        written, sound = self.store.written(), 0
        chunk_bytes = self.store.row_bytes * self.store.chunks.points
        for number in np.argsort(written)[::-1].tolist():
            if not written[number] or sound >= _SOUND:
                break
            if number not in self.owned:
                continue
            if self.store.is_sound(number):
                sound += 1
            else:
                self.store.discard(number)
                written[number] = sound = 0
            if sound * chunk_bytes > _SOUND_BYTES:
                break
        return written > 0
