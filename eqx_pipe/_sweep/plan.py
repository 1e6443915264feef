"""A plan: the work of a sweep, and its division into chunks."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int64, UInt32

from .._reduce import ReducerTree
from .._types import Device, PyTree
from .compute.groups import Blocks, groups_of
from .compute.points import Points, prepare
from .compute.rows import CHUNK_BYTES, Index, Work
from .order_by import CostsOf, costs_of
from .request import Request
from .results import check_reduced_coords, names_in, names_of, reduced_coords
from .store import Chunks, choose_chunks

# Only the pools of the standard library expose their number of workers.
_GUESSED_WORKERS = 8


def work_of(points: Points, reducers: ReducerTree | None) -> Work:
    """Return the rows of a sweep: its points, or their reduction by `reducers`."""
    return points if reducers is None else groups_of(points, reducers)


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
    def batch_size(self) -> int:
        """The number of points that a device vectorises at once."""
        return self.points.batch_size

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of each computing process."""
        return self.points.devices

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

    def span_costs(self, first: int, last: int) -> Float[np.ndarray, " points"] | None:
        """Return the costs of the points in a half-open range, or `None`."""
        if self.costs is None:
            return None
        return self.costs(first, last, self.chunks.points)

    def asked(
        self, number: int, rows: Int64[np.ndarray, " some"] | None
    ) -> tuple[Index, Float[np.ndarray, " rows"] | None]:
        """Return the rows of a chunk to compute, with the costs of their points."""
        first, last = self.chunks.span(number)
        costs = self.span_costs(first, last)
        if rows is None:
            return range(first, last), costs
        return first + rows, None if costs is None else costs[rows]

    def at(self, request: Request) -> "Plan":
        """Return the plan for another request with the same programs."""
        # The names of dims of results were chosen once.
        coords = self.request.output_coords
        request = dataclasses.replace(request, output_coords=coords)
        return Plan(request, self.work.at(request.whole, request.key), self.chunks)

    def with_batch_size(self, batch_size: int) -> "Plan":
        """Return the plan with another batch size, and chunks that fit it."""
        return self.with_points(self.points.with_batch_size(batch_size))

    def with_points(self, points: Points) -> "Plan":
        """Return the plan for points in batches of another size."""
        return _plan_of(self.request, self.work.with_points(points), self.costs)

    def with_key_digits(self, digits: tuple[UInt32[np.ndarray, "_"], ...]) -> "Plan":
        """Return the plan with keys that are folded with other digits than positions.

        There is a table for each dim of the grid, or none at all.
        """
        points = dataclasses.replace(self.points, key_digits=digits)
        return dataclasses.replace(self, work=self.work.with_points(points))

    def with_chunks(self, chunks: Chunks) -> "Plan":
        """Return the plan with other chunks, which are computed one at a time."""
        work = self.work.with_most(chunks.points)
        return dataclasses.replace(self, work=work, chunks=chunks)


def plan_of(request: Request) -> Plan:
    """Trace the function of a request, and decide how to compute it."""
    devices, (_, shares) = request.devices, request.shard or (0, 1)
    if request.executor is not None:
        # The devices of a worker are unknown before it runs: assume one.
        devices, shares = devices[:1], shares * _num_workers(request.executor)
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
        kept=request.function == "sweeper",
    )
    costs = None if request.order_by is None else costs_of(request)
    plan = _plan_of(request, work_of(points, request.reducers), costs)
    # Check names of outputs before anything is compiled or a store is created.
    return dataclasses.replace(plan, request=_named(plan))


def _named(plan: Plan) -> Request:
    """Return the request with the names of the dims of its results, after checks."""
    request, blocks = plan.request, plan.blocks
    outputs, known, space = plan.outputs, request.output_coords, request.space
    if blocks is not None:
        # The names of results follow from the results.
        check_reduced_coords(
            known, plan.points.outputs, lambda: blocks.finish(blocks.begin()), set()
        )
        return request
    if request.reducers is not None:
        results, taken = outputs.values, names_in(space)
        check_reduced_coords(known, plan.points.outputs, lambda: results, taken)
        known = reduced_coords(request.reducers, results, known, taken)
    if known or request.reducers is not None:
        names_of(outputs, space, known)
    return dataclasses.replace(request, output_coords=known)


def _plan_of(request: Request, work: Work, costs: CostsOf | None) -> Plan:
    """Return a plan with chunks that fit the destination of the rows."""
    chunks = Chunks((work.size,), 0, work.in_memory)
    stored, is_sent = request.store is not None, request.executor is not None
    stops = work.is_merged and request.reducers is not None and request.reducers.stops
    if work.size and (stored or is_sent or stops):
        # Use small chunks, so that a kill loses little and a stop takes effect soon.
        most = max(1, CHUNK_BYTES // work.row_bytes)
        in_grid = stored and not work.is_merged
        lengths = tuple(request.space.dims.values()) if in_grid else (work.size,)
        _, shares = request.shard or (0, 1)
        chunks = choose_chunks(lengths, work.unit, most, shares)
    return Plan(request, work.with_most(chunks.points), chunks, costs)


def _num_workers(executor: object) -> int:
    """Return the number of workers of an executor, or a guess."""
    known = getattr(executor, "_max_workers", None)  # the pools of the standard library
    return known if isinstance(known, int) and known > 0 else _GUESSED_WORKERS
