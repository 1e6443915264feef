"""How far is `batch_size="auto"` from the best size?

The best of a grid of sizes, from 1 to all points at once, is found by the least of
three interleaved rounds; then that size and the chosen one run in turn, and the regret
is the median of the ratios. First whole models (`_models.py`), each with `points` times
`--scale`; then, as a survey to find what the rule gets wrong, one operation at a time
(`--only survey`): elementwise functions alone, in loops of fixed length and in loops
that end by the point; sums over short axes; products with matrices.
"""

import math
import statistics

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.lax import fori_loop, while_loop

import eqx_pipe as ep

from . import _models
from ._timing import Spread, interleaved, quickest, ratio

DEVICES = "all"
QUICK = {"scale": 0.01, "only": ("closed_form", "walk", "survey: sin, alone")}
SIZES = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)

ELEMENTWISE = {
    "sin": jnp.sin,
    "exp": lambda x: jnp.exp(-x),
    "tanh": jnp.tanh,
    "log": lambda x: jnp.log(1 + x),
    "pow": lambda x: x**1.3,
    "cbrt": jnp.cbrt,
    "divide": lambda x: 1 / (1 + x),
}
SUMS = {
    "mean": lambda u: jnp.mean(u**2),
    "norm": jnp.linalg.norm,
    "softmax": lambda u: jax.nn.softmax(u)[0],
    "standardize": lambda u: ((u - u.mean()) / (1 + u.std())).max(),
    "dot": lambda u: jnp.dot(u, u + 1),
}


def until_ended(f):
    def fn(p):
        return while_loop(
            lambda c: c[0] < p["n"],
            lambda c: (c[0] + 1, c[1] + 0.01 * f(c[1])),
            (jnp.int32(0), p["x"]),
        )[1]

    return fn


def repeated(step, size, times=20):
    def fn(p):
        start = p["x"] * jnp.arange(1.0, size + 1) / size
        return fori_loop(0, times, lambda _, u: step(u), start).sum()

    return fn


def survey():
    """Name, function of a point, and how many points."""
    for name, f in ELEMENTWISE.items():
        yield f"{name}, alone", lambda p, f=f: f(p["x"] + p["n"]), 2**20
        euler = lambda u, f=f: u + 0.01 * f(u)  # noqa: E731
        yield f"{name}, loop of 1", repeated(euler, 1, 200), 2**16
        yield f"{name}, loop of 8", repeated(euler, 8, 100), 2**14
        yield f"{name}, loop of 256", repeated(euler, 256), 2**11
        yield f"{name}, until ended", until_ended(f), 2**15
    for name, f in SUMS.items():
        for size in (2, 4, 8, 16, 64):
            alone = lambda p, f=f, n=size: f(p["x"] * jnp.arange(1.0, n + 1))  # noqa: E731
            yield f"{name} of {size}, alone", alone, 2**22 // size
            step = lambda u, f=f: 0.9 * u + 0.01 * f(u)  # noqa: E731
            yield f"{name} of {size}, loop", repeated(step, size), 2**18 // size
    for size in (8, 64, 256, 512):
        # Made once, so that it is not computed in a loop.
        w = np.float32(np.sin(np.arange(size * size)).reshape(size, size) / size)
        layer = repeated(lambda u, w=w: jnp.tanh(w @ u), size)
        yield f"layer of {size}, loop", layer, 2**18 // size
        mlp = eqx.nn.MLP(4, 4, size, 2, key=jr.key(0))
        step = lambda u, mlp=mlp: u + 0.01 * mlp(u)  # noqa: E731
        yield f"MLP of {size}, loop", repeated(step, 4), 2**18 // size


def of_models(scale):
    """Name, function, space and key, for all that can be swept."""
    for model, points in _models.POINTS.items():
        side = math.isqrt(int(points * scale))
        space = {"a": ep.Linspace(0.01, 1, side), "b": ep.Linspace(0.1, 0.9, side)}
        yield model.__name__, lambda p, key, m=model: m(p, key), space, jr.key(0)


def of_survey(scale):
    rng = np.random.default_rng(0)
    for name, fn, points in survey():
        points = int(points * scale)
        trips = np.clip(rng.exponential(152, points), 1, 1000).astype(np.int32)
        x = rng.uniform(0.1, 0.9, points).astype(np.float32)
        space = ep.Space({"n": ep.Values(trips), "x": ep.Values(x)}, "zip")
        yield f"survey: {name}", jax.jit(fn), space, None


def regret(run, fn, space, key):
    """What was chosen, what was best, how long that takes, and how they compare."""

    def swept(size):
        return ep.sweep(fn, space, key=key, batch_size=size, progress=False)

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
    run_of = {"auto": chosen, "best": best, "time best": tried[best]}
    return run_of | {"over best": found, "all": all_sizes}


def main(run, *, scale=1.0):
    for group, cases in (("models", of_models), ("survey", of_survey)):
        found = {}
        for name, *what in cases(scale):
            for case in run.chosen([name]):
                row = regret(run, *what)
                found[case] = row["over best"].median
                run.row(case=case, **row)
        if found:
            mean = math.exp(statistics.fmean(map(math.log, found.values())))
            worst = max(found, key=found.__getitem__)
            text = f"geometric mean {mean:.3f} of {len(found)}"
            run.note(f"{group}: {text}; worst {worst} {found[worst]:.2f}")
