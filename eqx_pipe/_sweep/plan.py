"""How a sweep is done: what is computed, in what chunks and order, by what programs."""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Float

from .._errors import (
    MissingKeyError,
    SweepError,
    describe_value,
    message,
    type_error,
    value_error,
)
from .._spaces import Space
from .._types import Device, PyTree
from .compute.failure import Verdict, reason
from .compute.job import Job
from .compute.prepare import prepare
from .compute.progress import Progress
from .compute.sizes import CHUNK_BYTES, Rows
from .loop import LoopBlocks, LoopCells, LoopPoints
from .reduced.blocks import Blocks
from .reduced.cells import Cells
from .request import Request
from .store import Chunks, choose_chunks

# Only the pools of the standard library say how many workers they have.
_GUESSED_WORKERS = 8

PointWork: TypeAlias = Job | LoopPoints | Cells | LoopCells
"""What computes the outputs at points, a row for each; or the reductions of cells."""

BlockWork: TypeAlias = Blocks | LoopBlocks
"""What computes the states of blocks, a row for each; the last leaf says as bits which
points failed.
"""

CostsBySpan: TypeAlias = Callable[[int, int], Float[np.ndarray, " points"]]
"""What points cost, from one to the one behind the last."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a request comes to: rows of `work`, computed and kept in `chunks`.

    The work is the `points`, or the `blocks` of a sweep that is reduced. `job` holds
    the traced programs; the plain loop has none.
    """

    request: Request
    job: Job | None
    points: PointWork
    blocks: BlockWork | None
    chunks: Chunks

    @property
    def work(self) -> PointWork | BlockWork:
        """What is computed."""
        return self.points if self.blocks is None else self.blocks

    @property
    def compiled(self) -> Job | Blocks | Cells:
        """What is computed, other than by the plain loop."""
        assert not isinstance(self.work, LoopBlocks | LoopPoints | LoopCells)
        return self.work

    @property
    def batch_size(self) -> int:
        """How many points are vectorised at once."""
        return 1 if self.job is None else self.job.batch_size

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of one process that computes."""
        return self.request.devices if self.job is None else self.job.devices

    @property
    def outputs(self) -> PyTree:
        """The shapes and dtypes of what has a value at each point, of the user's."""
        work = self.compiled
        if isinstance(work, Job):
            return work.outputs[0] if self.request.counting else work.outputs
        assert isinstance(work, Cells)
        return work.outputs

    def count(self, numbers: Sequence[int]) -> int:
        """How many points some chunks have."""
        spans = (self.work.span(*self.chunks.span(number)) for number in numbers)
        return sum(last - first for first, last in spans)

    def num_failed(self, values: Rows, verdict: Verdict) -> int:
        """How many points have failed in some rows."""
        if self.request.inner is not None:
            return int(np.sum(values[-1]))
        if self.blocks is not None:
            return int(np.sum(np.unpackbits(values[-1])))
        missing = verdict.missing
        return int(np.sum(~verdict.ok) - (0 if missing is None else np.sum(missing)))

    def at(self, request: Request, traced: Space) -> "Plan":
        """What asks for another space, with the programs that were made for this one.

        `traced` has the form of the space that was planned for; it is the one asked
        for, or that with points behind.
        """
        assert self.job is not None
        space, job = request.whole, self.job.at(traced, request.key)
        if isinstance(self.points, Cells):
            return Plan(request, job, self.points.at(job), None, self.chunks)
        if isinstance(self.blocks, Blocks):
            blocks = self.blocks.at(job)
            return Plan(request, job, job, blocks, self.chunks)
        chunks = self.chunks if traced is space else _whole(space.size)
        return Plan(request, job, job, None, chunks)

    def with_batch_size(
        self,
        batch_size: int,
        tried: str = "",
        head: tuple[Rows, Verdict] | None = None,
    ) -> "Plan":
        """The same with another batch size: that of a store, or one that was found.

        `tried` says how, and `head` is what was computed meanwhile of the first points.
        """
        assert self.job is not None
        job = dataclasses.replace(self.job, batch_size=batch_size)
        job.tried, job.head = tried or self.job.tried, head
        plan = _planned(self.request, job)
        assert plan.job is not None
        plan.job.tried, plan.job.head = job.tried, head
        return plan

    def with_chunks(self, chunks: Chunks) -> "Plan":
        """The same in other chunks, of which one is computed at a time."""
        if not isinstance(self.work, Job):
            return dataclasses.replace(self, chunks=chunks)
        job = dataclasses.replace(self.work, stretch=chunks.points)
        return dataclasses.replace(self, job=job, points=job, chunks=chunks)


def plan_of(request: Request) -> Plan:
    """Traces what was asked for, and decides how to do it; nothing is computed."""
    if request.by_hand:
        points, blocks = LoopPoints(request), None
        chunks = _whole(request.space.size)
        if request.inner is not None:
            points = LoopCells(request)
        elif request.reducers is not None:
            blocks = LoopBlocks(request)
            chunks = Chunks((len(blocks),), 0, 1)
        return Plan(request, None, points, blocks, chunks)
    devices, shares = request.devices, request.processes
    if request.executor is not None:
        # What devices a worker has is not known: one for a guess.
        devices, shares = devices[:1], shares * _num_workers(request.executor)
    job = prepare(
        request.fn,
        request.whole,
        request.key,
        request.batch_size,
        devices,
        costs=request.order_by is not None and request.reducers is None,
        shares=shares,
        isolated=request.isolated,
        counting=request.counting,
        function=request.function,
    )
    return _planned(request, job)


