"""How good `batch_size="auto"` is for one operation at a time.

Functions of a few lines: elementwise functions alone, in loops of fixed length and in
loops that end by the point; sums over short axes; products with matrices, Fourier
transforms and draws in a loop. Each is swept with the size that is chosen and with
others, in turn, and the regret is the least time of the chosen one over the least of
all: a survey, to find what the rule gets wrong, after which `sweep_batch_size.py`
measures with more care. Run: `python benchmarks/sweep_batch_survey.py [part of a name
...]`; with `CLOCK=cpu` in the environment it counts processor time, and `ROUNDS` is how
often each size runs.
"""

import os
import sys

os.environ.setdefault(
    "XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}"
)

import math
import statistics
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.lax import fori_loop, while_loop

import eqx_pipe as ep

clock = time.process_time if os.environ.get("CLOCK") == "cpu" else time.perf_counter
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SIZES = (4, 16, 32, 64, 128, 256, 512, 1024, 4096)

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


def matrix(size):
    """Made once, so that it is not computed in a loop."""
    numbers = np.sin(np.arange(size * size)).reshape(size, size)
    return jnp.asarray(numbers / size, jnp.float32)


def models():
    """Name, function of a point, and how many points."""

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
        w = matrix(size)
        layer = repeated(lambda u, w=w: jnp.tanh(w @ u), size)
        yield f"layer of {size}, loop", layer, 2**18 // size
    for size in (16, 64, 128):
        cell = eqx.nn.GRUCell(1, size, key=jr.key(0))
        step = lambda u, cell=cell: cell(jnp.ones(1), u)  # noqa: E731
        yield f"GRU of {size}, loop", repeated(step, size), 2**17 // size
        mlp = eqx.nn.MLP(4, 4, size, 2, key=jr.key(0))
        step = lambda u, mlp=mlp: u + 0.01 * mlp(u)  # noqa: E731
        yield f"MLP of {size}, loop", repeated(step, 4), 2**18 // size
    for size in (8, 64, 256, 1024):
        spectral = lambda u, n=size: jnp.fft.irfft(0.9 * jnp.fft.rfft(u), n)  # noqa: E731
        yield f"Fourier of {size}, loop", repeated(spectral, size), 2**18 // size
    for size in (1, 4, 16):

        def drawn(p, n=size):
            key = jr.fold_in(jr.key(0), p["n"])
            draw = lambda i: jr.normal(jr.fold_in(key, i), (n,)).sum()  # noqa: E731
            return fori_loop(0, 50, lambda i, x: x + draw(i), p["x"])

        yield f"{size} drawn, loop", drawn, 2**15 // size


def regret(fn, points):
    """The size that is chosen, and the least time of each size."""
    rng = np.random.default_rng(0)
    trips = np.clip(rng.exponential(152, points), 1, 1000).astype(np.int32)
    x = rng.uniform(0.1, 0.9, points).astype(np.float32)
    space = ep.Space({"n": ep.Values(trips), "x": ep.Values(x)}, "zip")
    fn = jax.jit(fn)
    chosen = ep.sweep(fn, space, progress=False).batch_size
    most = -(-points // jax.device_count())
    least = {s: math.inf for s in sorted({chosen, *(s for s in SIZES if s <= most)})}
    for size in least:
        ep.sweep(fn, space, batch_size=size, progress=False)
    for _ in range(ROUNDS):
        for size, so_far in least.items():
            if math.inf > so_far > 3 * min(least.values()):
                continue
            start = clock()
            ep.sweep(fn, space, batch_size=size, progress=False)
            least[size] = min(so_far, clock() - start)
    return chosen, least


def main():
    print(f"jax {jax.__version__}, {jax.device_count()} device(s)")
    found = {}
    for name, fn, points in models():
        if sys.argv[1:] and not any(part in name for part in sys.argv[1:]):
            continue
        chosen, least = regret(fn, points)
        best = min(least, key=least.__getitem__)
        found[name] = least[chosen] / least[best]
        print(
            f"{name:24s}{chosen:6d}{best:6d}{least[best] * 1e3:8.1f} ms"
            f"{found[name]:6.2f}   "
            + " ".join(f"{s}:{t / least[best]:.2f}" for s, t in least.items()),
            flush=True,
        )
    mean = math.exp(statistics.fmean(map(math.log, found.values())))
    worst = sorted(found, key=found.__getitem__)[-5:]
    print(f"geometric mean {mean:.3f} over {len(found)}; worst:")
    print(*(f"  {name} {found[name]:.2f}" for name in reversed(worst)), sep="\n")


if __name__ == "__main__":
    main()
