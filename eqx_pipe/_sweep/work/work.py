"""The rows of a sweep as a value, which can be computed.

A sweep computes rows: the outputs at points, or what groups of points are reduced to.
Sinks keep rows and workers return them, and neither depends on the kind of work.
"""

import abc
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..._errors import value_error
from ..._files import memory_bytes
from ..._run import Stopped, Watch
from ..._spaces import Space
from ..._types import Key, PyTree
from ..program.layout import CHUNK_BYTES, nbytes
from .buffer import Asked, Buffer, Chunk, Rows
from .flight import Flight


class Work(abc.ABC):
    """The rows of a sweep as a value: `size` rows, computed from `points`.

    There are two kinds. Points are rows themselves. A group of points is a row that has
    their reduction: a cell of a sweep over some dims, or a block, whose row has states
    that are merged with those of other blocks.
    """

    function: str
    """The public function that was called, for messages."""
    points: Any
    reducers: Any
    """The reducers of groups; `None` for points."""
    size: int
    outputs: Any
    """The shapes and dtypes of the outputs of a row, as a pytree."""
    unit: int
    """The number of rows that fill the lanes of all devices."""
    is_merged: bool = False
    """True if all rows are merged to one result."""

    @property
    def in_memory(self) -> int:
        """The number of rows of a chunk that is kept in memory."""
        return max(1, self.size)

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

    @abc.abstractmethod
    def _calls(self, buffer: Buffer, watch: Watch) -> Iterator[tuple[int, int]]:
        """Fill a buffer; yield the points of each device call, and how many failed."""

    @property
    @abc.abstractmethod
    def row(self) -> list[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""

    @property
    def row_bytes(self) -> int:
        """The size of a row in bytes, at least 1."""
        return max(1, nbytes(self.row))

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
                self.function,
                f"the values of {size:,} points take {needed / 2**30:,.0f} GiB, and "
                f"this process may use {memory / 2**30:,.0f} GiB of memory.",
                "Keep less of them: a reduction by `reduce=`, or values on disk by "
                '`store="runs.zarr"`; or sweep over a part of the space, `space[a:b]`.',
            ) from error

    @abc.abstractmethod
    def unflatten(self, rows: Rows) -> PyTree:
        """Return the outputs of some rows as the user gets them."""

    @abc.abstractmethod
    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the half-open range of the points of a range of rows."""

    @abc.abstractmethod
    def at(self, space: Space, key: Key | None) -> "Work":
        """Return the same work for another space of the same structure."""

    @abc.abstractmethod
    def with_points(self, points: Any) -> "Work":
        """Return the same work on other points, such as in batches of another size."""

    @abc.abstractmethod
    def with_most(self, most: int) -> "Work":
        """Return the same work for calls of at most `most` rows."""
