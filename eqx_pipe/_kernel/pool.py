"""Which points the lanes of a block have, and when they take others.

If a program has one loop whose number of steps depends on the point, with nothing but
arithmetic before and after it, lanes that have finished take the next points while the
others go on. All lanes then run what comes before and after the loop, which costs as
much as some steps of it: so they do when the lanes that wait have missed as many.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from .elementary import FUNCTIONS
from .llvm import Code, Value
from .scalars import Block, Loop, Operation, Scalar, Store, within

_BOOL, _INDEX = np.dtype(bool), np.dtype("int64")


def parts_of(
    block: Block, varying: Collection[Scalar]
) -> tuple[list[Any], Loop | None, list[Any]]:
    """Return the loop whose lanes take other points, and the steps around it."""
    steps = block.steps
    places = [k for k, step in enumerate(steps) if isinstance(step, Loop)]
    if len(places) == 1 and steps[places[0]].test.outputs[0] in varying:
        before, after = steps[: places[0]], steps[places[0] + 1 :]
        # Other loops would take long, and tables have no values of single lanes.
        if not any(isinstance(x, Loop | Store) for x in within([before, after])):
            return before, steps[places[0]], after
    return steps, None, []


# So many additions take as long as an elementary function or random words, or as to
# read or write a number of each lane. With a weight of its own for each of them, seven
# loops (among them Van der Pol, escape time, Gillespie) took 0.95 to 1.01 of the time.
_SLOW, _SLOW_ONES = 32, {*FUNCTIONS, "threefry2x32"}


def steps_of_refill(
    before: Sequence[Any], loop: Loop, after: Sequence[Any], moved: int
) -> float:
    """Estimate the steps of a loop that take as long as to give lanes other points.

    `moved` is how many numbers of a point are read and written.
    """

    def work(part: Any) -> int:
        steps = (step for step in within(part) if isinstance(step, Operation))
        return sum(_SLOW if step.primitive in _SLOW_ONES else 1 for step in steps)

    return (work([before, after]) + _SLOW * moved) / max(1, work(loop))


class Pool:
    """The points of the lanes, which keep their values while they are busy."""

    def __init__(self, code: Code, refills: bool):
        self.code, self.refills = code, refills
        self.num_points = Value(code, "%n", _INDEX)
        self.fresh: Value | None = None
        """The lanes with a new point; `None` stands for all."""
        # Blocks of instructions share numbers by memory; LLVM finds registers for them.
        # `_missed` counts the steps for which lanes have waited, and at `_limit` they
        # take other points.
        self._next, self._limit, self._missed = (
            code.allocate(_INDEX, lanes=False, zeros=True) for _ in range(3)
        )
        self._busy = code.allocate(_BOOL, lanes=True, zeros=True)

    def take(self) -> Value:
        """Return the points of the lanes: the next for those that are not busy."""
        code, width = self.code, self.code.width
        begin = code.load(self._next, _INDEX)
        place, count = code.each_lane(range(width)), width
        if self.refills:
            self.fresh = ~code.load(self._busy, _BOOL, True)
            bits = code.mask_bits(self.fresh)
            # A fresh lane takes the point after those of the fresh lanes before it.
            before = code.each_lane([2**k - 1 for k in range(width)], bits.dtype)
            place, count = (x.call("ctpop").to(_INDEX) for x in (bits & before, bits))
        code.store(begin + count, self._next)
        # Lanes without a point repeat the last, and write the same values again.
        points = (begin + place).call("smin", self.num_points - 1)
        return self.kept(points)[0]

    def has_more(self) -> Value:
        """Return whether points are left."""
        return self.code.load(self._next, _INDEX) < self.num_points

    def kept(self, value: Value) -> tuple[Value, str]:
        """Return a value, of which busy lanes keep their own, and where it is kept."""
        slot = self.code.allocate(value.dtype, lanes=True, zeros=True)
        if self.fresh is not None:
            value = self.fresh.where(value, self.code.load(slot, value.dtype, True))
        self.code.store(self.code.spread(value), slot)
        return value, slot

    def begin(self, steps: float) -> None:
        """Begin the loop; to give lanes other points takes as long as `steps`."""
        code = self.code
        limit = code.constant(int(steps * code.width), _INDEX)
        without_end = np.iinfo(_INDEX).max
        code.store(self.has_more().where(limit, without_end), self._limit)
        code.store(code.constant(0, _INDEX), self._missed)

    def goes_on(self, active: Value) -> Value:
        """Return whether the loop goes on for its active lanes."""
        code, bits = self.code, self.code.mask_bits(active)
        code.store(active, self._busy)
        idle = code.width - bits.call("ctpop").to(_INDEX)
        missed = code.load(self._missed, _INDEX) + idle
        code.store(missed, self._missed)
        return bits.compare("ne", 0) & (missed <= code.load(self._limit, _INDEX))

    def finished(self) -> Value | None:
        """Return the lanes that have finished; `None` stands for all."""
        return ~self.code.load(self._busy, _BOOL, True) if self.refills else None
