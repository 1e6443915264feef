"""The rows of a sweep as a value, which can be computed.

A sweep computes rows: the outputs at points, or what groups of points are reduced to.
Sinks keep rows and workers return them, and neither depends on the kind of work.
"""

import abc
import dataclasses
import functools as ft
import math
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np
from jaxtyping import Int64

from ..._errors import value_error
from ..._memory import memory_bytes
from ..._reduce import ReducerTree
from ..._run import Stopped, Watch
from ..._spaces import Space
from ..._tree import nbytes
from ..._types import Key, PyTree
from ..program.layout import CHUNK_BYTES
from .buffer import Asked, Buffer, Chunk, Rows
from .flight import Flight
from .points import Points

_Own = TypeVar("_Own", bound="Work")  # beartype takes `Self` in decorated classes


@dataclasses.dataclass(frozen=True, eq=False)
class Work(abc.ABC):
    """The rows of a sweep as a value: `each` points make a row.

    The rows are the outputs at `points` themselves, or what `reducers` make of them: a
    cell has the result of a sweep over some dims, and a block of points has states that
    are merged with those of other blocks.
    """

    points: Points
    reducers: ReducerTree | None
    each: int
    is_merged: ClassVar[bool] = False
    """True if all rows are merged to one result."""

    @property
    def size(self) -> int:
        """The number of rows."""
        return -(-self.points.size // self.each)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the half-open range of the points of a range of rows."""
        return first * self.each, min(last * self.each, self.points.size)

    def count(self, rows: Int64[np.ndarray, " rows"]) -> int:
        """Return the number of points of some rows."""
        last = np.minimum((rows + 1) * self.each, self.points.size)
        return int(np.sum(last - rows * self.each))

    @property
    def in_memory(self) -> int:
        """The number of rows of a chunk that is kept in memory."""
        return max(1, self.size)

    def at(self: _Own, space: Space, key: Key | None) -> _Own:
        """Return the same work for another space of the same structure."""
        return dataclasses.replace(self, points=self.points.at(space, key))

    def with_points(self, points: Points) -> "Work":
        """Return the same work on other points, such as in batches of another size."""
        return dataclasses.replace(self, points=points)

    def with_most(self, most: int) -> "Work":
        """Return the same work for calls of at most `most` rows."""
        return self

    @property
    @abc.abstractmethod
    def unit(self) -> int:
        """The number of rows that fill the lanes of all devices."""

    @ft.cached_property
    @abc.abstractmethod
    def outputs(self) -> Any:
        """The shapes and dtypes of the outputs of a row, as a pytree."""

    @property
    @abc.abstractmethod
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""

    @abc.abstractmethod
    def unflatten(self, rows: Rows) -> PyTree:
        """Return the outputs of some rows as the user gets them."""

    @abc.abstractmethod
    def _calls(self, buffer: Buffer, watch: Watch) -> Iterator[tuple[int, int]]:
        """Fill a buffer; yield the points of each device call, and how many failed."""

    def compute(
        self, asked: Asked, watch: Watch, resumed: Flight | None = None
    ) -> Iterator[Chunk]:
        """Compute rows, and yield them: in one part unless `watch` asks for more.

        Points of similar cost share a batch. A `resumed` flight goes on, and rows that
        it has handed over before are omitted.
        """
        watch.restart()
        buffer = Buffer(asked, self.empty(len(asked.numbers)), resumed)
        try:
            for points, failed in self._calls(buffer, watch):
                if watch.after(points, failed):
                    with watch.saving():
                        yield from buffer.part(watch.whole)
        except Stopped:
            if not watch.stopping():  # another sweep was to be stopped
                raise
        yield from buffer.part(watch.whole)

    @property
    def row_bytes(self) -> int:
        """The size of a row in bytes, at least 1."""
        return max(1, sum(map(nbytes, self.row)))

    def empty(self, size: int) -> Rows:
        """Return arrays for some rows.

        Raises a `ValueError` if they do not fit into the memory of this machine or its
        container.
        """
        # Operating systems overcommit memory, and kill the process that uses too much.
        # Its limit is read from files, which would be a tenth of a small sweep.
        needed = size * self.row_bytes
        memory = memory_bytes() if needed > CHUNK_BYTES else math.inf
        try:
            if needed > memory:
                raise MemoryError
            return [np.empty((size, *leaf.shape), leaf.dtype) for leaf in self.row]
        except (MemoryError, ValueError) as error:  # more than NumPy can count
            raise value_error(
                self.points.function,
                f"the values of {size:,} points take {needed / 2**30:,.0f} GiB, and "
                f"this process may use {memory / 2**30:,.0f} GiB of memory.",
                "Keep less of them: a reduction by `reduce=`, or values on disk by "
                '`store="runs.zarr"`; or sweep over a part of the space, `space[a:b]`.',
            ) from error
