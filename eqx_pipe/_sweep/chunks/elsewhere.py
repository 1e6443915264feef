"""Sweeps that are kept in a store, computed by an executor, or both."""

import dataclasses
import functools as ft
import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..._check import check_choice
from ..._errors import describe_value, message
from ..._spaces.space import Space
from ..._store.chunks import cut
from ..._store.folder import as_path
from ..._store.store import check_zarr
from ..._types import Key
from ..compute.parts import Job, prepare
from ..compute.plan import CHUNK_BYTES, empty_values
from ..compute.progress import Progress
from ..results.result import SweepResult
from ..tracing.call import fn_name
from .fingerprint import fingerprint, fingerprint_alone
from .interrupt import Interrupt
from .loop import Costs, Source, gather, here
from .record import check_room
from .remote import check_executor, elsewhere, pack, workers
from .stored import fill, opened, plan_of, refuse_failed, result_of, variables_of


@dataclasses.dataclass(frozen=True)
class Away:
    """Where values are kept and where they are computed, as the user said."""

    path: Path | None
    part: tuple[int, int] | None
    executor: Any
    resume: str


def check_elsewhere(
    store: Any, part: Any, executor: Any, resume: Any, mesh: Any
) -> Away | None:
    """The arguments for a store and an executor after a check, if there are any."""
    if resume is not None:
        check_choice("sweep", "resume", resume, ("force",))
    path = None if store is None else as_path("sweep", store)
    share = None if part is None else _as_part(part)
    if executor is not None:
        check_executor(executor)
    if share is not None and path is None:
        _refuse(
            "`part` is given without `store`.",
            "Give all processes the same path, `store='runs.zarr'`: they fill it "
            "together. For a share alone sweep over a slice of the space.",
        )
    if resume is not None and path is None:
        _refuse("`resume` is given without `store`.", "Give the path of the store.")
    if path is None and executor is None:
        return None
    named = "store" if path is not None else "executor"
    if executor is not None and mesh is not None:
        _refuse(
            "`mesh` together with `executor`.",
            "Leave `mesh` out: each worker uses all of its own devices.",
        )
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        _refuse(
            f"`{named}` under `jax.disable_jit()`, which is the plain loop.",
            f"Leave `{named}` out to debug.",
        )
    if path is not None:
        check_zarr("sweep")
    return Away(path, share, executor, resume or "check")


def sweep_elsewhere(
    away: Away,
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    batch_size: Any,
    devices: tuple[Any, ...],
    costs: Callable[[int], Costs] | None,
    isolated: bool,
    bar: Callable[..., Progress],
) -> SweepResult:
    """The result of a sweep that has a store or an executor.

    `costs` makes what points cost from how many of them a chunk has at most.
    """
    started = time.time()
    processes = shares = 1 if away.part is None else away.part[1]
    if away.executor is not None:
        # What devices a worker has is not known: one for a guess.
        devices, shares = devices[:1], shares * workers(away.executor)
    alike = costs is not None
    job = prepare(fn, space, key, batch_size, devices, alike, shares, isolated)
    if away.path is None:
        return _in_memory(away, fn, job, costs, isolated, bar, started)
    print_ = fingerprint(job.space, job.key, job.parts, job.traced)
    plan = ft.partial(plan_of, job, processes, name=fn_name(fn))
    alone = ft.partial(fingerprint_alone, fn, job.space, job.key, job.parts)
    store = opened(away.path, print_, alone, plan, job, batch_size, away.resume)
    variables, names = variables_of(job)
    check_room(store, tuple(job.space.dims.values()), variables, names.status)
    kept = store.record["batch_size"]
    job = dataclasses.replace(job, batch_size=kept, stretch=store.chunks.points)

    def source(bar: Progress) -> Source:
        own = None if costs is None else costs(job.stretch)
        if away.executor is None:
            return here(job, store.chunks, own, bar, isolated)
        packed = pack(fn, job, isolated)
        return elsewhere(away.executor, packed, job, store.chunks, own, bar)

    def refuse(failed: np.ndarray) -> None:
        if not isolated:
            refuse_failed(store.path, failed)

    share, named = away.part or (0, 1), away.part is not None
    fill(store, source, share, named, bar, job, refuse)
    result = result_of(store, job, fn, started)
    # Other processes may have written some since.
    missing = False if result.missing is None else result.missing
    refuse(np.flatnonzero(~(result.ok | missing)))
    return result


def _in_memory(
    away: Away,
    fn: Callable[..., Any],
    job: Job,
    costs: Callable[[int], Costs] | None,
    isolated: bool,
    bar: Callable[..., Progress],
    started: float,
) -> SweepResult:
    """All values of a sweep by an executor."""
    size = job.geometry.size
    most = max(1, CHUNK_BYTES // job.point_bytes)
    chunks = cut((size,), job.across, most)
    job = dataclasses.replace(job, stretch=chunks.points)
    values = empty_values(size, job.traced[0].stored)
    ok = np.ones(size, bool)

    with bar(size) as shown:

        def keep(number: int, leaves: list[np.ndarray], fine: Any) -> None:
            place = slice(*chunks.span(number))
            ok[place] = fine
            for into, leaf in zip(values, leaves, strict=True):
                into[place] = leaf
            shown.failed(int(np.sum(~ok)))

        packed = pack(fn, job, isolated)
        own = None if costs is None else costs(job.stretch)
        source = elsewhere(away.executor, packed, job, chunks, own, shown)
        gather(source, range(len(chunks)), keep, Interrupt())
    return SweepResult(
        values=job.unflatten(list(values)),
        space=job.space,
        ok=ok,
        batch_size=job.batch_size,
        num_devices=len(job.devices),
        started=started,
        seconds=time.time() - started,
        function=fn_name(fn),
    )


def _as_part(part: Any) -> tuple[int, int]:
    try:
        rank, size = part
        if isinstance(rank, bool) or isinstance(size, bool):
            raise TypeError
        rank, size = operator.index(rank), operator.index(size)
    except (TypeError, ValueError):
        raise TypeError(
            message(
                "sweep",
                f"`part` is {describe_value(part)}.",
                "Give two integers, `(rank, size)`, with 0 <= rank < size.",
            )
        ) from None
    if not 0 <= rank < size:
        _refuse(
            f"`part` is ({rank}, {size}).",
            "Give `(rank, size)` with 0 <= rank < size: the first of four processes "
            "is (0, 4), the last (3, 4).",
        )
    return rank, size


def _refuse(wrong: str, cure: str) -> None:
    raise ValueError(message("sweep", wrong, cure))
