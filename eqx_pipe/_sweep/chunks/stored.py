"""A sweep whose values go to a store as they are computed."""

import contextlib
import errno
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.tree_util as jtu
import numpy as np

from ..._errors import SweepError, message
from ..._store.chunks import Chunks, cut
from ..._store.folder import check_no_links, is_vacant
from ..._store.layout import Plan, Variable, create
from ..._store.lazy import Stored
from ..._store.lock import Taken, lock
from ..._store.names import LOCKS
from ..._store.store import FAILED, MISSING, OK, Store, open_store
from ..compute.parts import Job
from ..compute.plan import CHUNK_BYTES
from ..compute.progress import Progress
from ..results.label import (
    Names,
    attributes,
    check_names,
    coordinate_variables,
    inner_dims,
    names_of,
)
from ..results.label import storable as as_stored
from ..results.result import SweepResult
from ..tracing.call import fn_name
from .fingerprint import check_same
from .interrupt import Interrupt
from .loop import Source, Work, gather
from .record import check_batch_size, check_sweep

_LOOK_AGAIN = 256 * 1024 * 1024
"""How many bytes of the newest chunks are read before a sweep goes on."""


def opened(
    path: Path,
    print_: dict[str, Any],
    alone: Callable[[], dict[str, str]],
    plan: Callable[[dict[str, Any]], Plan],
    job: Job,
    given: Any,
    resume: str,
) -> Store:
    """The store of a sweep at `path`, made if there is nothing.

    `print_` says what the sweep is, `alone` what its function is, and `plan` is called
    with both; `given` is the batch size that the user asked for, and that of `job` what
    came of it.
    """
    if is_vacant(path):
        layout = plan({**print_, "alone": alone()})
        with continuing(path, "be made"):
            create(path, layout)
    store = open_store("sweep", path)
    with continuing(path, "be opened"):
        check_no_links("sweep", path)
    check_sweep(store)
    check_same(path, store.record, print_, alone, resume)
    check_batch_size(store, job.geometry.size)
    kept = store.record["batch_size"]
    if given != "auto" and job.batch_size != kept:
        raise ValueError(
            message(
                "sweep",
                f"`batch_size` is {given}, and the store `{path}` was begun with "
                f"{kept}.",
                "Leave it out, so that all values are those of one run, or give "
                "another path.",
            )
        )
    return store


def fill(
    store: Store,
    source: Callable[[Progress], Source],
    share: tuple[int, int],
    named: bool,
    bar: Callable[[int, int], Progress],
    work: Work,
    refuse: Callable[[np.ndarray], None],
) -> None:
    """Computes what the store lacks of one share of its chunks.

    `source` is given the progress bar, which `bar` makes from a number of points and
    how many of them are there already; `named` says that the user asked for a share.
    `refuse` is told which rows of the store have failed, before any is computed.
    """
    mine = range(share[0], len(store.chunks), share[1])
    unknown = _unknown(store, mine, refuse)
    if not _lacking(store, mine) and not unknown:
        return
    with _locked(store, share, named):
        for number in _unknown(store, mine, refuse):
            store.discard(number)
        _look_again(store, mine, work.row_bytes)
        todo = _lacking(store, mine)
        size = _points(work, store.chunks, mine)
        failed = 0
        with bar(size, size - _points(work, store.chunks, todo)) as shown:

            def keep(number: int, values: list[np.ndarray], ok: Any) -> None:
                nonlocal failed
                status = np.where(ok, OK, FAILED).astype(np.int8)
                with continuing(store.path, "take a chunk"):
                    # A process with another part of the store may have been first.
                    if not store.is_done(number):
                        store.commit(number, list(map(as_stored, values)), status)
                failed += work.failures(values, ok)
                shown.failed(failed)

            try:
                with Interrupt() as stop:
                    gather(source(shown), todo, keep, stop)
            except BaseException as error:
                there = size - _points(work, store.chunks, _lacking(store, mine))
                error.add_note(
                    f"{there:,} of {size:,} points are finished and kept in "
                    f"`{store.path}`. The same call goes on from there."
                )
                raise


def result_of(store: Store, job: Job, fn: Callable[..., Any], started: float) -> Any:
    """The store as it stands, as a result."""
    traced = job.traced[0]
    leaves = [
        Stored(store, k, leaf.dtype, kind)
        for k, (leaf, kind) in enumerate(
            zip(traced.stored, traced.key_kinds, strict=True)
        )
    ]
    ok, missing = stored_ok(store)
    return SweepResult(
        values=jtu.tree_unflatten(traced.structure, leaves),
        space=job.space,
        ok=ok,
        batch_size=job.batch_size,
        num_devices=len(job.devices),
        started=started,
        seconds=time.time() - started,
        function=fn_name(fn),
        missing=missing,
    )


