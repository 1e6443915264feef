"""`batch_size="tune"`: the size that is fastest, found by computing points with some.

Beside the size of the rule a few others are tried, in an order that was measured: the
first two gain most. Those that lie between the best and its slower neighbours come
before the others, and first of all those onward from a slower one. A size and the best
so far compute stretches of neighbouring points in turn, so that costs that change along
the space touch both alike, and are compared by the fastest of some, which a busy
machine disturbs least. A size is not tried if compiling for it, and comparing, would
cost more than it may gain in the time that is left.
"""

import dataclasses
import math
import time

from .._cache import LRUCache
from .._jaxprs import digest
from .._progress import Progress
from .compute.failure import Verdict, in_order
from .compute.job import Job
from .compute.sizes import Rows, empty_values
from .plan import CostsBySpan, Plan

_GAINS = {256: 0.06, 16: 0.06, 64: 0.02, 1024: 0.02, 4: 0.01, 4096: 0.01}
"""Sizes in the order in which they are tried, and what part of the time each may gain.

Of thirteen sizes each on 30 models, eight of them of other packages (jaxlib 0.12, two
cores that were busy with other things too), the rule's took 1.30 times as long as the
best of all; the better of it and 256 1.12, with 16 1.04, with 64 1.03, with 1024 1.01,
and the last two gained less than 0.01. Compiling is not in that. The parts were set by
hand, with these models in view.
"""

_SECONDS = 0.01
"""How long a stretch takes at least: timers and calls are too coarse for less."""

_CALLS = 64
"""In how many calls the sweep is computed, about.

What a call gives has room for the most points of one, so that a stretch much shorter
than that would be timed with all that is not in it.
"""

_PAIRS = 3
"""How often two sizes take turns."""

_CLEAR = 0.95
"""A size is better if it takes at most this part of the time."""

_HOPELESS = 1.5
"""A size that takes so many times as long the first time gets no second one."""

_ONWARD = 0.5
"""The next size in a direction may gain this part of what the last one has gained."""

_sizes = LRUCache(1024)
"""The sizes that were found in this process."""


