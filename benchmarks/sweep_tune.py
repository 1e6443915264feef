"""What does `batch_size="tune"` take beside the best fixed size, and beside `"auto"`?

Of each set half of the models are written out, the others are mostly code of other
packages. The sizes that tuning tries were chosen with the "fitted" ones in view. The
"unseen" ones were written after that, and the "fresh" ones before the order of sizes
came to depend on what was found. The best of a grid of sizes is found on part of the
points; then there are as many as take `--seconds` with it. Every round is another
program (a number in it differs), so that each side compiles: what tuning costs is in
its time, and no size is remembered. A sweep of less than a second has no time to tune:
it is held to what `"auto"` takes.
"""

import itertools
import math
import statistics
import time

import jax
import jax.random as jr

import eqx_pipe as ep

from . import _models
from ._timing import interleaved, quickest, ratio

DEVICES = "all"
ROUNDS = 5
QUICK = {"seconds": 0.05, "only": ("closed_form",)}
SIZES = (8, 16, 32, 64, 128, 256, 1024, 4096)
OWN = (
    _models.closed_form,
    _models.runge_kutta,
    _models.kuramoto,
    _models.walk,
    _models.collatz,
    _models.heat,
)
MEAN, WORST = 1.10, 1.25
SHORT = 1.05  # over `"auto"`
number = itertools.count(1)


def swept(model, points, batch_size, *, anew):
    """The result of a sweep; `anew` of a program that was not there before."""
    factor = 1.0 + 1e-6 * next(number) if anew else 1.0

    def fn(p, key):
        return model({"a": p["a"] * factor, "b": p["b"]}, key)

    side = max(2, math.isqrt(points))
    space = {"a": ep.Linspace(0.01, 1, side), "b": ep.Linspace(0.1, 0.9, side)}
    settings = {"key": jr.key(0), "batch_size": batch_size, "progress": False}
    return ep.sweep(fn, space, **settings)


def best_size(run, model, points):
    """The fastest size, and the seconds that a point takes with it."""
    most = -(-points // jax.device_count())
    sides = {
        size: lambda size=size: swept(model, points, size, anew=False).values
        for size in SIZES
        if size < most
    }
    found = quickest(sides, 2, run.clock)
    size = next(iter(found))
    return size, found[size] / points


def main(run, *, seconds=5.0):
    from . import _fresh, _third_party, _unseen

    own = {model: _models.POINTS[model] for model in OWN}
    sets = {"fitted": own | _third_party.POINTS, "unseen": _unseen.POINTS}
    sets |= {"fresh": _fresh.POINTS}
    for name, models in sets.items():
        compared(run, name, models, seconds)


def compared(run, name, models, seconds):
    """The rows of some models, and what they come to."""
    ratios = []
    for model, points in models.items():
        for case in run.chosen([f"{name}, {model.__name__}"]):
            size, each = best_size(run, model, points // 4)
            points = int(seconds / each)
            tuned = []

            def tune(model=model, points=points, tuned=tuned):
                result = swept(model, points, "tune", anew=True)
                tuned.append(result.batch_size)
                return result.values

            def fixed(batch_size, model=model, points=points):
                return lambda: swept(model, points, batch_size, anew=True).values

            sides = {"best": fixed(size), "auto": fixed("auto"), "tune": tune}
            begin = time.perf_counter()
            times = interleaved(sides, run.rounds, clock=run.clock)
            found, auto = ratio(times, "tune", "best"), ratio(times, "tune", "auto")
            ratios.append(found.median)
            run.row(
                case=case,
                points=points,
                best=size,
                tuned=" ".join(map(str, tuned[1:])),
                **{"auto over best": ratio(times, "auto", "best")},
                **{"tune over best": found, "tune over auto": auto},
                seconds=(time.perf_counter() - begin) / (3 * (run.rounds + 1)),
            )
            if seconds < 1:
                run.bar(f"{case}: tune over auto", auto, SHORT)
            else:
                run.bar(f"{case}: tune over best", found, WORST)
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        run.note(f"{name}: geometric mean {mean:.3f} of {len(ratios)}; aim {MEAN}")
