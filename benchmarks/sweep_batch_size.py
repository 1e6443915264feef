"""How far is the batch size that `"auto"` chooses from the best one?

The best of a grid of sizes, from 1 to all points at once, is found by the least of
three interleaved rounds. Then that size and the one of `"auto"` run in turn: "auto over
best" is the median of the ratios.
Each model of `_models.py` is swept with `points` times `--scale`.
"""

import math
import statistics

import jax
import jax.random as jr

import eqx_pipe as ep

from . import _models
from ._timing import Spread, interleaved, quickest, ratio

DEVICES = "all"
QUICK = {"scale": 0.01, "only": ("closed_form", "walk")}
SIZES = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


def cases(scale):
    """Yield the name, function and space of each model."""
    for model, points in _models.POINTS.items():
        side = math.isqrt(int(points * scale))
        space = {"a": ep.Linspace(0.01, 1, side), "b": ep.Linspace(0.1, 0.9, side)}
        yield model.__name__, lambda p, key, m=model: m(p, key), space


def regret(run, fn, space):
    """Return the sizes that were chosen, the best one, and how they compare."""

    def swept(size):
        return ep.sweep(fn, space, key=jr.key(0), batch_size=size, progress=False)

    first = swept("auto")
    chosen, most = first.batch_size, -(-len(first) // jax.device_count())
    sizes = sorted({chosen, most, *(s for s in SIZES if s < most)})
    sides = {size: lambda size=size: swept(size).values for size in sizes}
    tried = quickest(sides, 3, run.clock)
    best = next(iter(tried))
    found = Spread(1.0, 0.0)
    if chosen != best:
        both = {str(size): sides[size] for size in (chosen, best)}
        times = interleaved(both, run.rounds, clock=run.clock)
        found = ratio(times, str(chosen), str(best))
    all_sizes = " ".join(f"{s}:{t / tried[best]:.2f}" for s, t in sorted(tried.items()))
    return {
        "auto": chosen,
        "best": best,
        "time best": tried[best],
        "auto over best": found,
        "all": all_sizes,
    }


def main(run, *, scale=1.0):
    found = {}
    for name, fn, space in cases(scale):
        for case in run.chosen([name]):
            row = regret(run, fn, space)
            found[case] = row["auto over best"].median
            run.row(case=case, **row)
    if found:
        mean = math.exp(statistics.fmean(map(math.log, found.values())))
        worst = max(found, key=found.__getitem__)
        run.note(f"auto: geometric mean {mean:.3f} of {len(found)}, worst {worst}")
