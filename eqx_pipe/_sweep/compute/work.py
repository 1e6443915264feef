"""What a sweep computes: rows, each of a point or of a block of points."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._reduce.many import Many
from ..._types import PyTree
from .progress import Progress

Rows = list[np.ndarray]
"""The leaves of some rows; PRNG keys are raw data."""


@runtime_checkable
class Work(Protocol):
    """Rows that can be computed: those of points are the outputs of the function."""

    @property
    def row(self) -> Sequence[jax.ShapeDtypeStruct]:
        """The shape and dtype of each leaf of a row."""
        ...

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        ...

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The points of some rows, from the first to behind the last."""
        ...

    def failures(self, values: Rows, ok: Bool[np.ndarray, " rows"]) -> int:
        """How many points have failed in some rows."""
        ...

    def compute(
        self,
        first: int,
        last: int,
        costs: Float[np.ndarray, " points"] | None,
        bar: Progress,
    ) -> tuple[Rows, Bool[np.ndarray, " rows"]]:
        """Some rows, and in which of them no point failed.

        `costs` are those of their points, if points of like cost shall share a batch.
        """
        ...


@runtime_checkable
class PointWork(Work, Protocol):
    """Rows of points."""

    def unflatten(self, leaves: Sequence[np.ndarray]) -> PyTree:
        """The output as the function gives it, with keys from their raw data."""
        ...


@runtime_checkable
class BlockWork(Work, Protocol):
    """Rows of blocks: the states of reducers, and last which points failed, as bits."""

    @property
    def reducers(self) -> Many:
        """What reduces."""
        ...

    def failed(self, first: int, values: Rows) -> np.ndarray:
        """Which points have failed in rows of which the first has this number."""
        ...

    def begin(self) -> list[Array]:
        """The state of no points."""
        ...

    def merge(
        self,
        state: list[Array],
        values: Rows,
        spans: Sequence[tuple[int, int]],
        most: int,
    ) -> Iterator[list[Array]]:
        """The state after each of some stretches of rows, which follow one another.

        There are never more than `most` rows, so that one program will do.
        """
        ...

    def stop(self, state: list[Array]) -> bool:
        """Whether a reducer asks to stop."""
        ...

    def finish(self, state: list[Array]) -> PyTree:
        """The reduction."""
        ...