def _planned(request: Request, job: Job) -> Plan:
    if request.inner is not None and request.reducers is not None:
        cells = Cells(job, request.reducers)
        return Plan(request, cells.job, cells, None, _chunks_of_cells(request, cells))
    if request.reducers is not None:
        blocks = Blocks(job, request.reducers)
        return Plan(request, job, job, blocks, _chunks_of_blocks(request, blocks))
    chunks = _chunks_of_points(request, job)
    return Plan(request, job, job, None, chunks).with_chunks(chunks)


def _chunks_of_points(request: Request, job: Job) -> Chunks:
    size, most = job.geometry.size, max(1, CHUNK_BYTES // job.row_bytes)
    if size == 0:
        return _whole(size)
    if request.store is not None:
        lengths = tuple(request.space.dims.values())
        return choose_chunks(lengths, job.across, most, request.processes)
    if request.executor is not None:
        return choose_chunks((size,), job.across, most)
    return _whole(size)


def _chunks_of_cells(request: Request, cells: Cells) -> Chunks:
    if request.store is None and request.executor is None:
        return _whole(len(cells))
    across = -(-cells.job.across // cells.each)
    most = max(1, CHUNK_BYTES // cells.row_bytes)
    if request.store is None:
        return choose_chunks((len(cells),), across, most)
    lengths = tuple(request.space.dims.values())
    return choose_chunks(lengths, across, most, request.processes)


def _chunks_of_blocks(request: Request, blocks: Blocks) -> Chunks:
    kept = request.store is not None or request.executor is not None
    if len(blocks) == 0:
        return _whole(0)
    if kept or blocks.reducers.stops:
        # Small, so that a kill costs little, and little is computed behind a stop.
        most = max(1, CHUNK_BYTES // blocks.row_bytes)
        return choose_chunks(
            (len(blocks),), len(blocks.job.devices), most, request.processes
        )
    return Chunks((len(blocks),), 0, min(blocks.most, len(blocks)))


def _whole(size: int) -> Chunks:
    return Chunks((size,), 0, max(1, size))


def _num_workers(executor: object) -> int:
    """About how many workers an executor has."""
    known = getattr(executor, "_max_workers", None)  # the pools of the standard library
    return known if isinstance(known, int) and known > 0 else _GUESSED_WORKERS


def _for_order_by(call: Callable[..., Any]) -> Callable[..., Any]:
    """What calls `order_by`, with errors that say that it is that function."""

    def of_costs(*args: Any, **keywords: Any) -> Any:
        try:
            return call(*args, **keywords)
        except MissingKeyError as error:
            raise type_error(
                "sweep",
                "`order_by` needs a PRNG key.",
                "Give a function of the point alone: a cost is a guess, and draws "
                "are made in `fn`.",
            ) from error
        except SweepError as error:
            i = next(iter(error.indices), None)
            raise SweepError(
                message(
                    "sweep",
                    f"`order_by` failed at point {i}: {reason(error.__cause__)}.",
                    f"Call `order_by(space.point({i}))` to see it; a guess of the cost "
                    "is needed for every point.",
                ),
                error.indices,
            ) from error
        except Exception as error:
            error.add_note("It was called for `order_by`.")
            raise

    return of_costs


def costs_of(request: Request) -> Callable[[int], CostsBySpan] | None:
    """What points cost, as a function of how many of them are asked for at most.

    They are computed chunk by chunk, since nobody needs the costs of chunks that are
    finished or that another process computes. Where values are reduced, which happens
    in order, costs change nothing.
    """
    order_by = request.order_by
    if order_by is None:
        return None
    size = request.whole.size
    if not callable(order_by):
        listed = isinstance(order_by, list) and len(order_by) == size
        found = np.asarray(order_by) if listed else order_by
        _check_costs("is", found, size)
        return ft.partial(_listed_costs, np.asarray(found).astype(np.float64))
    if request.reducers is not None or request.by_hand:
        return None
    job = _for_order_by(prepare)(
        order_by, request.space, None, "auto", request.devices, False
    )
    outputs = [
        jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype)
        for leaf in job.traced[0].outputs
    ]
    _check_costs("gives", jtu.tree_unflatten(job.traced[0].structure, outputs), size)
    return ft.partial(_computed_costs, job)


def _listed_costs(costs: Float[np.ndarray, " all"], most: int) -> CostsBySpan:
    return lambda first, last: costs[first:last]


def _computed_costs(job: Job, most: int) -> CostsBySpan:
    compute = _for_order_by(dataclasses.replace(job, stretch=most).compute)

    def costs(first: int, last: int) -> Float[np.ndarray, " points"]:
        (found,), _ = compute(first, last, None, Progress(False, last - first))
        return found.astype(np.float64)

    return costs


def _check_costs(what: str, found: Any, size: int) -> None:
    """Raises a `ValueError` unless there is one real number for each point."""
    form = describe_value(found)
    if jtu.treedef_is_leaf(jtu.tree_structure(found)) and hasattr(found, "shape"):
        is_form = isinstance(found, jax.ShapeDtypeStruct)
        given = found if is_form else np.asarray(found)
        form = f"{given.dtype}{list(given.shape)}"
        kinds = (np.bool_, np.integer, np.floating)
        real = any(jnp.issubdtype(given.dtype, kind) for kind in kinds)
        if real and given.shape == (size,):
            return
    raise value_error(
        "sweep",
        f"`order_by` {what} {form} for {size} points.",
        "Give a function from a point to one real number, or an array with one "
        "number for each point.",
    )
