"""What the store of a sweep has, for one that is only planned: nothing is written."""

import dataclasses
import functools as ft
from collections.abc import Sequence

import numpy as np

from ..._store.folder import is_vacant
from ..._store.layout import StoreLayout
from ..._store.store import open_store
from ..plan import Plan
from .fingerprint import check_same, check_sweep, fingerprint, fingerprint_alone
from .functions import with_noted
from .locked import share
from .opened import contents_of


@dataclasses.dataclass(frozen=True)
class Looked:
    """A plan as a store would have it carried out, and how far it has been.

    `left` are the chunks that the call would compute. Counts are of points.
    """

    plan: Plan
    left: Sequence[int]
    done: int
    failed: int


def looked(plan: Plan) -> Looked:
    """What a sweep would find in its store; raises what it would raise."""
    request, job = plan.request, plan.job
    rank, size = request.part or (0, 1)
    if request.store is None or job is None or is_vacant(request.store):
        return Looked(plan, range(rank, len(plan.chunks), size), 0, 0)
    path, contents = request.store, contents_of(plan)
    print_ = fingerprint(job.space, job.key, job.parts, job.traced)
    print_ |= contents.identity
    alone = ft.partial(fingerprint_alone, request.fn, job.space, job.key, job.parts)
    store = open_store("plan", path, share(request.part))
    check_sweep(store)
    stored = with_noted(path, store.record, print_)
    check_same(path, stored, print_, alone, request.trusting)
    plan = plan.with_batch_size(store.record["batch_size"]).with_chunks(store.chunks)
    ledger = store.ledger
    lacking = ~ledger.done()
    if request.repairing:
        lacking[list(ledger.failed)] = True
    left = [i for i in np.flatnonzero(lacking).tolist() if i % size == rank]
    failed = sum(_points(plan, ledger.failures()))
    return Looked(plan, left, sum(_points(plan, ledger.runs())), failed)


def _points(plan: Plan, spans: np.ndarray) -> list[int]:
    """How many points some spans of rows have."""
    both = (plan.work.span(first, last) for first, last in spans.tolist())
    return [last - first for first, last in both]


def layout_of(plan: Plan) -> StoreLayout:
    """What the store of a plan would be made of."""
    job = plan.job
    assert job is not None
    contents = contents_of(plan)
    print_ = fingerprint(job.space, job.key, job.parts, job.traced)
    record = {**print_, **contents.identity, "batch_size": plan.batch_size}
    return contents.layout(record)
