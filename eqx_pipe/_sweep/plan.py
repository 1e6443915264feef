"""A plan: the work of a sweep in chunks, which are missing, and how to compute them.

Sinks and the code that computes do not depend on each other.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int64, UInt32

from .._reduce import ReducerTree
from .._results import (
    check_output_coords,
    names_in,
    names_of,
    reduced_coords,
    shapes_of,
)
from .._run import Watch
from .._store import NO_GAPS, Chunks, Gaps, choose_chunks
from .._types import PyTree
from .costs import CostsOf, costs_of
from .program.layout import CHUNK_BYTES
from .request import Request
from .target import Target
from .work.blocks import Blocks
from .work.buffer import Asked, Chunk, Errors
from .work.cells import Cells
from .work.flight import Flight
from .work.point_rows import PointRows
from .work.points import Points
from .work.prepare import prepare
from .work.work import Work

# The workers that share the points, if their number is unknown: the batch size and the
# chunks leave work for as many. Only the pools of the standard library expose theirs.
_SHARING_WORKERS = 8


def work_of(points: Points, reducers: ReducerTree | None) -> Work:
    """Return the rows of a sweep: its points, or their reduction by `reducers`."""
    if reducers is None:
        return PointRows(points)
    if reducers.over is None:
        return Blocks.of(points, reducers)
    dims = points.geometry.dims
    return Cells(points, reducers, math.prod(dims[name] for name in reducers.over))


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a request: rows of `work`, in `chunks`, and the costs of points."""

    request: Request
    work: Work
    chunks: Chunks
    costs: CostsOf | None = None

    @property
    def points(self) -> Points:
        """The points that the rows are computed from."""
        return self.work.points

    @property
    def blocks(self) -> Blocks | None:
        """The work of a sweep whose points are all reduced to one value."""
        return self.work if isinstance(self.work, Blocks) else None

    @property
    def outputs(self) -> PyTree:
        """The shapes and dtypes of the user's outputs, or of their reductions."""
        # The steps of loops follow the outputs.
        return self.points.outputs[0] if self.request.count_steps else self.work.outputs

    def count(self, numbers: Sequence[int]) -> int:
        """Return the number of points in some chunks."""
        if len(numbers) == len(self.chunks):
            return self.work.span(0, self.chunks.size)[1]
        spans = (self.work.span(*self.chunks.span(number)) for number in numbers)
        return sum(last - first for first, last in spans)

    def asked(self, number: int, rows: Int64[np.ndarray, " some"] | None) -> Asked:
        """Return the rows of a chunk to compute, with the costs of their points."""
        first, last = self.chunks.span(number)
        costs = None
        if self.costs is not None:
            costs = self.costs(first, last, self.chunks.points)
            costs = costs if rows is None else costs[rows]
        return Asked(number, first, last, rows, costs)

    def at(self, request: Request) -> "Plan":
        """Return the plan for another request with the same programs."""
        work = self.work.at(request.whole, request.key)
        return Plan(self.request, work, self.chunks).with_request(request)

    def with_request(self, request: Request) -> "Plan":
        """Return the plan for another request with the same programs and arrays."""
        # The names of dims of results were chosen once.
        coords = self.request.output_coords
        if coords or request.output_coords:
            request = dataclasses.replace(request, output_coords=coords)
        return Plan(request, self.work, self.chunks)

    def with_batch_size(self, batch_size: int) -> "Plan":
        """Return the plan with another batch size, and chunks that fit it."""
        work = self.work.with_points(self.points.with_batch_size(batch_size))
        return _plan_of(self.request, work, self.costs)

    def with_key_digits(self, digits: tuple[UInt32[np.ndarray, "_"], ...]) -> "Plan":
        """Return the plan with keys that are folded with other digits than positions.

        There is a table for each dim of the grid, or none at all.
        """
        work = self.work.with_points(self.points.with_key_digits(digits))
        plan = dataclasses.replace(self, work=work)
        return plan.with_chunks(self.chunks)

    def with_chunks(self, chunks: Chunks) -> "Plan":
        """Return the plan with other chunks, which are computed one at a time."""
        work = self.work.with_most(chunks.points)
        return dataclasses.replace(self, work=work, chunks=chunks)