def tuned(plan: Plan, costs: CostsBySpan | None) -> Plan:
    """The plan with the batch size that is fastest for its first points.

    Where values are kept in memory those that were computed to find it are kept.
    """
    assert plan.job is not None
    place, job = _place(plan.job), plan.job
    if any(traced.has_effects for traced in job.traced):
        return plan  # which are seen once for each point, one after the other
    known = _sizes.get(place)
    if known is not None and 1 <= known <= _most(job):
        return plan.with_batch_size(known, "remembered", None)
    job = dataclasses.replace(job, stretch=-(-job.stretch // _CALLS))
    in_memory = plan.request.store is None and plan.request.reducers is None
    values = empty_values(job.geometry.size, job.row) if in_memory else None
    search = _Search(job, costs, values)
    search.run()
    if len(search.tried) > 1:  # else it is the guess of the rule, and nothing was found
        _sizes.put(place, search.best)
    tried = ", ".join(f"{size}: {ratio:.2f}" for size, ratio in search.tried.items())
    plan = plan.with_batch_size(search.best, tried, search.head)
    assert plan.job is not None
    plan.job.stretch = min(plan.job.stretch, job.stretch)
    return plan


class _Search:
    """Points computed from the first on, with one size or another."""

    def __init__(self, job: Job, costs: CostsBySpan | None, values: Rows | None):
        self.job, self.costs, self.values = job, costs, values
        self.best = job.batch_size
        self.tried = {self.best: 1.0}
        """For each size its time over that of the size of the rule."""
        self.done = 0
        self.most = _most(job)
        """The most points that a device may have, or has memory for."""
        self._jobs: dict[int, Job] = {}
        self._verdicts: list[Verdict] = []

    @property
    def head(self) -> tuple[Rows, Verdict] | None:
        """Room for all values, with those computed, and what became of these."""
        if self.values is None or not self._verdicts:
            return None
        return self.values, in_order(self._verdicts)

    def run(self) -> None:
        """Tries the sizes that may be worth it."""
        cost = self._begin(self.best)
        each = self._each()
        if cost is None or each is None:
            return
        gains = dict(_GAINS)
        while gains:
            size = next(iter(gains))
            gain, before = gains.pop(size), self.best
            if size in self.tried or size > self.most:
                continue
            lanes = self._lanes(max(size, before))
            count = lanes * max(1, round(_SECONDS / (each * lanes)))
            left = each * (self.job.geometry.size - self.done)
            if cost + 2 * _PAIRS * count * each > gain * left:
                continue
            cost = self._begin(size)
            if cost is None:
                return
            if size not in self._jobs:
                continue
            each = self._compare(size, count)
            if each is None:
                return
            gains = self._reordered(gains, size, before)

    def _reordered(
        self, gains: dict[int, float], size: int, before: int
    ) -> dict[int, float]:
        """What sizes that are left may gain, the next one first.

        A size has been compared with the one that was the best `before`.
        """
        best, slower = self.best, before if self.best == size else size
        above = min((size for size in self.tried if size > best), default=math.inf)
        below = max((size for size in self.tried if size < best), default=0)
        between = [size for size in gains if below < size < above]
        onward = [size for size in between if (size > best) != (slower > best)]
        first = [*onward, *between]
        if best == size and onward:
            further = min(onward, key=lambda size: abs(math.log(size / best)))
            gained = 1 - self.tried[best] / self.tried[before]
            gains = gains | {further: max(gains[further], _ONWARD * gained)}
            first = [further, *first]
        return {size: gains[size] for size in dict.fromkeys([*first, *gains])}

    def _begin(self, size: int) -> float | None:
        """The seconds of compiling for a size, and of its first points.

        `None` if there are too few points left. A size for which there was not enough
        memory is not among the jobs after this.
        """
        job = self._jobs[size] = dataclasses.replace(self.job, batch_size=size)
        seconds = self._seconds(size, self._lanes(size))
        if job.batch_size < size:
            del self._jobs[size]
            self.most = job.batch_size
            if size == self.best:
                self.best, self.tried = job.batch_size, {job.batch_size: 1.0}
                self._jobs[self.best] = job
        return seconds

    def _each(self) -> float | None:
        """The seconds that a point takes with the size of the rule."""
        count = self._lanes(self.best)
        while True:
            seconds = self._seconds(self.best, count)
            if seconds is None or seconds >= _SECONDS:
                return None if seconds is None else seconds / count
            count *= 2 if seconds > _SECONDS / 4 else 4

    def _lanes(self, size: int) -> int:
        return size * len(self.job.devices)

    def _compare(self, size: int, count: int) -> float | None:
        """The seconds that a point takes with the better of a size and the best so far.

        `None` if there are fewer points left than that takes.
        """
        mine = best = math.inf
        for _ in range(_PAIRS):
            first = self._seconds(self.best, count)
            second = self._seconds(size, count)
            if first is None or second is None:
                return None
            mine, best = min(mine, second), min(best, first)
            if mine > _HOPELESS * best:
                break
        self.tried[size] = mine / best * self.tried[self.best]
        if mine < _CLEAR * best:
            self.best = size
        return min(mine, best) / count

    def _seconds(self, size: int, count: int) -> float | None:
        """The seconds that the next points take; `None` if there are too few."""
        first, last = self.done, self.done + count
        if last > self.job.geometry.size:
            return None
        costs = None if self.costs is None else self.costs(first, last)
        started = time.perf_counter()
        if self.values is None:
            rows = empty_values(count, self.job.row)
        else:
            rows = [leaf[first:last] for leaf in self.values]
        self._verdicts.append(
            self._jobs[size].fill(rows, first, last, costs, Progress(False, count))
        )
        self.done = last
        return time.perf_counter() - started


def _most(job: Job) -> int:
    return -(-max(part.size for part in job.parts) // len(job.devices))


def _place(job: Job) -> str:
    """What a size is remembered for: program, devices, how many points."""
    device = job.devices[0]
    texts = [traced.program.text for traced in job.traced]
    here = (device.platform, device.device_kind, len(job.devices))
    return digest("\n".join([*texts, *map(str, here), str(_most(job).bit_length())]))
