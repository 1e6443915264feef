"""Reductions that outlive a kill, are shared by processes, or computed by workers.

The state of every block is kept, and merged when the result is asked for: in the order
of the index and one after the other, as if the sweep had never been interrupted.
"""

import dataclasses
import functools as ft
import time
from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
import numpy as np

from ..._jaxprs.text import Writer, digest
from ..._reduce.many import Many, as_many
from ..._spaces.space import Space
from ..._store.chunks import Chunks, cut
from ..._store.layout import Plan, Variable
from ..._tree import tree_text
from ..._types import Key
from ..compute.parts import Job, prepare
from ..compute.plan import CHUNK_BYTES
from ..compute.progress import Progress
from ..reduced.rows import BlockRows
from ..reduced.run import Fold
from ..reduced.states import Blocks
from ..reduced.trace import trace_reducers
from ..results.label import check_names, inner_dims, versions
from ..results.label import storable as as_stored
from ..results.result import SweepResult
from ..tracing.call import fn_name
from .fingerprint import fingerprint, fingerprint_alone
from .fold import InStore, InTurn, until_stopped
from .interrupt import Interrupt
from .loop import Source, gather, here
from .record import check_room
from .remote import elsewhere, pack, workers
from .stored import fill, opened, refuse_failed

Bar = Callable[..., Progress]

_STATUS = "status"


def reduce_elsewhere(
    away: Any,
    reduce: Any,
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    batch_size: Any,
    devices: tuple[Any, ...],
    isolated: bool,
    bar: Bar,
) -> SweepResult:
    """The result of a reduced sweep that has a store or an executor."""
    started = time.time()
    reducers = as_many("sweep", reduce)
    processes = shares = 1 if away.part is None else away.part[1]
    if away.executor is not None:
        # What devices a worker has is not known: one for a guess.
        devices, shares = devices[:1], shares * workers(away.executor)
    job = prepare(fn, space, key, batch_size, devices, False, shares, isolated)
    if away.path is None:
        fold = _in_memory(away.executor, fn, job, reduce, reducers, isolated, bar)
        return _result(fold, [], job, fn, started)

    def plan(print_: dict[str, Any]) -> Plan:
        return _plan(BlockRows(Blocks(job, reducers)), processes, print_, fn_name(fn))

    print_ = fingerprint(job.space, job.key, job.parts, job.traced)
    print_["reduce"] = _identity(reducers, job)
    alone = ft.partial(fingerprint_alone, fn, job.space, job.key, job.parts)
    store = opened(away.path, print_, alone, plan, job, batch_size, away.resume)
    job = dataclasses.replace(job, batch_size=store.record["batch_size"])
    rows = BlockRows(Blocks(job, reducers))
    check_room(store, (len(rows.blocks),), _variables(rows), _STATUS)
    prefix = InStore(rows, store)

    def source(shown: Progress) -> Source:
        if away.executor is None:
            inner = here(rows, store.chunks, None, shown, isolated)
        else:
            packed = pack(fn, job, isolated, reduce)
            inner = elsewhere(away.executor, packed, rows, store.chunks, None, shown)
        return until_stopped(inner, prefix)

    def refuse(blocks: np.ndarray) -> None:
        # Where a reducer stops the sweep, blocks behind that do not count.
        if len(blocks) and not isolated and not reducers.stops:
            refuse_failed(store.path, InStore(rows, store).all()[0].failed)

    prefix.advance()
    if not prefix.stopped:
        share, named = away.part or (0, 1), away.part is not None
        fill(store, source, share, named, bar, rows, refuse)
    fold, gaps = InStore(rows, store).all()
    if not isolated:
        refuse_failed(store.path, fold.failed)
    return _result(fold, gaps, job, fn, started)


