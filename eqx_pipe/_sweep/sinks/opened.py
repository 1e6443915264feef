"""The store of a sweep: created, checked against the sweep, or grown."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from ..._errors import SweepError, message
from ..plan import Plan
from ..store import (
    Folder,
    Store,
    StoreLayout,
    Taken,
    grow,
    lay_out,
    open_store,
    store_without_values,
)
from .contents import StateContents, ValueContents
from .growth import Grown, check_batch_size, growth_in, record_of
from .identity import check_same, disk_errors, identity_of

_WHOLE, _GROW = "all", "grow"
"""The locks for filling a whole store, and for creating or growing it."""


def contents_of(plan: Plan) -> ValueContents | StateContents:
    """Return the contents of the store of a sweep."""
    return ValueContents(plan) if plan.blocks is None else StateContents(plan)


@dataclasses.dataclass(frozen=True)
class Opened:
    """The store of a sweep, with the plan that fills it.

    If nothing may be written, it may have no files yet, and `grown` is the store that
    it would become. `has_grown` is true if it has grown in this call.
    """

    files: Folder
    store: Store
    plan: Plan
    grown: Grown | None = None
    has_grown: bool = False


def open_for(plan: Plan, write: bool) -> Opened:
    """Return the store of a sweep; raise a `StructureError` for another sweep's store.

    With `write`, the store is created if it does not exist, and grows if its space has
    grown.
    """
    assert plan.request.store is not None
    files, has_grown = Folder(Path(plan.request.store)), False
    now = {**identity_of(plan), **contents_of(plan).identity}
    if files.is_vacant():
        layout = contents_of(plan).layout(record_of(plan, now))
        if not write:
            return Opened(files, store_without_values(files, layout), plan)
        _create(files, layout)
    store = open_store("sweep", files)
    grown, why = growth_in(plan, store, now)
    if grown is not None and write:
        # Lock only now, so that nothing is written to a store of another sweep.
        with growing(files):
            store = open_store("sweep", files)
            grown, why = growth_in(plan, store, now)
            if grown is not None:
                _grow(files, store, grown)
                store, grown, has_grown = open_store("sweep", files), None, True
    if grown is None:
        trusting = plan.request.resume is not None
        check_same(store.path, store.record, now, trusting, why)
        check_batch_size(plan, store)
        kept = store.record["batch_size"]
        plan = plan.with_batch_size(kept).with_chunks(store.chunks)
    else:
        plan = grown.plan
    store = dataclasses.replace(store, function=now["function"]["program"])
    return Opened(files, store, plan, grown, has_grown)


def _create(files: Folder, layout: StoreLayout) -> None:
    with disk_errors(files.place(), "be made"):
        # Resolve links, whose target may not exist yet.
        Path(os.path.realpath(files.path)).mkdir(parents=True, exist_ok=True)
        with growing(files):
            if not files.is_vacant():  # another process has created it
                return
            try:
                lay_out(files, layout)
            except BaseException:
                files.give_up()
                raise


def _grow(files: Folder, store: Store, grown: Grown) -> None:
    with locked(files, None) as has_locks, disk_errors(store.path, "grow"):
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
def locked(files: Folder, shard: tuple[int, int] | None) -> Iterator[bool]:
    """Lock the share of this process, or the whole store without shares."""
    what = "the store"
    try:
        with contextlib.ExitStack() as stack:
            with disk_errors(files.place(), "be locked"):
                # Processes with a shard share this lock, so that none locks the whole.
                whole = files.lock(_WHOLE, shared=shard is not None)
                has_locks = stack.enter_context(whole)
                if shard is not None:
                    what = f"shard {shard[0]} of {shard[1]} of the store"
                    name = f"shard-{shard[0]}-of-{shard[1]}"
                    stack.enter_context(files.lock(name))
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


@contextlib.contextmanager
def growing(files: Folder) -> Iterator[None]:
    """Wait until no other process changes the layout of the store, and lock it."""
    with contextlib.ExitStack() as stack:
        with disk_errors(files.place(), "be locked"):
            stack.enter_context(files.lock(_GROW, wait=True))
        yield


def check_current(store: Store) -> None:
    """Raise a `SweepError` if the store has grown or was deleted meanwhile."""
    changed = store.changed()
    if changed is not None:
        raise SweepError(changed)
