"""The store of a sweep: made, or found to be that sweep's, or grown to be so."""

import dataclasses
import functools as ft
from collections.abc import Mapping
from typing import Any

from ..._errors import value_error
from ..._store.folder import files_in, is_vacant
from ..._store.grow import Origin, grow, in_place
from ..._store.layout import StoreLayout, create
from ..._store.store import Store, open_store
from ..compute.points import Points
from ..plan import Plan
from ..request import Request
from .contents import StoredStates, StoredValues
from .fingerprint import (
    check_alone,
    check_batch_size,
    check_same,
    check_sweep,
    continuing,
    fingerprint,
    fingerprint_alone,
)
from .growth import NoGrowth, growth_of, static_texts
from .locked import growing, locked, share


def contents_of(plan: Plan) -> StoredValues | StoredStates:
    """What the store of a sweep holds."""
    return StoredValues(plan) if plan.blocks is None else StoredStates(plan)


def opened(plan: Plan) -> Store:
    """The store of a sweep, made if there is nothing."""
    request, job = plan.request, plan.points
    assert request.store is not None
    path = request.store
    print_ = fingerprint(job.space, job.key, job.cases, job.traced)
    print_ |= contents_of(plan).identity
    alone = ft.partial(_alone, job)
    if is_vacant(path):
        record = {**_record(plan, print_), "alone": alone()}
        layout = contents_of(plan).layout(record)
        with continuing(path, "be made"):
            create(path, layout)
    store = _found(plan)
    # Found out before anything is written, a lock included.
    grown, why = growth_in(plan, store, print_)
    if grown is not None:
        with growing(path):
            store = _found(plan)  # by now somebody may have
            grown, why = growth_in(plan, store, print_)
            if grown is not None:
                _grow(grown)
                store = _found(plan)
    check_same(path, store.record, print_, alone, request.trusting, why)
    check_asked(plan, store)
    return store


def _alone(job: Points) -> dict[str, str]:
    # The rounds of a search make many stores of one job.
    if not job.alone:
        job.alone |= fingerprint_alone(zip(job.cases, job.traced, strict=True))
    return job.alone


def _record(plan: Plan, print_: Mapping[str, Any]) -> dict[str, Any]:
    """What a store says of its sweep."""
    texts = static_texts(plan.request.space)
    return {**print_, "static": texts, "batch_size": plan.batch_size}


def _found(plan: Plan) -> Store:
    """The store that there is."""
    path = plan.request.store
    assert path is not None
    store = open_store("sweep", path, share(plan.request.shard))
    check_sweep(store)
    return store


def check_asked(plan: Plan, store: Store) -> None:
    """Raises a `ValueError` if another batch size was asked for than a store has."""
    request, kept = plan.request, store.record["batch_size"]
    check_batch_size(store, request.whole.size)
    if isinstance(request.batch_size, int) and plan.batch_size != kept:
        raise value_error(
            "sweep",
            f"`batch_size` is {request.batch_size}, and the store "
            f"`{request.store}` was begun with {kept}.",
            "Leave it out, so that all values are those of one run, or give "
            "another path.",
        )


_SAME = ("key", "key_law", "output_coords")


def _may_grow(record: Mapping[str, Any], print_: Mapping[str, Any]) -> bool:
    """Whether the spaces differ, and nothing else that no growth explains."""
    same = [record.get(name) == print_.get(name) for name in _SAME]
    was, now = record["function"], print_["function"]
    same += [was[name] == now[name] for name in ("outputs", "structure")]
    return record["space"] != print_["space"] and all(same)


def _check_reduced(
    request: Request, record: Mapping[str, Any], print_: Mapping[str, Any]
) -> None:
    """Raises `NoGrowth` unless what a store keeps of points is that of the new ones."""
    if "reduce" in record and "reduce" in print_:
        raise NoGrowth(
            "`reduce`: a store of a reduction does not grow, as its blocks are those "
            "of its space; one of `Mean(over=...)` does along the dims that are kept"
        )
    if record.get("cells") != print_.get("cells") or "reduce" in {*record, *print_}:
        raise NoGrowth
    was, now = record["space"], print_["space"]
    for name in request.whole.axes().keys() - request.space.axes().keys():
        if was.get(f"axis {name}") != now[f"axis {name}"]:
            raise NoGrowth(
                f"`space`: values are reduced over `{name}`, so with another one each "
                "cell is to be computed anew"
            )


@dataclasses.dataclass(frozen=True)
class Grown:
    """What a store is to become; if its values are `moved`, in other files."""

    store: Store
    layout: StoreLayout
    origin: Origin
    moved: bool


def growth_in(
    plan: Plan, store: Store, print_: Mapping[str, Any]
) -> tuple[Grown | None, str]:
    """What a store would become, if it would grow; and why not, if that is not plain.

    Nothing is written.
    """
    try:
        if not _may_grow(store.record, print_):
            return None, ""
        _check_reduced(plan.request, store.record, print_)
        return _grown(plan, store, print_), ""
    except NoGrowth as no:
        return None, str(no)


def _grown(plan: Plan, store: Store, print_: Mapping[str, Any]) -> Grown:
    """What a store is to become; raises `NoGrowth` if its points are not among the
    new ones. Nothing is written.
    """
    request, job, path = plan.request, plan.points, store.path
    contents = contents_of(plan)
    assert isinstance(contents, StoredValues)
    growth = growth_of(path, store.record, print_, request.space, contents.coordinates)
    pairs = zip(job.cases, job.traced, strict=True)
    had = [pair for pair in pairs if growth.had(job, pair[0])]
    check_alone(path, store.record, fingerprint_alone(had), request.trusting)
    # A size that was that of all there was is no choice.
    size = store.chunks.size // max(1, len(had))
    if store.record["batch_size"] * len(plan.devices) < size:
        check_asked(plan, store)
        plan = plan.with_batch_size(store.record["batch_size"])
    chunks = None
    if growth.appends:
        lengths = tuple(request.space.dims.values())
        chunks = in_place(store.chunks, lengths, plan.chunks)
    plan = plan if chunks is None else plan.with_chunks(chunks)
    record = {**_record(plan, print_), "alone": _alone(job)}
    layout = contents_of(plan).layout(record)
    return Grown(store, layout, growth.origin, chunks is None)


def _grow(grown: Grown) -> None:
    """Has a store grow."""
    store, path = grown.store, grown.store.path
    with locked(path, None), continuing(path, "grow"):
        for number in store.lost(files_in("sweep", path)):
            store.discard(number)
        grow("sweep", store, grown.layout, grown.origin, grown.moved)
