"""Chunks that are computed in this process, one after the other."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from ..compute.progress import Progress
from ..costs import CostsBySpan
from ..gather import Chunk
from ..plan import Plan


@dataclasses.dataclass(frozen=True)
class Here:
    """Computes chunks on the devices of this process."""

    plan: Plan
    costs: CostsBySpan | None

    def __call__(
        self, numbers: Sequence[int], stopping: Callable[[], bool], bar: Progress
    ) -> Iterator[Chunk]:
        """The chunks with some numbers, in this order."""
        for number in numbers:
            if stopping():
                return
            span = self.plan.chunks.span(number)
            costs = None if self.costs is None else self.costs(*span)
            yield number, *self.plan.work.compute(*span, costs, bar)