def plan_of(request: Request) -> Plan:
    """Trace the function of a request, and decide how to compute it."""
    devices, (_, shares) = request.devices, request.shard or (0, 1)
    if request.executor is not None:
        # The devices of a worker are unknown before it runs: assume one.
        devices = devices[:1]
        shares *= known_workers(request.executor) or _SHARING_WORKERS
    points = prepare(
        request.fn,
        request.whole,
        request.key,
        request.batch_size,
        devices,
        ordered=request.order_by is not None and request.reducers is None,
        shares=shares,
        isolated=request.isolated,
        counting=request.count_steps,
        function=request.function,
        detached=request.function == "sweeper",
        lasting=request.store is not None,
    )
    costs = None if request.order_by is None else costs_of(request)
    plan = _plan_of(request, work_of(points, request.reducers), costs)
    # Check names of outputs before anything is compiled or a store is created.
    return dataclasses.replace(plan, request=_named(plan))


def _named(plan: Plan) -> Request:
    """Return the request with the names of the dims of its results, after checks."""
    request, outputs = plan.request, plan.outputs
    coords, space = request.output_coords, request.space
    if request.reducers is not None:
        taken = names_in(space) if plan.blocks is None else set[str]()
        check_output_coords(coords, shapes_of(plan.points.outputs), taken)
        if plan.blocks is not None:  # the names of results follow from the results
            return request
        coords = reduced_coords(request.reducers, outputs, coords, taken)
    if coords or request.reducers is not None:
        names_of(outputs, space, coords)
    return dataclasses.replace(request, output_coords=coords)


def _plan_of(request: Request, work: Work, costs: CostsOf | None) -> Plan:
    """Return a plan with chunks that fit the destination of the rows."""
    chunks = Chunks((work.size,), 0, work.in_memory)
    stored = request.store is not None
    if work.size and (stored or request.executor is not None):
        # Use small chunks, so that a kill loses little.
        most = max(1, CHUNK_BYTES // work.row_bytes)
        in_grid = stored and not work.is_merged
        lengths = tuple(request.space.dims.values()) if in_grid else (work.size,)
        _, shares = request.shard or (0, 1)
        chunks = choose_chunks(lengths, work.unit, most, shares)
    return Plan(request, work.with_most(chunks.points), chunks, costs)


def known_workers(executor: object) -> int | None:
    """Return the number of workers of an executor, or `None`."""
    # The pools of the standard library have this attribute.
    workers = getattr(executor, "_max_workers", None)
    return workers if isinstance(workers, int) and workers > 0 else None


@dataclasses.dataclass(frozen=True)
class Todo:
    """The missing chunks of a sink, among those `owned` by this process.

    Chunks in `rows` lack only these rows. `flight` returns the points in flight in a
    chunk when an earlier call ended. If chunks are kept `whole`, finished rows stay in
    flight until then. Workers write to the `target`, if there is one.
    """

    owned: Sequence[int]
    chunks: Sequence[int]
    rows: Mapping[int, Int64[np.ndarray, " _rows"]] = dataclasses.field(
        default_factory=dict
    )
    flight: Callable[[int], Flight | None] = lambda _: None
    whole: bool = False
    target: Target | None = None

    def left(self, plan: Plan) -> int:
        """Return the number of missing points."""
        left = plan.count([n for n in self.chunks if n not in self.rows])
        for number, rows in self.rows.items():
            left += plan.work.count(plan.chunks.span(number)[0] + rows)
        return left


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The final rows of a sink: the fields of a `SweepResult` that it provides."""

    values: PyTree
    gaps: Gaps = dataclasses.field(default_factory=lambda: NO_GAPS)
    points: int | None = None
    errors: Errors = dataclasses.field(default_factory=dict)


def compute_here(plan: Plan, todo: Todo, watch: Watch) -> Iterator[Chunk]:
    """Compute chunks on the devices of this process, in order.

    For a store, a slow chunk is yielded in several parts, each with the rows that were
    finished meanwhile.
    """
    for number in todo.chunks:
        for rows, resumed in _passes(plan, todo, number):
            if watch.stopping():
                return
            yield from plan.work.compute(plan.asked(number, rows), watch, resumed)


def _passes(
    plan: Plan, todo: Todo, number: int
) -> Iterator[tuple[Int64[np.ndarray, " rows"] | None, Flight | None]]:
    """Yield the rows of a chunk to compute at once, with the flight that goes on.

    A flight has the rows that were asked for then, since they determine the batches.
    Since then the chunk may have become longer, or failed rows are asked for, too.
    """
    rows, flight = todo.rows.get(number), todo.flight(number)
    if flight is None:
        yield rows, None
        return
    yield flight.rows, flight
    if flight.rows is not None:
        first, last = plan.chunks.span(number)
        rows = np.arange(last - first) if rows is None else rows
        if len(rest := np.setdiff1d(rows, flight.rows)):
            yield rest, None
