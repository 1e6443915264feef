"""A plan: the work of a sweep, and the chunks that it is cut into."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float

from .._progress import Progress
from .._reduce import ReducerTree
from .._spaces import Space
from .._types import Device, Key, PyTree
from .compute.blocks import Blocks
from .compute.cells import Cells
from .compute.failure import Verdict
from .compute.points import Points
from .compute.prepare import prepare
from .compute.rows import CHUNK_BYTES, Index, Rows
from .request import Request
from .store import Chunks, choose_chunks

# Only the pools of the standard library say how many workers they have.
_GUESSED_WORKERS = 8


@runtime_checkable
class Work(Protocol):
    """The rows that a sweep computes: `Points`, `Cells` or `Blocks`.

    A sink keeps rows, a worker computes them, and neither needs to know which kind
    they are.
    """

    @property
    def points(self) -> Points:
        """The points that the rows are computed from, with their traced functions."""
        ...

    @property
    def size(self) -> int:
        """The number of rows."""
        ...

    @property
    def unit(self) -> int:
        """The number of rows that fill all lanes of all devices."""
        ...

    @property
    def most(self) -> int:
        """The most rows that one call of `compute` is asked for."""
        ...

    @property
    def batch_size(self) -> int:
        """The number of points that a device vectorises at once."""
        ...

    @property
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""
        ...

    @property
    def row_bytes(self) -> int:
        """The size of a row in bytes."""
        ...

    @property
    def outputs(self) -> PyTree:
        """The shapes and dtypes of a row, as a pytree."""
        ...

    @property
    def kinds(self) -> Sequence[Any]:
        """The kind of the PRNG keys in each leaf of a row, or `None`."""
        ...

    @property
    def attrs(self) -> dict[str, str]:
        """Remarks on how the rows came about, for the attributes of a result."""
        ...

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the half-open range of the points of some rows."""
        ...

    def compute(
        self, index: Index, costs: Float[np.ndarray, " rows"] | None, bar: Progress
    ) -> tuple[Rows, Verdict]:
        """Compute some rows; those with similar `costs` may share a batch.

        The verdict numbers failed points as the rows are numbered, or, of blocks, as
        the points are.
        """
        ...

    def unflatten(self, rows: Rows) -> PyTree:
        """Return the leaves of rows as a pytree."""
        ...

    def programs(self) -> list[Any]:
        """Return the programs that the rows need, or `None` where not compiled yet."""
        ...

    def at(self, space: Space, key: Key | None) -> "Work":
        """Return the same work for another space of the same form."""
        ...

    def with_batch_size(self, batch_size: int) -> "Work":
        """Return the same work in batches of another size."""
        ...

    def with_most(self, most: int) -> "Work":
        """Return the same work for calls of at most `most` rows."""
        ...


def work_of(points: Points, reducers: ReducerTree | None) -> Work:
    """Return the rows of a sweep: its points, or their reduction by `reducers`."""
    if reducers is None:
        return points
    return (
        Blocks(points, reducers) if reducers.over is None else Cells(points, reducers)
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a request: the rows of `work`, in `chunks`."""

    request: Request
    work: Work
    chunks: Chunks

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
        return self.work.batch_size

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of a process that computes."""
        return self.points.devices

    @property
    def outputs(self) -> PyTree:
        """The shapes and dtypes of the user's outputs, or of their reductions."""
        return self.work.outputs[0] if self.request.counting else self.work.outputs

    def count(self, numbers: Sequence[int]) -> int:
        """Return the number of points in some chunks."""
        if len(numbers) == len(self.chunks):
            return self.work.span(0, self.chunks.size)[1]
        spans = (self.work.span(*self.chunks.span(number)) for number in numbers)
        return sum(last - first for first, last in spans)

    def at(self, request: Request, traced: Space) -> "Plan":
        """Return the plan for another request of the same form; it shares programs.

        `traced` is the space of the request, or that space with more points at its
        end, in the form that was traced.
        """
        work = self.work.at(traced, request.key)
        chunks = self.chunks
        if work is work.points and traced is not request.whole:
            chunks = _whole(request.whole.size)
        return Plan(request, work, chunks)

    def with_batch_size(self, batch_size: int) -> "Plan":
        """Return the plan with another batch size, and the chunks that follow."""
        return _in_chunks(self.request, self.work.with_batch_size(batch_size))

    def with_points(self, points: Points) -> "Plan":
        """Return the plan for the same points in batches of another size."""
        if self.work is self.points and self.request.store is None:
            return dataclasses.replace(self, work=points)
        return self.with_batch_size(points.batch_size)

    def with_chunks(self, chunks: Chunks) -> "Plan":
        """Return the plan with other chunks, of which one is computed at a time."""
        work = self.work.with_most(chunks.points)
        return dataclasses.replace(self, work=work, chunks=chunks)


def plan_of(request: Request) -> Plan:
    """Trace the function of a request, and decide how to compute it."""
    devices, shares = request.devices, request.processes
    if request.executor is not None:
        # A worker's devices are not known before it runs: assume a single one.
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
        counting=request.counting,
        function=request.function,
    )
    return _in_chunks(request, work_of(points, request.reducers))


def _in_chunks(request: Request, work: Work) -> Plan:
    """Return the plan for some work, in chunks that suit where the rows go."""
    chunks = _chunks_of(request, work)
    return Plan(request, work.with_most(chunks.points), chunks)


def _chunks_of(request: Request, work: Work) -> Chunks:
    most = max(1, CHUNK_BYTES // work.row_bytes)
    elsewhere = request.store is not None or request.executor is not None
    if isinstance(work, Blocks):
        if work.size and not (elsewhere or work.reducers.stops):
            return Chunks((work.size,), 0, min(work.at_once, work.size))
        # Small chunks, so that a kill loses little, and a stop comes soon.
        elsewhere, lengths, shares = True, (work.size,), request.processes
    else:
        stored = request.store is not None
        lengths = tuple(request.space.dims.values()) if stored else (work.size,)
        shares = request.processes if stored else 1
    if work.size == 0 or not elsewhere:
        return _whole(work.size)
    return choose_chunks(lengths, work.unit, most, shares)


def _whole(size: int) -> Chunks:
    return Chunks((size,), 0, max(1, size))


def _num_workers(executor: object) -> int:
    """About how many workers an executor has."""
    known = getattr(executor, "_max_workers", None)  # the pools of the standard library
    return known if isinstance(known, int) and known > 0 else _GUESSED_WORKERS
