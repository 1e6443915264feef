"""Timing several programs in turn, so that a busy machine disturbs all alike."""

import concurrent.futures
import math
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Side = Callable[[], Any]
Times = Mapping[str, Sequence[float | None]]
"""The seconds of each side in each round; `None` where it did not take part."""


class Spread(NamedTuple):
    """A median, and the median absolute deviation from it."""

    median: float
    deviation: float


def spread(numbers: Iterable[float]) -> Spread:
    numbers = list(numbers)
    middle = statistics.median(numbers)
    return Spread(middle, statistics.median(abs(n - middle) for n in numbers))


def ratio(times: Times, name: str, to: str) -> Spread:
    """Return a side's time over another's in the same round."""
    pairs = zip(times[name], times[to], strict=True)
    return spread(own / other for own, other in pairs if own and other)


def beyond(times: Times, name: str, *others: str) -> Spread:
    """Return the seconds that a side takes beyond others together in the same round."""
    rounds = zip(*(times[n] for n in (name, *others)), strict=True)
    return spread(own - sum(rest) for own, *rest in rounds if own)


def within(found: Spread, bar: float) -> bool:
    """Return whether a measurement keeps to a bar, less its scatter."""
    return found.median - found.deviation <= bar


def seconds(side: Side, clock: Callable[[], float], calls: int = 1) -> float:
    """Return the time of a call, until its result is there."""
    begin = clock()
    for _ in range(calls):
        out = side()
    if out is not None:
        import jax

        jax.block_until_ready(out)
    return (clock() - begin) / calls


def interleaved(
    sides: Mapping[str, Side],
    rounds: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    least: float = 0.0,
    seldom: Collection[str] = (),
) -> dict[str, list[float | None]]:
    """Return the times of all sides, one after the other in every round.

    A side is called as often in a round as fills `least` seconds; the `seldom` ones
    take part in every tenth round.
    """
    calls = dict.fromkeys(sides, 1)
    for name, side in sides.items():
        seconds(side, clock)  # compiles
        if least:
            calls[name] = max(1, int(least / max(seconds(side, clock), 1e-7)))
    times = {name: [] for name in sides}
    order = list(sides)
    for i in range(rounds):
        order.append(order.pop(0))  # what comes after the longest finds cold caches
        for name in order:
            skip = name in seldom and i % 10
            taken = None if skip else seconds(sides[name], clock, calls[name])
            times[name].append(taken)
    return times


def quickest(
    sides: Mapping[Any, Side],
    rounds: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Any, float]:
    """Return the least time of each side, the quickest first.

    What takes more than twice as long as another is not tried again.
    """
    least = dict.fromkeys(sides, math.inf)
    for _ in range(rounds):
        for name, side in sides.items():
            if least[name] == math.inf:
                seconds(side, clock)
            elif least[name] > 2 * min(least.values()):
                continue
            least[name] = min(least[name], seconds(side, clock))
    return dict(sorted(least.items(), key=lambda item: item[1]))


def agrees(found: Any, wanted: Any) -> bool:
    """Return whether two trees of arrays agree, up to how leading axes are split."""
    import jax
    import numpy as np

    def alike(a: Any, b: Any) -> bool:
        b = np.asarray(b)
        a = np.reshape(a, (-1, *b.shape[1:]))[: len(b)] if b.ndim else a
        return np.allclose(a, b, rtol=1e-3, atol=1e-4)

    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return all(alike(a, b) for a, b in pairs)


def in_own_process(fn: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """Return what a function returns in a new process, and the peak memory in MiB."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        return pool.submit(_with_peak, fn, *args).result()


def _with_peak(fn: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    out = fn(*args)
    return out, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