def stored_ok(store: Store) -> tuple[Any, Any]:
    """Which points of a store have a value, and which are missing, if any."""
    status = store.statuses()
    ok, missing = status == OK, status == MISSING
    # All of them, in no memory.
    ok = np.broadcast_to(np.True_, ok.shape) if ok.all() else ok
    return ok, missing if missing.any() else None


def refuse_failed(path: Path, failed: np.ndarray) -> None:
    """Raises a `SweepError` if there are points in a store that have failed."""
    if not len(failed):
        return
    shown = ", ".join(map(str, failed[:5])) + (", ..." if len(failed) > 5 else "")
    what = f"point {shown}" if len(failed) == 1 else f"{len(failed):,} points ({shown})"
    raise SweepError(
        message(
            "sweep",
            f'the store `{path}` was filled with `on_error="isolate"`, and `fn` '
            f"failed at {what}.",
            'Go on with `on_error="isolate"`, which keeps the other points, or call '
            f"`fn(space.point({failed[0]}))` to see the error. "
            "A mended `fn` is another function, which needs another path.",
        ),
        failed.tolist(),
    )


@contextlib.contextmanager
def continuing(path: Path, what: str) -> Iterator[None]:
    """Says what to do when the disk does not do what it should."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cure = "Make room there" if full else "See that the folder can be written to"
        raise SweepError(
            message(
                "sweep",
                f"the store `{path}` could not {what}: {error}.",
                f"{cure}, then call the same sweep again. Chunks that are finished are "
                "kept.",
            )
        ) from error


def variables_of(job: Job) -> tuple[list[Variable], Names]:
    """The arrays for the outputs of a sweep, and the names of all that is stored."""
    traced = job.traced[0]
    outputs = jtu.tree_unflatten(traced.structure, traced.outputs)
    names = names_of(outputs, job.space)
    variables = []
    for name, leaf in zip(names.outputs, traced.stored, strict=True):
        kept = as_stored(np.empty((0, *leaf.shape), leaf.dtype))
        inner = kept.shape[1:]
        variables.append(
            Variable(name, kept.dtype, inner, inner_dims(name, len(inner)))
        )
    return variables, names


def plan_of(job: Job, shares: int, record: dict[str, Any], name: str) -> Plan:
    variables, names = variables_of(job)
    dims, coordinates = job.space.dims, coordinate_variables(job.space, names)
    check_names("sweep", [*dims, *coordinates, *names.outputs])
    most = max(1, CHUNK_BYTES // job.point_bytes)
    return Plan(
        dims=tuple(dims),
        chunks=cut(tuple(dims.values()), job.across, most, shares),
        coordinates=coordinates,
        variables=variables,
        status=names.status,
        attributes=_made(job, name, names),
        record={**record, "batch_size": job.batch_size},
    )


def _made(job: Job, name: str, names: Names) -> dict[str, Any]:
    """What made the store, but for the time it took: it is not over yet."""
    traced = job.traced[0]
    result = SweepResult(
        values=jtu.tree_unflatten(traced.structure, traced.outputs),
        space=job.space,
        ok=np.ones(0, bool),
        batch_size=job.batch_size,
        num_devices=len(job.devices),
        started=time.time(),
        seconds=0.0,
        function=name,
    )
    return {k: v for k, v in attributes(result, names).items() if k != "seconds"}


def _points(work: Work, chunks: Chunks, numbers: Sequence[int]) -> int:
    return sum(work.count(*chunks.span(number)) for number in numbers)


def _lacking(store: Store, mine: Sequence[int]) -> list[int]:
    return [number for number in mine if not store.is_done(number)]


def _unknown(
    store: Store, mine: Sequence[int], refuse: Callable[[np.ndarray], None]
) -> list[int]:
    """Finished chunks whose status cannot be read: nobody knows what they are."""
    try:
        status = store.statuses()
    except OSError:
        done = [number for number in mine if store.is_done(number)]
        return [number for number in done if not store.knows(number)]
    refuse(np.flatnonzero(status == FAILED))
    return []


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
def _locked(store: Store, share: tuple[int, int], named: bool) -> Iterator[None]:
    """Holds the share for this process, and the whole store if it is not divided."""
    folder = store.path / LOCKS
    rank, size = share
    try:
        with contextlib.ExitStack() as stack:
            with continuing(store.path, "be locked"):
                stack.enter_context(lock(folder / "all", shared=named))
                if named:
                    stack.enter_context(lock(folder / f"part-{rank}-of-{size}"))
            yield
    except Taken as taken:
        what = f"part {rank} of {size} of the store" if named else "the store"
        raise SweepError(
            message(
                "sweep",
                f"{what} `{store.path}` is being filled by {taken}.",
                "Wait for it or stop it; processes that shall fill one store together "
                "each take their own `part=(rank, size)`.",
            )
        ) from None
