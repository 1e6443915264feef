"""A sweep that is kept in a store, chunk by chunk as it is computed."""

import contextlib
import functools as ft
from collections.abc import Iterator

import numpy as np

from ..._errors import SweepError, message, value_error
from ..._store.folder import LOCKS, Taken, files_in, is_vacant, lock
from ..._store.layout import create
from ..._store.ledger import WHOLE
from ..._store.published import Published
from ..._store.store import Store, open_store
from ..compute.failure import Verdict
from ..compute.sizes import Rows
from ..gather import Interrupt, Outcome, Todo
from ..plan import Plan
from ..results.label import storable
from ..results.raised import ranges
from .contents import StoredStates, StoredValues
from .fingerprint import (
    check_batch_size,
    check_room,
    check_same,
    check_sweep,
    continuing,
    fingerprint,
    fingerprint_alone,
)
from .functions import note, with_noted

_LOOK_AGAIN = 256 * 1024 * 1024
_LOOK_AGAIN_CHUNKS = 128
"""How many bytes, or chunks, in a row must be sound before a sweep goes on."""


class InStore:
    """A store that a sweep fills, alone or with other processes."""

    def __init__(self, plan: Plan):
        request = plan.request
        assert request.store is not None
        self.store = _opened(plan)
        # The ledger was read before the files are looked for: a chunk that another
        # process finishes meanwhile is not yet known, and not lost.
        with continuing(request.store, "be opened"):
            files = files_in("sweep", request.store)
        versions = self.store.ledger.versions
        self._lost = {n: int(versions[n]) for n in self.store.lost(files)}
        self.published = Published(self.store, files)
        check_batch_size(self.store, request.whole.size)
        kept = self.store.record["batch_size"]
        if isinstance(request.batch_size, int) and plan.batch_size != kept:
            raise value_error(
                "sweep",
                f"`batch_size` is {request.batch_size}, and the store "
                f"`{request.store}` was begun with {kept}.",
                "Leave it out, so that all values are those of one run, or give "
                "another path.",
            )
        plan = plan.with_batch_size(kept).with_chunks(self.store.chunks)
        self.plan, self.contents = plan, contents_of(plan)
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
        store, part = self.store, self.plan.request.part
        rank, size = part or (0, 1)
        mine = range(rank, len(store.chunks), size)
        self._refuse()
        self.contents.advance(store)
        lost = any(number in mine for number in self._lost)
        if self.stopped or not (lost or self._lacking(mine)):
            yield Todo(mine, [], Interrupt())
            self._tell()
            return
        with _locked(store, part):
            self._forget(mine)
            _look_again(store, mine, self.plan.compiled.row_bytes)
            self._refuse()
            try:
                with Interrupt() as interrupt:
                    yield Todo(mine, self._lacking(mine), interrupt)
            except BaseException as error:
                all_, left = map(self.plan.count, (mine, self._lacking(mine)))
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
            mends = self.plan.request.repairing and number in store.ledger.failed
            if not store.is_done(number) or mends:
                begin, _ = self.plan.work.span(*store.chunks.span(number))
                raised = verdict.errors.items()
                errors = {text: ranges(points - begin) for text, points in raised}
                keep = store.amend if store.is_done(number) else store.commit
                keep(number, list(map(storable, values)), ok, errors)
            self.published.now_and_then()
        self.contents.advance(store)

    def outcome(self) -> Outcome:
        """The store as it stands."""
        self.store.ledger.refresh()
        return self.contents.outcome(self.store)

    def _lacking(self, mine: range) -> list[int]:
        ledger = self.store.ledger
        lacking = ~ledger.done()
        if self.plan.request.repairing:
            lacking[list(ledger.failed)] = True
        return [i for i in np.flatnonzero(lacking).tolist() if i in mine]

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
        if not self.published.is_current():
            with contextlib.suppress(OSError):
                self.published.finish()


def contents_of(plan: Plan) -> StoredValues | StoredStates:
    return StoredValues(plan) if plan.blocks is None else StoredStates(plan)


def _opened(plan: Plan) -> Store:
    """The store of a sweep, made if there is nothing."""
    request, job = plan.request, plan.job
    assert job is not None and request.store is not None
    path, contents = request.store, contents_of(plan)
    print_ = fingerprint(job.space, job.key, job.parts, job.traced)
    print_ |= contents.identity
    alone = ft.partial(fingerprint_alone, request.fn, job.space, job.key, job.parts)
    if is_vacant(path):
        record = {**print_, "alone": alone(), "batch_size": plan.batch_size}
        layout = contents.layout(record)
        with continuing(path, "be made"):
            create(path, layout)
    store = open_store("sweep", path, share(request.part))
    check_sweep(store)
    stored = with_noted(path, store.record, print_)
    check_same(path, stored, print_, alone, request.trusting)
    if request.repairing and stored["function"] != print_["function"]:
        with continuing(path, "note the function"):
            note(path, print_, alone())
    return store


def share(part: tuple[int, int] | None) -> str:
    """The name of a process's share, for its lock and its log."""
    return WHOLE if part is None else f"part-{part[0]}-of-{part[1]}"


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


@contextlib.contextmanager
def _locked(store: Store, part: tuple[int, int] | None) -> Iterator[None]:
    """Holds the share for this process, and the whole store if it is not divided."""
    folder = store.path / LOCKS
    what = "the store"
    try:
        with contextlib.ExitStack() as stack:
            with continuing(store.path, "be locked"):
                stack.enter_context(lock(folder / WHOLE, shared=part is not None))
                if part is not None:
                    what = f"part {part[0]} of {part[1]} of the store"
                    stack.enter_context(lock(folder / share(part)))
            yield
    except Taken as taken:
        raise SweepError(
            message(
                "sweep",
                f"{what} `{store.path}` is being filled by {taken}.",
                "Wait for it or stop it; processes that shall fill one store together "
                "each take their own `part=(rank, size)`.",
            )
        ) from None
