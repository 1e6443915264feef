"""`batch_size="tune"`: the size that is fastest, found by computing points with some.

Beside the size of the rule a few others are tried, in an order that was measured: the
first two gain most. Two sizes compute stretches of neighbouring points in turn, so that
costs that change along the space touch both alike, and are compared by the fastest of
some, which a busy machine disturbs least. A size is not tried if compiling for it, and
comparing, would take more than a fixed part of the time that is left.
"""

import contextlib
import dataclasses
import json
import math
import os
import time
import uuid
from pathlib import Path

import jax

from .._jaxprs.text import Writer, digest
from .compute.failure import Verdict, in_order
from .compute.job import Job
from .compute.progress import Progress
from .compute.sizes import Rows, empty_values
from .plan import CostsBySpan, Plan

_GAINS = {256: 0.06, 16: 0.06, 64: 0.02, 1024: 0.02, 4: 0.01, 4096: 0.01}
"""Sizes in the order in which they are tried, and what part of the time each may cost.

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


def tuned(plan: Plan, costs: CostsBySpan | None) -> Plan:
    """The plan with the batch size that is fastest for its first points.

    Where values are kept in memory those that were computed to find it are kept.
    """
    assert plan.job is not None
    place, job = _place(plan.job), plan.job
    if any(traced.has_effects for traced in job.traced):
        return plan  # which are seen once for each point, one after the other
    known = _remembered().get(place)
    if known is not None and 1 <= known <= _most(job):
        return plan.with_batch_size(known, "remembered", None)
    job = dataclasses.replace(job, stretch=-(-job.stretch // _CALLS))
    in_memory = plan.request.store is None and plan.request.reducers is None
    values = empty_values(job.geometry.size, job.row) if in_memory else None
    search = _Search(job, costs, values)
    search.run()
    if len(search.tried) > 1:  # else it is the guess of the rule, and nothing was found
        _remember(place, search.best)
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
        compiling = self._begin(self.best)
        each = self._each()
        for size, gain in _GAINS.items():
            if compiling is None or each is None:
                return
            if size in self.tried or size > self.most:
                continue
            lanes = self._lanes(max(size, self.best))
            count = lanes * max(1, round(_SECONDS / (each * lanes)))
            left = each * (self.job.geometry.size - self.done)
            if compiling + 2 * _PAIRS * count * each > gain * left:
                continue
            compiling = self._begin(size)
            if size in self._jobs:
                each = self._compare(size, count)

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
    """What a size is remembered for: program, devices, versions, how many points."""
    writer, device = Writer(), job.devices[0]
    texts = [writer.program(traced.jaxpr) for traced in job.traced]
    here = (device.platform, device.device_kind, len(job.devices), jax.__version__)
    return digest("\n".join([*texts, *map(str, here), str(_most(job).bit_length())]))


def _file() -> Path:
    """The file of the sizes that were found, which may be deleted at any time."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "eqx_pipe" / "batch_sizes.json"


def _remembered() -> dict[str, int]:
    try:
        found = json.loads(_file().read_text())
    except (OSError, ValueError, RuntimeError):  # no home folder
        return {}
    sizes = found if isinstance(found, dict) else {}
    return {place: n for place, n in sizes.items() if type(n) is int}


def _remember(place: str, size: int) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # found anew the next time
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{uuid.uuid4().hex}")
        beside.write_text(json.dumps(_remembered() | {place: size}))
        os.replace(beside, file)
