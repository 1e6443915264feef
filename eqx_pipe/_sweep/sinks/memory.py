"""What is kept in memory: the values at all points, or their reduction."""

import contextlib
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool

from ..compute.capacity import Rows, empty_values
from ..gather import Interrupt, Outcome, Todo
from ..plan import Plan
from .fold import Fold


class Arrays:
    """The values at all points."""

    stopped = False

    def __init__(self, plan: Plan):
        self.plan = plan
        self._values: Rows | None = None
        self._ok: Bool[np.ndarray, " points"] | None = None

    @contextlib.contextmanager
    def filling(self) -> Iterator[Todo]:
        """Nothing is there yet; Ctrl-C ends the sweep at once."""
        numbers = range(len(self.plan.chunks))
        yield Todo(numbers, numbers, Interrupt())

    def keep(self, number: int, values: Rows, ok: Bool[np.ndarray, " rows"]) -> None:
        """Puts the values of a chunk in their place."""
        size = math.prod(self.plan.chunks.lengths)
        if len(ok) == size:  # all of them, and not copied
            self._values, self._ok = values, ok
            return
        if self._values is None or self._ok is None:
            self._values = empty_values(size, self.plan.work.row)
            self._ok = np.ones(size, bool)
        place = slice(*self.plan.chunks.span(number))
        self._ok[place] = ok
        for into, leaf in zip(self._values, values, strict=True):
            into[place] = leaf

    def outcome(self) -> Outcome:
        """The values as the function gives them."""
        assert self._values is not None and self._ok is not None
        return Outcome(self.plan.points.unflatten(self._values), self._ok)


class Reduction:
    """The reduction of all points, whatever the order in which they come."""

    def __init__(self, plan: Plan):
        assert plan.blocks is not None
        self.plan = plan
        self.fold = Fold(plan.blocks, plan.chunks)

    @property
    def stopped(self) -> bool:
        """Whether a reducer asked to stop."""
        return self.fold.stopped

    @contextlib.contextmanager
    def filling(self) -> Iterator[Todo]:
        """Nothing is there yet; Ctrl-C ends the sweep at once."""
        numbers = range(len(self.plan.chunks))
        yield Todo(numbers, numbers, Interrupt())

    def keep(self, number: int, values: Rows, ok: Bool[np.ndarray, " rows"]) -> None:
        """Merges a chunk when it is its turn."""
        self.fold.put(number, values)

    def outcome(self) -> Outcome:
        """The reduction of the points up to where it was stopped."""
        return reduced_outcome(self.fold)


def reduced_outcome(fold: Fold, missing: np.ndarray | None = None) -> Outcome:
    """A reduction, of which points, and which of them failed or are `missing`."""
    points, failed = fold.points, fold.failed
    ok = np.broadcast_to(np.True_, (points,))  # takes no memory
    if len(failed) or missing is not None:
        ok = np.ones(points, bool)
        ok[failed] = False
    if missing is not None:
        ok[missing] = False
        points -= int(missing.sum())
    return Outcome(fold.finish(), ok, missing, points)