def _in_memory(
    executor: Any,
    fn: Callable[..., Any],
    job: Job,
    reduce: Any,
    reducers: Many,
    isolated: bool,
    bar: Bar,
) -> Fold:
    """The reduction by an executor."""
    rows = BlockRows(Blocks(job, reducers))
    chunks = _chunks(rows, 1)
    fold = InTurn(rows, chunks)
    failed = 0
    with bar(job.geometry.size) as shown:

        def keep(number: int, values: list[np.ndarray], ok: Any) -> None:
            nonlocal failed
            fold.waiting[number] = values
            failed += rows.failures(values, ok)
            shown.failed(failed)

        packed = pack(fn, job, isolated, reduce)
        inner = elsewhere(executor, packed, rows, chunks, None, shown)
        gather(until_stopped(inner, fold), range(len(chunks)), keep, Interrupt())
    return fold.fold


def _chunks(rows: BlockRows, shares: int) -> Chunks:
    """Which blocks are computed and kept together."""
    across = len(rows.blocks.job.devices)
    most = max(1, CHUNK_BYTES // rows.row_bytes)
    return cut((len(rows.blocks),), across, most, shares)


def _result(
    fold: Fold,
    gaps: list[tuple[int, int]],
    job: Job,
    fn: Callable[..., Any],
    started: float,
) -> SweepResult:
    done = fold.finish()
    ok, missing = np.broadcast_to(np.True_, (done.points,)), None
    if len(done.failed) or gaps:
        ok = np.ones(done.points, bool)
        ok[done.failed] = False
    if gaps:
        missing = np.zeros(done.points, bool)
        for first, last in gaps:
            missing[slice(*fold.blocks.span(first, last - first))] = True
        ok[missing] = False
    return SweepResult(
        values=done.values,
        space=job.space,
        ok=ok,
        batch_size=job.batch_size,
        num_devices=len(job.devices),
        started=started,
        seconds=time.time() - started,
        points=done.points - (0 if missing is None else int(missing.sum())),
        function=fn_name(fn),
        missing=missing,
    )


def _identity(reducers: Many, job: Job) -> dict[str, Any]:
    """What tells reducers: what they do to a state, whatever the batch size."""
    reducing = trace_reducers(reducers, job.traced[0], 2)
    writer = Writer()
    texts = [
        writer.program(jaxpr)
        for one in reducing.each
        for jaxpr in (one.absorb, one.merge)
    ]
    texts += [*writer.constants, *map(writer.value, reducing.init)]
    names = jtu.tree_unflatten(
        reducers.structure, [type(r).__name__ for r in reducers.reducers]
    )
    states = jtu.tree_unflatten(reducing.structure, reducing.init)
    return {
        "reducers": str(names),
        "states": tree_text(states),
        "text": digest("\n".join(texts)),
    }


def _variables(rows: BlockRows) -> list[Variable]:
    """The arrays for the states of blocks."""
    variables = []
    for name, leaf in rows.variables:
        dtype = as_stored(np.empty((0,), leaf.dtype)).dtype
        dims = inner_dims(name, len(leaf.shape))
        variables.append(Variable(name, dtype, leaf.shape, dims))
    return variables


def _plan(rows: BlockRows, shares: int, record: dict[str, Any], name: str) -> Plan:
    blocks = rows.blocks
    first = np.arange(len(blocks), dtype=np.int64) * blocks.points
    variables = _variables(rows)
    check_names("sweep", [variable.name for variable in variables])
    space, job = blocks.job.space, blocks.job
    return Plan(
        dims=("block",),
        chunks=_chunks(rows, shares),
        coordinates={"first_point": (("block",), first, {})},
        variables=variables,
        status=_STATUS,
        attributes={
            "function": name,
            "reduce": record["reduce"]["reducers"],
            "space": repr(space),
            "points": space.size,
            "batch_size": job.batch_size,
            "block_points": blocks.points,
            "devices": len(job.devices),
            **versions(),
        },
        record={**record, "batch_size": job.batch_size},
    )
