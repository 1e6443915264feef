"""A sweep that is kept in a store, chunk by chunk as it is computed."""

import contextlib
import functools as ft
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool

from ..._errors import SweepError, message, value_error
from ..._store.folder import LOCKS, Taken, check_no_links, is_vacant, lock
from ..._store.layout import create
from ..._store.store import FAILED, OK, Store, open_store
from ..compute.sizes import Rows
from ..gather import Interrupt, Outcome, Todo
from ..plan import Plan
from ..results.label import storable
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

_LOOK_AGAIN = 256 * 1024 * 1024
"""How many bytes of the newest chunks are read before a sweep goes on."""


class InStore:
    """A store that a sweep fills, alone or with other processes."""

    def __init__(self, plan: Plan):
        request = plan.request
        assert request.store is not None
        self.store = _opened(plan)
        check_batch_size(self.store, request.space.size)
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
        self.plan, self.contents = plan, _contents(plan)
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
        self.contents.advance(store)
        if self.stopped or not (self._unknown(mine) or self._lacking(mine)):
            yield Todo(mine, [], Interrupt())
            return
        with _locked(store, part):
            for number in self._unknown(mine):
                store.discard(number)
            _look_again(store, mine, self.plan.compiled.row_bytes)
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

    def keep(self, number: int, values: Rows, ok: Bool[np.ndarray, " rows"]) -> None:
        """Writes a chunk."""
        store = self.store
        status = np.where(ok, OK, FAILED).astype(np.int8)
        with continuing(store.path, "take a chunk"):
            # A process with another part of the store may have been first.
            if not store.is_done(number):
                store.commit(number, list(map(storable, values)), status)
        self.contents.advance(store)

    def outcome(self) -> Outcome:
        """The store as it stands."""
        return self.contents.outcome(self.store)

    def _lacking(self, mine: Sequence[int]) -> list[int]:
        return [number for number in mine if not self.store.is_done(number)]

    def _unknown(self, mine: Sequence[int]) -> list[int]:
        """Finished chunks whose status cannot be read: nobody knows what they are."""
        store = self.store
        try:
            status = store.statuses()
        except OSError:
            done = [number for number in mine if store.is_done(number)]
            return [number for number in done if not store.knows(number)]
        self.contents.refuse(store, np.flatnonzero(status == FAILED))
        return []


def _contents(plan: Plan) -> StoredValues | StoredStates:
    return StoredValues(plan) if plan.blocks is None else StoredStates(plan)


def _opened(plan: Plan) -> Store:
    """The store of a sweep, made if there is nothing."""
    request, job = plan.request, plan.job
    assert job is not None and request.store is not None
    path, contents = request.store, _contents(plan)
    print_ = fingerprint(job.space, job.key, job.parts, job.traced)
    print_ |= contents.identity
    alone = ft.partial(fingerprint_alone, request.fn, job.space, job.key, job.parts)
    if is_vacant(path):
        record = {**print_, "alone": alone(), "batch_size": plan.batch_size}
        layout = contents.layout(record)
        with continuing(path, "be made"):
            create(path, layout)
    store = open_store("sweep", path)
    with continuing(path, "be opened"):
        check_no_links("sweep", path)
    check_sweep(store)
    check_same(path, store.record, print_, alone, request.trusting)
    return store


def _look_again(store: Store, mine: Sequence[int], row_bytes: int) -> None:
    """Removes chunks that cannot be read, among those written last.

    A kill leaves none, but if the power fails the system may have kept the name of a
    file and lost what was in it. Older chunks are looked at when they are read.
    """
    done = [number for number in mine if store.is_done(number)]
    room = _LOOK_AGAIN
    for number in sorted(done, key=store.written, reverse=True):
        if not store.is_sound(number):
            store.discard(number)
        room -= row_bytes * store.chunks.points
        if room < 0:
            break


@contextlib.contextmanager
def _locked(store: Store, part: tuple[int, int] | None) -> Iterator[None]:
    """Holds the share for this process, and the whole store if it is not divided."""
    folder = store.path / LOCKS
    what = "the store"
    try:
        with contextlib.ExitStack() as stack:
            with continuing(store.path, "be locked"):
                stack.enter_context(lock(folder / "all", shared=part is not None))
                if part is not None:
                    rank, size = part
                    what = f"part {rank} of {size} of the store"
                    stack.enter_context(lock(folder / f"part-{rank}-of-{size}"))
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
