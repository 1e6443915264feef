"""How much slower `batch_size="auto"` is than the best size found by trying.

The best of a grid of sizes, from 1 to all points at once, is found by the least of
three interleaved rounds; then that size and the chosen one run in turn, and the regret
is the median of the ratios, with their median absolute deviation. The rule was made on
`MADE_ON` (the first four are those it has to be good at) and changed for `CHANGED`;
`HELD_OUT` were written afterwards, and nothing was changed for them. Run:
`python benchmarks/sweep_batch_size.py [devices] [model ...]`, by default all devices,
the first four and `HELD_OUT`; with `CLOCK=cpu` in the environment it counts processor
time, which other work on the machine disturbs less.
"""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=" + (
    sys.argv[1] if len(sys.argv) > 1 else str(os.cpu_count())
)

import math
import statistics
import time

import jax
import jax.random as jr
import numpy as np
import sweep_models as models

import eqx_pipe as ep

clock = time.process_time if os.environ.get("CLOCK") == "cpu" else time.perf_counter
DEVICES = jax.device_count()
SIZES = [1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384]
TRIED, PAIRS = 3, 21

MADE_ON = {  # how many points to sweep, about
    models.closed_form: 2**23,
    models.runge_kutta: 2**17,
    models.divergent: 2**16,
    models.euler_maruyama: 2**16,
    models.network: 2**13,
    models.solve: 2**14,
    models.eigen: 2**12,
    models.fourier: 2**14,
    models.logistic: 2**18,
    models.training: 2**11,
    models.monte_carlo: 2**13,
    models.nested: 2**16,
    models.many_outputs: 2**19,
    models.kuramoto: 2**10,
    models.newton: 2**19,
    models.recurrent: 2**13,
    models.walk: 2**15,
    models.heat: 2**13,
    models.gradient: 2**15,
}
CHANGED = {
    models.collatz: 2**19,
    models.escape: 2**18,
    models.power_iteration: 2**15,
    models.bodies: 2**12,
    models.pendulum: 2**16,
    models.phases: 2**16,
    models.powers: 2**16,
    models.arcs: 2**16,
}
HELD_OUT = {
    models.adaptive: 2**16,
    models.epidemic: 2**15,
    models.quadrature: 2**16,
    models.attention: 2**14,
    models.reactions: 2**14,
    models.kalman: 2**14,
    models.ising: 2**11,
    models.bisection: 2**19,
    models.wave: 2**12,
    models.quantiles: 2**13,
}
FIRST = dict(list(MADE_ON.items())[:4])
MODELS = MADE_ON | CHANGED | HELD_OUT


def regret(model, points):
    """What was chosen, what was best, and how they compare."""
    side = math.isqrt(points)
    space = {"a": ep.Linspace(0.01, 1, side), "b": ep.Linspace(0.1, 0.9, side)}
    fn = lambda p, key: model(p, key)  # noqa: E731

    def timed(size):
        start = clock()
        result = ep.sweep(fn, space, key=jr.key(0), batch_size=size, progress=False)
        return clock() - start, result.batch_size

    chosen = timed("auto")[1]
    everything = -(-(side**2) // DEVICES)
    sizes = sorted({chosen, everything, *(s for s in SIZES if s < everything)})
    tried = {size: math.inf for size in sizes}
    for _ in range(TRIED):
        for size in sizes:
            # What is hopeless by now is not tried again.
            if tried[size] < 2 * min(tried.values()) or tried[size] == math.inf:
                if tried[size] == math.inf:
                    timed(size)
                tried[size] = min(tried[size], timed(size)[0])
    best = min(tried, key=tried.__getitem__)
    pairs = [[timed(size)[0] for size in (chosen, best)] for _ in range(PAIRS)]
    ratios = [1.0 if chosen == best else own / other for own, other in pairs]
    return chosen, best, tried, ratios


def main():
    wanted = sys.argv[2:] or [model.__name__ for model in FIRST | HELD_OUT]
    print(f"jax {jax.__version__}, {DEVICES} device(s)")
    print(f"{'model':16s}{'auto':>8s}{'best':>8s}{'best time':>12s}  regret (MAD)")
    regrets = {}
    for model, points in MODELS.items():
        name = model.__name__
        if name not in wanted:
            continue
        chosen, best, tried, ratios = regret(model, points)
        regrets[model] = statistics.median(ratios)
        spread = statistics.median(abs(r - regrets[model]) for r in ratios)
        print(
            f"{name:16s}{chosen:8d}{best:8d}{tried[best] * 1e3:9.1f} ms"
            f"  {regrets[model]:.2f} ({spread:.2f})   "
            + " ".join(f"{s}:{t / tried[best]:.2f}" for s, t in tried.items()),
            flush=True,
        )
    for title, group in (
        ("the first four", FIRST),
        ("held out", HELD_OUT),
        ("the first four and held out", FIRST | HELD_OUT),
        ("others", MODELS.keys() - FIRST.keys() - HELD_OUT.keys()),
    ):
        own = [found for model, found in regrets.items() if model in group]
        if own:
            mean = np.exp(np.mean(np.log(own)))
            print(f"{title}: geometric mean {mean:.3f}, worst {max(own):.2f}")


if __name__ == "__main__":
    main()
