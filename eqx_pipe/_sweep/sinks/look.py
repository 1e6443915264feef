"""What the store of a sweep has, for one that is only planned: nothing is written."""

import dataclasses
import functools as ft
from collections.abc import Sequence

import numpy as np

from ..._store.folder import is_vacant
from ..._store.grow import statuses_of
from ..._store.layout import StoreLayout
from ..._store.ledger import FAILED, MISSING
from ..._store.store import Store, open_store
from ..plan import Plan
from .fingerprint import check_same, check_sweep, fingerprint, fingerprint_alone
from .locked import share
from .opened import Grown, check_asked, contents_of, growth_in


@dataclasses.dataclass(frozen=True)
class Looked:
    """A plan as a store would have it carried out, and how far it has been.

    `left` are the chunks that the call would compute, at `num_left` points. Counts are
    of points: the store lacks `new` ones since the space has grown, and of those that
    it has `copied` ones go to other files. `layout` is that of the store, if any.
    """

    plan: Plan
    left: Sequence[int]
    num_left: int
    done: int = 0
    failed: int = 0
    new: int = 0
    copied: int = 0
    layout: StoreLayout | None = None


def looked(plan: Plan) -> Looked:
    """What a sweep would find in its store; raises what it would raise."""
    request, job = plan.request, plan.points
    rank, size = request.shard or (0, 1)
    if request.store is None or is_vacant(request.store):
        left = range(rank, len(plan.chunks), size)
        layout = None if request.store is None else _layout_of(plan)
        return Looked(plan, left, plan.count(left), layout=layout)
    path, contents = request.store, contents_of(plan)
    print_ = fingerprint(job.space, job.key, job.cases, job.traced)
    print_ |= contents.identity
    store = open_store("plan", path, share(request.shard))
    check_sweep(store)
    grown, why = growth_in(plan, store, print_)
    if grown is not None:
        return _after_growth(plan, grown)
    pairs = zip(job.cases, job.traced, strict=True)
    alone = ft.partial(fingerprint_alone, list(pairs))
    check_same(path, store.record, print_, alone, request.trusting, why)
    check_asked(plan, store)
    return _as_it_is(plan, store)


def _as_it_is(plan: Plan, store: Store) -> Looked:
    request, ledger = plan.request, store.ledger
    rank, size = request.shard or (0, 1)
    plan = plan.with_batch_size(store.record["batch_size"]).with_chunks(store.chunks)
    lacking = ~ledger.done()
    lacking[list(ledger.lacking)] = True
    if request.repairing:
        lacking[list(ledger.failed)] = True
    left = [i for i in np.flatnonzero(lacking).tolist() if i % size == rank]
    begun = [number for number in left if ledger.is_done(number)]
    num_left = plan.count([number for number in left if not ledger.is_done(number)])
    num_left += sum(len(store.wanted(number, request.repairing)) for number in begun)
    failed = sum(_points(plan, ledger.failures()))
    done = sum(_points(plan, ledger.runs()))
    done -= sum(int(ledger.lacks(number).sum()) for number in ledger.lacking)
    return Looked(plan, left, num_left, done, failed, layout=_layout_of(plan))


def _after_growth(plan: Plan, grown: Grown) -> Looked:
    """What would be left to do in a store that has grown."""
    store, layout, request = grown.store, grown.layout, plan.request
    rank, size = request.shard or (0, 1)
    plan = plan.with_batch_size(layout.record["batch_size"]).with_chunks(layout.chunks)
    left, num_left, done, failed = list[int](), 0, 0, 0
    found = statuses_of(store, layout.chunks, grown.origin)
    for number, (_, status) in enumerate(found):
        lacks, fails = np.sum(status == MISSING), np.sum(status == FAILED)
        done, failed = done + len(status) - int(lacks), failed + int(fails)
        wanted = int(lacks + fails * request.repairing)
        if wanted and number % size == rank:
            left.append(number)
            num_left += wanted
    new, copied = layout.chunks.size - store.chunks.size, done * grown.moved
    return Looked(plan, left, num_left, done, failed, new, copied, layout)


def _points(plan: Plan, spans: np.ndarray) -> list[int]:
    """How many points some spans of rows have."""
    both = (plan.work.span(first, last) for first, last in spans.tolist())
    return [last - first for first, last in both]


def _layout_of(plan: Plan) -> StoreLayout:
    """What the store of a plan would be made of."""
    job = plan.points
    contents = contents_of(plan)
    print_ = fingerprint(job.space, job.key, job.cases, job.traced)
    record = {**print_, **contents.identity, "batch_size": plan.batch_size}
    return contents.layout(record)
