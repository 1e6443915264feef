"""A sweep that is kept in a store, chunk by chunk as it is computed."""

import contextlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

from ..._store.folder import files_in
from ..._store.grow import settle
from ..._store.published import Published
from ..._store.store import Store
from ..compute.failure import Verdict
from ..compute.rows import Rows
from ..gather import Interrupt, Outcome, Todo
from ..plan import Plan
from ..results.label import storable
from ..results.raised import ranges
from .fingerprint import check_room, continuing
from .locked import check_current, locked
from .opened import contents_of, opened

_LOOK_AGAIN = 256 * 1024 * 1024
_LOOK_AGAIN_CHUNKS = 128
"""How many bytes, or chunks, in a row must be sound before a sweep goes on."""


class InStore:
    """A store that a sweep fills, alone or with other processes."""

    def __init__(self, plan: Plan):
        request = plan.request
        assert request.store is not None
        self.store = opened(plan)
        # The ledger was read before the files are looked for: a chunk that another
        # process finishes meanwhile is not yet known, and not lost.
        with continuing(request.store, "be opened"):
            files = files_in("sweep", request.store)
        versions = self.store.ledger.versions
        self._lost = {n: int(versions[n]) for n in self.store.lost(files)}
        self.published = Published(self.store, files)
        kept = self.store.record["batch_size"]
        plan = plan.with_batch_size(kept).with_chunks(self.store.chunks)
        self.plan, self.contents = plan, contents_of(plan)
        self._parts: dict[int, np.ndarray] = {}
        """The chunks that are asked for in part, and which of their rows."""
        contents = self.contents
        names = contents.variables, contents.status
        check_room(self.store, contents.lengths, *names)

    @property
    def stopped(self) -> bool:
        """Whether a reducer asked to stop."""
        return self.contents.stopped

    @contextlib.contextmanager
    def filling(self) -> Iterator[Todo]:
        """Locks this process's share, and looks for what is missing.

        Ctrl-C lets the chunk in flight be finished, and an error says what is kept.
        """
        store, part = self.store, self.plan.request.shard
        rank, size = part or (0, 1)
        mine = range(rank, len(store.chunks), size)
        self._refuse()
        self.contents.advance(store)
        lost = any(number in mine for number in self._lost)
        if self.stopped or not (lost or self._lacking(mine)):
            yield Todo(mine, [], Interrupt())
            self._tell()
            return
        with locked(store.path, part):
            check_current(store)
            self._forget(mine)
            _look_again(store, mine, self.plan.work.row_bytes)
            # Once more, with what other processes have written since.
            self._refuse()
            try:
                with Interrupt() as interrupt:
                    todo = self._todo(mine, interrupt)
                    self._parts = dict(todo.parts)
                    yield todo
            # Ctrl-C too should say what is kept.
            except BaseException as error:
                all_ = self.plan.count(mine)
                left = self._todo(mine, Interrupt()).left(self.plan)
                error.add_note(
                    f"{all_ - left:,} of {all_:,} points are finished and kept in "
                    f"`{store.path}`. The same call goes on from there."
                )
                raise
            finally:
                self._tell()

    def keep(self, number: int, values: Rows, verdict: Verdict) -> None:
        """Writes a chunk."""
        store, ok = self.store, verdict.ok
        with continuing(store.path, "take a chunk"):
            # A process with another part of the store may have been first.
            store.ledger.refresh()
            rows = self._parts.get(number)
            begin, _ = store.chunks.span(number)
            if self.plan.blocks is not None:
                begin, _ = self.plan.work.span(begin, begin)
            raised = verdict.errors.items()
            errors = {text: ranges(points - begin) for text, points in raised}
            kept = list(map(storable, values))
            if rows is None and not store.is_done(number):
                store.commit(number, kept, ok, errors)
            elif rows is not None and np.isin(rows, self._wanted(number)).any():
                store.amend(number, rows, kept, ok, errors)
            self.published.now_and_then()
        self.contents.advance(store)

    def outcome(self) -> Outcome:
        """The store as it stands."""
        self.store.ledger.refresh()
        return self.contents.outcome(self.store)

    def _lacking(self, mine: range) -> list[int]:
        ledger = self.store.ledger
        lacking = ~ledger.done()
        lacking[list(ledger.lacking)] = True
        if self.plan.request.repairing:
            lacking[list(ledger.failed)] = True
        return [i for i in np.flatnonzero(lacking).tolist() if i in mine]

    def _todo(self, mine: range, interrupt: Interrupt) -> Todo:
        lacking = self._lacking(mine)
        begun = [number for number in lacking if self.store.is_done(number)]
        parts = {number: self._wanted(number) for number in begun}
        return Todo(mine, lacking, interrupt, parts=parts)

    def _wanted(self, number: int) -> Int64[np.ndarray, " rows"]:
        return self.store.wanted(number, self.plan.request.repairing)

    def _refuse(self) -> None:
        """Raises if points have failed that are neither isolated nor computed again."""
        if not self.plan.request.repairing:
            self.contents.refuse(self.store)

    def _forget(self, mine: range) -> None:
        """Removes what is left of chunks that are lost, unless somebody has already."""
        store = self.store
        store.ledger.refresh()
        for number, version in self._lost.items():
            if number in mine and store.ledger.versions[number] == version:
                with continuing(store.path, "be mended"):
                    store.discard(number)

    def _tell(self) -> None:
        """Brings the status that others read up to date; the ledger is right anyway."""
        with contextlib.suppress(OSError):
            if not self.published.is_current():
                self.published.finish()
            if self.store.ledger.is_whole():
                settle(self.store.path)


def _look_again(store: Store, mine: range, row_bytes: int) -> None:
    """Removes chunks that cannot be read, among those written last.

    A kill leaves none, but if the power fails the system may have kept the name of a
    file and lost what was in it. From the end of each log it looks until all is sound
    for long enough; older chunks are looked at when they are read.
    """
    chunk_bytes = row_bytes * store.chunks.points
    for latest in list(store.ledger.latest.values()):
        sound = 0
        for number in dict.fromkeys(reversed(latest)):
            if number not in mine or not store.is_done(number):
                continue
            if store.is_sound(number):
                sound += 1
            else:
                store.discard(number)
                sound = 0
            if sound >= _LOOK_AGAIN_CHUNKS or sound * chunk_bytes > _LOOK_AGAIN:
                break
