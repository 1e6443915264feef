"""How long a sweep will take, from a few stretches of it.

They are spread evenly over what is left to do, since points may cost more in one place
than in another, and computed by the programs that the sweep itself will use. At each
place a short and a longer one are timed: what a call takes whatever it computes is told
from what points take.
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .._store.folder import is_vacant
from .._store.layout import StoreLayout, create
from .._store.store import open_store
from .compute.failure import Verdict
from .compute.progress import Progress
from .compute.sizes import Rows
from .plan import CostsBySpan, Plan
from .results.label import storable

clock = time.perf_counter

_SECONDS = 0.05
"""How long a stretch takes at least, if that is no large part of the sweep."""

_MANY = 4
"""How many chunks there are for each place, at least, if these are whole chunks."""

_T = (12.7, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""By how many standard errors the mean of 2, 3, ... numbers is uncertain (95 %)."""


@dataclasses.dataclass(frozen=True)
class Probe:
    """The seconds that rows take, with their range, and how long compiling took."""

    seconds: float
    low: float
    high: float
    compiling: float


def probed(
    plan: Plan,
    left: Sequence[int],
    points: int,
    costs: CostsBySpan | None,
    places: int,
    layout: StoreLayout | None,
) -> Probe:
    """Times the computation of the chunks that are `left`, at a number of places.

    Of their points so many are computed: a chunk may be there in part. With the
    `layout` of a store some chunks are also written to one that is thrown away.
    """
    timer = _Timer(plan, costs)
    rows = sum(b - a for a, b in map(plan.chunks.span, left))
    unit, most = 1, plan.chunks.points
    if plan.job is not None:
        unit, most = plan.compiled.unit, plan.compiled.most
    unit = min(rows, unit)
    starts, room = _places(plan, left, min(places, max(1, rows // unit)), unit)
    firsts = [timer.seconds(start, unit) for start in starts]
    shorts = [timer.mean(start, unit) for start in starts]
    length, took = unit, min(shorts)
    while took < _SECONDS and 4 * length <= room:
        length *= 4
        took = timer.seconds(starts[0], length)
    if took < _SECONDS and length < room:
        length = room
    longs = [timer.mean(start, length) for start in starts]
    call = 0.0
    if length >= 4 * unit:
        pairs = zip(shorts, longs, strict=True)
        more = [(a - (b - a) / (length - unit) * unit) for a, b in pairs]
        call = max(0.0, min(statistics.median(more), min(longs) / 2))
    rows *= points / plan.count(left)
    each = [max(0.0, long - call) / length for long in longs]
    calls = sum(-(-(b - a) // most) for a, b in map(plan.chunks.span, left))
    seconds = calls * call + statistics.fmean(each) * rows
    spread = _error([long / length for long in longs]) * rows
    if layout is not None:
        begin, chunks = _writing(timer, layout, left)
        seconds += begin + statistics.fmean(chunks) * len(left)
        spread += _error(chunks) * len(left)
    # No mean is below all of what it is the mean of.
    low = max(seconds - spread, min(each) * rows)
    before = sum(max(0.0, a - b) for a, b in zip(firsts, shorts, strict=True))
    return Probe(seconds, low, seconds + spread, before)


class _Timer:
    """Computes rows of a plan, and says how long that takes."""

    def __init__(self, plan: Plan, costs: CostsBySpan | None):
        self.plan, self.costs = plan, costs
        self.found: tuple[Rows, Verdict] | None = None

    def seconds(self, first: int, count: int) -> float:
        """The seconds that some rows take."""
        begun, last = clock(), first + count
        costs = None if self.costs is None else self.costs(first, last)
        bar = Progress(False, count)
        self.found = self.plan.work.compute(first, last, costs, bar)
        return clock() - begun

    def mean(self, first: int, count: int) -> float:
        """The same, of two times, as other work on the machine comes and goes."""
        return statistics.fmean(self.seconds(first, count) for _ in range(2))


def _error(numbers: Sequence[float]) -> float:
    """How uncertain their mean is."""
    count = len(numbers)
    if count < 2:
        return 0.0
    return _T[min(count, len(_T) + 1) - 2] * statistics.stdev(numbers) / count**0.5


def _writing(
    timer: _Timer, layout: StoreLayout, left: Sequence[int]
) -> tuple[float, list[float]]:
    """The seconds that it takes to make a store, and to write each of some chunks."""
    plan, taken = timer.plan, []
    assert plan.request.store is not None
    folder = plan.request.store.parent
    numbers = [left[k * (len(left) - 1) // 4] for k in range(5)]
    while not folder.is_dir():
        folder = folder.parent
    with tempfile.TemporaryDirectory(prefix=".eqx_pipe-plan-", dir=folder) as aside:
        path, begun = Path(aside) / "probe.zarr", clock()
        create(path, layout)
        store = open_store("plan", path)
        making = clock() - begun
        for number in numbers:
            first, last = store.chunks.span(number)
            # Computed before, as in a sweep: chunks that are written one after the
            # other take a third to a half of the time of those that are not.
            timer.seconds(first, last - first)
            assert timer.found is not None
            rows = list(map(storable, timer.found[0]))
            begun = clock()
            store.commit(number, rows, np.ones(last - first, bool))
            taken.append(clock() - begun)
    # The first one also loads what it needs.
    there = not is_vacant(plan.request.store)
    return 0.0 if there else making, taken[1:]


def _places(
    plan: Plan, left: Sequence[int], count: int, unit: int
) -> tuple[list[int], int]:
    """Where stretches begin, and how long they may be at most.

    Stretches lie within the middle half of parts of equal size of what is left; where
    there are many chunks they begin with one.
    """
    spans = [plan.chunks.span(number) for number in left]
    ends = np.cumsum([b - a for a, b in spans])
    stride, many = int(ends[-1]) // count, len(left) > _MANY * count
    starts, rooms = [], []
    for k in range(count):
        at = k * stride + stride // 4
        which = int(np.searchsorted(ends, at, side="right"))
        first, last = spans[which]
        start = first if many else last - (int(ends[which]) - at)
        start = max(first, min(start, last - unit))
        starts.append(start)
        rooms.append(min(last - start, last - first if many else stride // 2))
    return starts, max(unit, min(rooms))
