"""`batch_size="tune"`: the size that is fastest, found by computing points with some.

The search begins at the size of the rule, goes down or up by a factor of four as long
as that is faster, and then looks at the two sizes between. Sizes are compared on
stretches of neighbouring points in turn, so that costs that change along the space
touch both alike, and by the fastest of some, which a busy machine disturbs least. It is
given up when compiling another program would take longer than it may gain.
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
import numpy as np

from .._jaxprs.text import Writer, digest
from .compute.job import Job
from .compute.progress import Progress
from .compute.sizes import Rows, empty_values
from .plan import CostsBySpan, Plan

_LEAST_SECONDS, _LEAST_PART = 0.01, 0.01
"""How long a stretch takes at least, and what part of the time that is left.

Timers and calls are too coarse for less, and a machine that does something else.
"""

_CALLS = 64
"""In how many calls the sweep is computed, about.

What a call gives has room for the most points of one, so that a stretch much shorter
than that would be timed with all that is not in it.
"""

_PAIRS = 3
"""How often two sizes take turns."""

_CLEAR = 0.95
"""A size is better if it takes at most this part of the time."""

_FIRST, _ALL = 0.1, 0.06
"""What part of the time that is left the first other program may cost, and all of them.

Time that was gained by what is known may be spent as well.
"""


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
    in_memory = plan.request.store is None and plan.blocks is None
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
        self.seconds = 0.0
        """What the last program took to be compiled, and its first points."""
        self.spent = 0.0
        """What all programs but the first took."""
        self._jobs: dict[int, Job] = {}
        self._counts: dict[int, int] = {}
        self._ok: list[np.ndarray] = []

    @property
    def head(self) -> tuple[Rows, np.ndarray] | None:
        """Room for all values, with those computed, and which of these did not fail."""
        if self.values is None or not self._ok:
            return None
        return self.values, np.concatenate(self._ok)

    def run(self) -> None:
        """Looks for the best size while that may be worth it."""
        if not self._begin(self.best):
            return
        for factor in (1 / 4, 4.0):
            while self._is_better(self._scaled(factor)):
                pass
            if len(self.tried) > 2:  # smaller ones were better, so larger ones are not
                break
        for factor in (1 / 2, 2.0):
            if self._is_better(self._scaled(factor)):
                break

    def _scaled(self, factor: float) -> int:
        """A power of two, about so many times the best size; at most all points."""
        power = 1 << max(0, round(math.log2(self.best * factor)))
        return min(_most(self.job), power)

    def _is_better(self, size: int) -> bool:
        """Whether a size is faster than the best so far, which it then is."""
        if size in self.tried or not self._is_worth_it():
            return False
        if not self._begin(size):
            return False
        least = max(_LEAST_SECONDS, _LEAST_PART * self._left())
        found: list[list[float]] = [[], []]
        for _ in range(_PAIRS):
            for seconds, one in zip(found, (self.best, size), strict=True):
                each = self._each(one, least)
                if each is None:
                    return False
                seconds.append(each)
        ratio = min(found[1]) / min(found[0])
        self.tried[size] = ratio * self.tried[self.best]
        if ratio < _CLEAR:
            self.best = size
            return True
        return False

    def _is_worth_it(self) -> bool:
        """Whether there is time for another program that costs as much as the last."""
        left = self._left()
        if len(self.tried) == 1:
            return self.seconds < _FIRST * left
        gained = left * (1 / self.tried[self.best] - 1)
        return self.spent + self.seconds < _ALL * left + gained

    def _left(self) -> float:
        """About how many seconds the rest takes with the best size."""
        each = self._each(self.best, _LEAST_SECONDS)
        return 0.0 if each is None else each * (self.job.geometry.size - self.done)

    def _begin(self, size: int) -> bool:
        """Compiles for a size; whether there are points left to compare."""
        self._jobs[size] = dataclasses.replace(self.job, batch_size=size)
        started = time.perf_counter()
        enough = self._compute(size, size * len(self.job.devices)) is not None
        fitting = self._jobs[size].batch_size
        if fitting < size and size == self.best:  # there was not enough memory
            self.best, self.tried = fitting, {fitting: 1.0}
            self._jobs[fitting] = self._jobs.pop(size)
        elif fitting < size:
            enough = False
        self.seconds = time.perf_counter() - started
        self.spent += self.seconds if len(self._jobs) > 1 else 0.0
        return enough

    def _each(self, size: int, least: float) -> float | None:
        """The seconds that a point takes with a size, by as many as take `least`.

        `None` if there are too few left.
        """
        count = self._counts.get(size, size * len(self.job.devices))
        while True:
            seconds = self._compute(size, count)
            if seconds is None or seconds >= least:
                self._counts[size] = count
                return None if seconds is None else seconds / count
            count *= 2 if seconds > least / 4 else 4

    def _compute(self, size: int, count: int) -> float | None:
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
        quiet = Progress(False, count)
        self._ok.append(self._jobs[size].fill(rows, first, last, costs, quiet))
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
