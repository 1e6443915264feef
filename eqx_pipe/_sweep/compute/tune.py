"""`batch_size="tune"`: the fastest size, measured on the first points of a sweep.

A few sizes are compared with the automatic size, in an order based on measurements: the
first two gain most. A size and the best so far compute the same points in turn, and are
compared by their fastest runs, which a busy machine disturbs least. The sweep then
computes these points again. A size is not tried if compiling and comparing would take
longer than it may gain.
"""

import dataclasses
import functools as ft
import math
import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ..._cache import LRUCache
from ..._jaxprs import digest
from .points import Points
from .rows import whole
from .watch import Watch

Costs: TypeAlias = Callable[[int, int], np.ndarray | None]
"""The costs of the points in a half-open range, or `None`."""

_GAINS = {256: 0.06, 16: 0.06, 64: 0.02, 1024: 0.02}
"""Sizes in the order in which they are tried, and the fraction of time each may gain.

Among thirteen sizes for each of 30 models, eight of them from other packages (jaxlib
0.12, two cores with other load), the automatic size took 1.30 times as long as the best
size; the better of it and 256 took 1.12, with 16 also 1.04, with 64 also 1.03, with
1024 also 1.01, and smaller and larger sizes gained less than 0.01. Compilation is not
included. The fractions were set by hand, based on these models.
"""

_SECONDS = 0.01
"""The minimum duration of a run in seconds, since timers and calls are coarse."""

_CALLS = 64
"""The approximate number of calls of the sweep.

The outputs of a call have room for all of its points, so a much shorter run would be
timed with unused memory.
"""

_PAIRS = 3
"""The number of runs of each size."""

_CLEAR = 0.95
"""A size is better if it takes at most this fraction of the time."""

_sizes = LRUCache(1024)
"""The sizes found so far in this process."""


def tune(points: Points, costs: Costs) -> Points:
    """Return the points with the batch size that is fastest for the first points.

    Functions with effects keep size 1, since their effects occur once for each point.
    """
    if any(traced.has_effects for traced in points.traced):
        return points
    key = _key(points)
    best, how = _sizes.get(key), "remembered"
    if best is None or best > _room(points):
        best, tried = _compared(points.with_most(-(-points.most // _CALLS)), costs)
        if len(tried) > 1:  # otherwise no size was compared with the automatic one
            _sizes.put(key, best)
        how = ", ".join(f"{size}: {ratio:.2f}" for size, ratio in tried.items())
    return dataclasses.replace(points, batch_size=best, remarks={"tuned": how})


def _compared(points: Points, costs: Costs) -> tuple[int, dict[int, float]]:
    """Return the best size, and the relative times of all tried sizes."""
    sized, total = ft.cache(points.with_batch_size), points.size

    def lanes(size: int) -> int:
        return min(total, size * len(points.devices))

    def seconds(size: int, count: int) -> float:
        """Return the seconds that the first `count` points take."""
        given = range(count), costs(0, count), Watch()
        started = time.perf_counter()
        whole(sized(size).compute(*given))
        return time.perf_counter() - started

    asked = points.batch_size
    compiling = seconds(asked, lanes(asked))
    best = sized(asked).largest_batch  # smaller if it did not fit in memory
    tried, count = {best: 1.0}, lanes(best)
    while (spent := seconds(best, count)) < _SECONDS:
        if 2 * count > total:
            return best, tried
        count *= 2
    each = spent / count
    for size, gain in _GAINS.items():
        batch = lanes(max(size, best))
        count = batch * max(1, round(_SECONDS / (each * batch)))
        cost = compiling + 2 * _PAIRS * count * each
        fits = min(_room(points), points.programs.fitting(size)) >= size
        if size in tried or not fits or cost > gain * each * total:
            continue
        compiling = seconds(size, lanes(size))
        if sized(size).largest_batch < size:
            continue
        pairs = [(seconds(best, count), seconds(size, count)) for _ in range(_PAIRS)]
        before, after = map(min, zip(*pairs, strict=True))
        tried[size] = tried[best] * after / before
        if after < _CLEAR * before:
            best = size
        each = min(before, after) / count
    return best, tried


def _room(points: Points) -> int:
    """Return the maximum number of points of a device."""
    return -(-max(case.size for case in points.cases) // len(points.devices))


def _key(points: Points) -> str:
    """Return the cache key of a size: program, devices and number of points."""
    device = points.devices[0]
    texts = [traced.program.text for traced in points.traced]
    here = (device.platform, device.device_kind, len(points.devices))
    magnitude = str(math.frexp(_room(points))[1])
    return digest("\n".join([*texts, *map(str, here), magnitude]))
