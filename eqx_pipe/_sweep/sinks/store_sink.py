"""A sweep that is kept in a store, chunk by chunk as it is computed."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
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
    Folder,
    Store,
    StoreLayout,
    Taken,
    create,
    grow,
    open_store,
    settle,
    statuses_of,
)
from .contents import StateContents, ValueContents
from .growth import Grown, check_batch_size, growth_in, record_of
from .identity import check_same, disk_errors, identity_of

_WHOLE, _GROW = "all", "grow"
"""The locks of who fills a store alone, and of who creates it or has it grow."""

_RECENT_NS = 120 * 10**9
_RECENT_BYTES = 256 * 1024 * 1024
"""Chunks that were written so shortly before the last one are read again, if they have
no more bytes than this.
"""


@dataclasses.dataclass(frozen=True)
class Left:
    """What a sweep would find and do in its store, in points.

    `left` are the chunks that it would compute, at `num_left` points; the store lacks
    `new` ones as its space has grown, and `copied` of those that it has go to other
    files.
    """

    left: Sequence[int]
    num_left: int
    done: int = 0
    failed: int = 0
    new: int = 0
    copied: int = 0


def contents_of(plan: Plan) -> ValueContents | StateContents:
    """Return what the store of a sweep holds."""
    return ValueContents(plan) if plan.blocks is None else StateContents(plan)


class StoreSink:
    """A store that a sweep fills, alone or with other processes.

    It is opened: created if there is nothing, grown if its space has. With
    `write=False` nothing is written, and there may be no `store` yet.
    """

    def __init__(self, plan: Plan, write: bool = True):
        assert plan.request.store is not None
        self.files = Folder(Path(plan.request.store))
        self.grown: Grown | None = None
        self.store: Store | None = None
        self._has_grown = False
        self._kept: set[int] = set()
        now = {**identity_of(plan), **contents_of(plan).identity}
        if write or not self.files.is_vacant():
            self.store = self._opened(plan, now, write)
            kept = self.store.record["batch_size"]
            plan = plan.with_batch_size(kept).with_chunks(self.store.chunks)
        if self.grown is not None:
            plan = self.grown.plan
        self.plan, self.contents = plan, contents_of(plan)
        self._identity = now

    @property
    def layout(self) -> StoreLayout:
        """The arrays of the store, as they are or would be."""
        if self.grown is not None:
            return self.grown.layout
        return self.contents.layout(record_of(self.plan, self._identity))

    @property
    def stopped(self) -> bool:
        """Whether a reducer asked to stop."""
        return self.contents.stopped

    def _opened(self, plan: Plan, now: dict, write: bool) -> Store:
        """Return the store of a sweep, which is created or grows if it may `write`."""
        if self.files.is_vacant():
            self._create(plan, now)
        store = open_store("sweep", self.files)
        grown, why = self._growth(plan, store, now)
        if grown is not None and write:
            # Only now, as nothing is written to a store that is refused, not a lock.
            with self._growing():
                store = open_store("sweep", self.files)
                grown, why = self._growth(plan, store, now)
                if grown is not None:
                    self._grow(store, grown)
                    store, grown = open_store("sweep", self.files), None
        self.grown = grown
        if grown is None:
            check_same(store.path, store.record, now, plan.request.trusting, why)
            check_batch_size(plan, store)
        return dataclasses.replace(store, function=now["function"]["program"])

    def _growth(self, plan: Plan, store: Store, now: dict) -> tuple[Grown | None, str]:
        return (None, "") if "saved" in store.record else growth_in(plan, store, now)

    def _create(self, plan: Plan, now: dict) -> None:
        path = self.files.path
        with disk_errors(str(path), "be made"):
            # Where a link leads, which may not be there yet.
            Path(os.path.realpath(path)).mkdir(parents=True, exist_ok=True)
            try:
                with self._growing():
                    if self.files.is_vacant():  # by now another process may have
                        layout = contents_of(plan).layout(record_of(plan, now))
                        create(self.files, layout)
            except BaseException:
                self.files.give_up()
                raise

    def _grow(self, store: Store, grown: Grown) -> None:
        with self._locked(None) as has_locks, disk_errors(store.path, "grow"):
            if not has_locks:
                raise SweepError(
                    message(
                        "sweep",
                        f"the file system of the store `{store.path}` has no locks, "
                        "without which no store grows.",
                        "Copy it to another disk, or give another path.",
                    )
                )
            for number in store.lost():
                store.discard(number)
            grow(store, grown.layout, grown.origin, grown.moved)
            self._has_grown = True

    @contextlib.contextmanager
    def filling(self) -> Iterator[Todo]:
        """Lock the share of this process, and look for what is missing.

        Ctrl-C lets the chunk in flight be finished, and an error says what is kept.
        """
        assert self.store is not None
        store, shard = self.store, self.plan.request.shard
        index, count = shard or (0, 1)
        own = range(index, len(store.chunks), count)
        with disk_errors(store.path, "be opened"):
            lost = [number for number in store.lost() if number in own]
        self._refuse()
        self.contents.advance(store)
        leftovers = self._has_leftovers()
        if self.stopped or not (lost or leftovers or self._lacking(own)):
            yield Todo(own, [])
            return
        with self._locked(shard):
            self._check_current()
            with disk_errors(store.path, "be mended"):
                self._clean(leftovers and shard is None)
                # One stat more: the listing of a network disk may be old.
                for number in set(lost) & {*store.lost()}:
                    store.discard(number)
                _look_again(store, own, self.plan.work.row_bytes)
            # Once more, with what other processes have written since.
            self._refuse()
            try:
                yield self._todo(own)
            # Ctrl-C too should say what is kept.
            except BaseException as error:
                all_ = self.plan.count(own)
                with contextlib.suppress(OSError):
                    left = self._todo(own).left(self.plan)
                    error.add_note(
                        f"{all_ - left:,} of {all_:,} points are finished and kept in "
                        f"`{store.path}`. The same call goes on from there."
                    )
                raise

    def keep(self, chunk: Chunk) -> None:
        """Write a chunk, or some rows of it."""
        assert self.store is not None
        store, (number, rows, values, verdict) = self.store, chunk
        status = np.where(verdict.ok, OK, FAILED).astype(np.int8)
        if verdict.missing is not None:
            status[verdict.missing] = MISSING
        begin = self.contents.begin(store, number)
        errors = {text: at - begin for text, at in verdict.errors.items()}
        kept = list(map(storable, values))
        with disk_errors(store.path, "take a chunk"):
            # A process with another share of the store may have been first.
            if rows is None and not store.is_done(number):
                store.commit(number, kept, status, errors)
            elif rows is not None and np.isin(rows, self._wanted(number)).any():
                store.put_rows(number, rows, kept, status, errors)
        self._kept.add(number)
        self.contents.advance(store)

    def outcome(self) -> Outcome:
        """Return the store as it stands."""
        assert self.store is not None
        self._check_current()
        gone = self._kept - {*np.flatnonzero(self.store.done()).tolist()}
        if gone:
            raise SweepError(
                message(
                    "sweep",
                    f"{len(gone)} chunks of the store `{self.store.path}` were deleted "
                    "while it was filled.",
                    "Call the same sweep again, which computes them once more.",
                )
            )
        return self.contents.outcome(self.store)

    def left(self) -> Left:
        """Return what there is to do, for a sweep that is only planned."""
        index, count = self.plan.request.shard or (0, 1)
        own = range(index, len(self.plan.chunks), count)
        if self.store is None:
            return Left(own, self.plan.count(own))
        if self.grown is not None:
            return self._left_after_growth(self.store, self.grown, own)
        todo = self._todo(own)
        gaps = self.store.account().gaps
        each = {
            kind: sum(
                b - a for a, b in (self.plan.work.span(*x) for x in spans.tolist())
            )
            for kind, spans in (
                (status, gaps[gaps[:, 2] == status, :2]) for status in (MISSING, FAILED)
            )
        }
        _, size = self.plan.work.span(0, self.store.chunks.size)
        there = size - each[MISSING]
        return Left(todo.chunks, todo.left(self.plan), there, each[FAILED])

    def _left_after_growth(self, store: Store, grown: Grown, own: range) -> Left:
        chunks, left = grown.layout.chunks, list[int]()
        num_left = done = failed = 0
        for number, (_, status) in enumerate(statuses_of(store, chunks, grown.origin)):
            lacks, fails = int(np.sum(status == MISSING)), int(np.sum(status == FAILED))
            done, failed = done + len(status) - lacks, failed + fails
            wanted = lacks + fails * self.plan.request.repairing
            if wanted and number in own:
                left.append(number)
                num_left += wanted
        new = chunks.size - store.chunks.size
        return Left(left, num_left, done, failed, new, done * grown.moved)

    def _lacking(self, own: range) -> list[int]:
        """Return the chunks of a share that are to be computed, all of them or rows."""
        assert self.store is not None
        done = self.store.done()
        lacking = ~done
        for number in self.store.odd():
            lacking[number] |= done[number] and len(self._wanted(number)) > 0
        return [number for number in np.flatnonzero(lacking).tolist() if number in own]

    def _todo(self, own: range) -> Todo:
        assert self.store is not None
        lacking = self._lacking(own)
        begun = [number for number in lacking if self.store.is_done(number)]
        rows = {number: self._wanted(number) for number in begun}
        return Todo(own, lacking, rows, partial=True)

    def _wanted(self, number: int) -> Int64[np.ndarray, " rows"]:
        """Return the rows of a chunk that are missing, or failed if that is asked."""
        assert self.store is not None
        manifest = self.store.manifest(number)
        if manifest is None:
            return np.zeros(0, np.int64)
        wanted = manifest.status == MISSING
        if self.plan.request.repairing:
            wanted |= manifest.status == FAILED
        return np.flatnonzero(wanted)

    def _refuse(self) -> None:
        """Raise if points have failed that are neither marked nor computed again."""
        if not self.plan.request.repairing:
            assert self.store is not None
            self.contents.refuse(self.store)

    def _has_leftovers(self) -> bool:
        """Return whether a growth or a kill has left files that are not valid."""
        if self._has_grown:  # in this call: who has it open may still read
            return False
        return self.files.exists(GROWING) or bool(self.files.parts())

    def _clean(self, whole: bool) -> None:
        """Remove what is not valid, if nobody else writes."""
        if whole:
            settle(self.files)
            for key in self.files.parts():
                self.files.remove(key)

    def _check_current(self) -> None:
        """Raise a `SweepError` if the store has grown or was deleted since."""
        assert self.store is not None
        changed = self.store.has_changed()
        if changed is None:
            return
        cure = "Call the sweep of the larger space, which has these points too."
        if "grown" not in changed:
            cure = "Call the same sweep again, which computes what is gone."
        raise SweepError(
            message(
                "sweep",
                f"the store `{self.store.path}` {changed} while it was filled.",
                cure,
            )
        )

    @contextlib.contextmanager
    def _locked(self, shard: tuple[int, int] | None) -> Iterator[bool]:
        """Hold the share of this process, or the whole store if it is not divided."""
        what = "the store"
        place = self.files.place()
        try:
            with contextlib.ExitStack() as stack:
                with disk_errors(place, "be locked"):
                    # Shared by those with a shard, so that nobody has the whole then.
                    one = self.files.lock(_WHOLE, shared=shard is not None)
                    has_locks = stack.enter_context(one)
                    if shard is not None:
                        what = f"shard {shard[0]} of {shard[1]} of the store"
                        name = f"shard-{shard[0]}-of-{shard[1]}"
                        stack.enter_context(self.files.lock(name))
                yield has_locks
        except Taken as taken:
            raise SweepError(
                message(
                    "sweep",
                    f"{what} `{place}` is being filled by {taken}.",
                    "Wait for it or stop it; processes that fill one store together "
                    "each take their own `shard=(index, count)`.",
                )
            ) from None

    @contextlib.contextmanager
    def _growing(self) -> Iterator[None]:
        """Wait until no other process lays the store out, and keep others from it."""
        pause = 0.01
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    with disk_errors(self.files.place(), "be locked"):
                        stack.enter_context(self.files.lock(_GROW))
                    break
                except Taken:
                    time.sleep(pause)
                    pause = min(2 * pause, 0.5)
            yield


def _look_again(store: Store, own: range, row_bytes: int) -> None:
    """Remove chunks that cannot be read, among those written last.

    A kill leaves none, but if the power fails the system may have kept the name of a
    file and lost what was in it. Older chunks are looked at when they are read.
    """
    written = store.written()
    newest = max(written.values(), default=0)
    recent = [n for n, when in written.items() if when >= newest - _RECENT_NS]
    most = max(1, _RECENT_BYTES // max(1, row_bytes * store.chunks.points))
    for number in sorted(recent, key=written.__getitem__)[-most:]:
        if number in own and not store.is_sound(number):
            store.discard(number)
