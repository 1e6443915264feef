"""The sink that writes a sweep to a store, chunk by chunk as it is computed."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from ..._errors import SweepError, message
from ..gather import Chunk, Outcome, Todo
from ..plan import Plan
from ..results.label import storable
from ..store import (
    FAILED,
    GROWING,
    MISSING,
    OK,
    PARTS,
    Folder,
    Store,
    StoreLayout,
    Taken,
    create,
    disk_errors,
    grow,
    open_store,
    settle,
    statuses_of,
    store_without_values,
)
from .contents import StateContents, ValueContents
from .identity import identity_of
from .larger_space import Grown, growth_in

_WHOLE, _GROW = "all", "grow"
"""The locks for filling a whole store, and for creating or growing it."""


class StoreSink:
    """A store that a sweep fills, alone or with other processes.

    It is created if it does not exist, and grown if its space has grown; a store of
    another sweep raises a `StructureError`. With `write=False` nothing is written: the
    store may have no files yet, and `grown` is the store that it would become.
    """

    def __init__(self, plan: Plan, write: bool = True):
        assert plan.request.store is not None
        self.files = Folder(plan.request.store)
        self.grown: Grown | None = None
        self._has_grown = False
        self.store, self.plan = self._opened(plan, write)
        self.contents = _contents_of(self.plan)
        index, count = self.plan.request.shard or (0, 1)
        self.owned = range(index, len(self.plan.chunks), count)
        self._kept: set[int] = set()

    def _opened(self, plan: Plan, write: bool) -> tuple[Store, Plan]:
        """Return the store of a sweep, and the plan with its batch size and chunks."""
        files, contents = self.files, _contents_of(plan)
        now = {**identity_of(plan), **contents.identity}
        if files.is_vacant():
            layout = contents.layout(now)
            if not write:
                return store_without_values(files, layout), plan
            _create(files, layout)
        store = open_store("sweep", files)
        self.grown = growth_in(plan, store, now)
        if self.grown is not None and write:
            # Lock only now, so that nothing is written to a store of another sweep.
            with files.lock(_GROW, wait=True):
                store = open_store("sweep", files)
                grown = growth_in(plan, store, now)
                if grown is not None:
                    _grow(store, grown)
                    store, self._has_grown = open_store("sweep", files), True
            self.grown = None
        if self.grown is not None:
            plan = self.grown.plan
        else:
            kept = store.record["batch_size"]
            plan = plan.with_batch_size(kept).with_chunks(store.chunks)
        return dataclasses.replace(store, function=now["function"]["program"]), plan

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
        with _locked(self.files, shard):
            _check_current(store)
            with disk_errors(store.path, "be mended"):
                if leftovers and shard is None:
                    settle(store.files)
                # List files once more: a listing of a network disk may be outdated.
                again = store.lost(store.done()) if lost else []
                for number in set(lost).intersection(again):
                    store.discard(number)
                # Include chunks that other processes have written meanwhile.
                done = store.look_again(self.owned)
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
        _check_current(self.store)
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
        if self.grown is not None:
            return self._todo_after(self.grown)
        lacking = self._lacking(self.store.done() if done is None else done)
        begun = [number for number in lacking if self.store.is_done(number)]
        rows = {number: self._wanted(number) for number in begun}
        return Todo(self.owned, lacking, rows, partial=True)

    def _todo_after(self, grown: Grown) -> Todo:
        """Return the chunks to compute once the store has grown."""
        chunks, rows, wanted = [], {}, [MISSING, self._again]
        found = statuses_of(self.store, grown.layout.chunks, grown.origin)
        for number, (_, status) in enumerate(found):
            at = np.flatnonzero(np.isin(status, wanted))
            if len(at) and number in self.owned:
                chunks.append(number)
                if len(at) < len(status):
                    rows[number] = at
        return Todo(self.owned, chunks, rows, partial=True)

    @property
    def _again(self) -> int:
        """The status of rows to compute besides missing ones: failed or missing."""
        return FAILED if self.plan.request.resume == "failed" else MISSING

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
        return np.flatnonzero(np.isin(manifest.status, [MISSING, self._again]))

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
        if self._has_grown:  # readers may still have the smaller store open
            return False
        return self.files.exists(GROWING) or bool(self.files.names(PARTS))


def _contents_of(plan: Plan) -> ValueContents | StateContents:
    return ValueContents(plan) if plan.blocks is None else StateContents(plan)


def _create(files: Folder, layout: StoreLayout) -> None:
    with disk_errors(files.place(), "be made"):
        # Resolve links, whose target may not exist yet.
        Path(os.path.realpath(files.path)).mkdir(parents=True, exist_ok=True)
        with files.lock(_GROW, wait=True):
            if files.is_vacant():  # otherwise another process has created it
                create(files, layout)


def _grow(store: Store, grown: Grown) -> None:
    with _locked(store.files, None) as has_locks, disk_errors(store.path, "grow"):
        if not has_locks:
            raise SweepError(
                message(
                    "sweep",
                    "growing a store requires file locks, which the file system of "
                    f"`{store.path}` does not support.",
                    "Copy the store to another disk, or give another path.",
                )
            )
        for number in store.lost(store.done()):
            store.discard(number)
        grow(store, grown.layout, grown.origin, grown.moved)


@contextlib.contextmanager
def _locked(files: Folder, shard: tuple[int, int] | None) -> Iterator[bool]:
    """Lock the share of this process, or the whole store without shares."""
    what = "the store"
    try:
        with contextlib.ExitStack() as stack:
            # Processes with a shard share this lock, so that none locks the whole.
            whole = files.lock(_WHOLE, shared=shard is not None)
            has_locks = stack.enter_context(whole)
            if shard is not None:
                what = f"shard {shard[0]} of {shard[1]} of the store"
                stack.enter_context(files.lock(f"shard-{shard[0]}-of-{shard[1]}"))
            yield has_locks
    except Taken as taken:
        raise SweepError(
            message(
                "sweep",
                f"{what} `{files.place()}` is being filled by {taken}.",
                "Wait for it or stop it; processes that fill one store together "
                "each take their own `shard=(index, count)`.",
            )
        ) from None


def _check_current(store: Store) -> None:
    """Raise a `SweepError` if the store has grown or was deleted meanwhile."""
    changed = store.changed()
    if changed is not None:
        raise SweepError(changed)
