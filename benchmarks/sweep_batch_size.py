"""How much slower `batch_size="auto"` is than the best size found by trying.

Regret: the time at the chosen size over the best of a grid of sizes from 1 to all
points at once, each the least of several interleaved rounds. The rule was
made on the first models; those in `HELD_OUT` were written afterwards. Run:
`python benchmarks/sweep_batch_size.py [devices] [model ...]`; with `CLOCK=cpu` in the
environment it counts processor time, which other work on the machine disturbs less.
"""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=" + (
    sys.argv[1] if len(sys.argv) > 1 else str(os.cpu_count())
)

import math
import time

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqx_pipe as ep

clock = time.process_time if os.environ.get("CLOCK") == "cpu" else time.perf_counter
DEVICES = jax.device_count()
SIZES = [1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384]
ROUNDS = 5


def closed_form(p, key):
    return jnp.exp(-p["a"] * 3) * jnp.sin(p["b"] * 5) / (1 + p["a"] ** 2)


def runge_kutta(p, key):
    def slope(x):
        u, v = x
        return jnp.stack([v, p["a"] * (1 - u**2) * v - u])

    def step(x, _):
        h = 0.05
        k1 = slope(x)
        k2 = slope(x + h / 2 * k1)
        k3 = slope(x + h / 2 * k2)
        k4 = slope(x + h * k3)
        return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return jax.lax.scan(step, jnp.stack([p["b"], p["a"]]), None, 200)[0]


def divergent(p, key):
    trips = jnp.exp(p["a"] * jnp.log(1000.0)).astype(jnp.int32)
    return jax.lax.while_loop(
        lambda c: c[0] < trips,
        lambda c: (c[0] + 1, c[1] + 0.01 * jnp.sin(c[1])),
        (0, p["b"]),
    )[1]


def euler_maruyama(p, key):
    def step(x, k):
        return x - 0.01 * p["a"] * x + 0.1 * p["b"] * jr.normal(k), None

    return jax.lax.scan(step, jnp.float32(1), jr.split(key, 100))[0]


def network(p, key):
    """A random two-layer network on a fixed batch of inputs."""
    first = jr.normal(key, (16, 64)) * p["a"]
    x = jnp.linspace(-1, 1, 32 * 16).reshape(32, 16)
    return jnp.mean(jnp.tanh(x @ first) @ jnp.ones(64) * p["b"])


def solve(p, key):
    a = jnp.eye(24) * (2 + p["a"]) + jnp.cos(jnp.arange(576.0)).reshape(24, 24) * 0.1
    return jnp.linalg.solve(a, jnp.full(24, p["b"]))


def eigen(p, key):
    a = jnp.cos(jnp.arange(256.0).reshape(16, 16) * p["a"])
    return jnp.linalg.eigvalsh(a + a.T + p["b"])


def fourier(p, key):
    t = jnp.arange(512.0)
    return jnp.abs(jnp.fft.rfft(jnp.sin(p["a"] * t) + jnp.cos(p["b"] * t)))[:8]


def logistic(p, key):
    rate = 2.5 + 1.5 * p["a"]
    return jax.lax.fori_loop(0, 2000, lambda _, x: rate * x * (1 - x), p["b"])


def training(p, key):
    x = jnp.linspace(-1, 1, 256).reshape(32, 8)
    y = jnp.sin(x.sum(1))

    def loss(w):
        return jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - y) ** 2)

    def step(w, _):
        slopes = jax.grad(loss)(w)
        return jax.tree.map(lambda a, b: a - 0.1 * p["a"] * b, w, slopes), None

    start = (jr.normal(key, (8, 16)) * p["b"], jnp.zeros(16))
    return loss(jax.lax.scan(step, start, None, 50)[0])


def monte_carlo(p, key):
    return jnp.mean(jnp.exp(p["a"] * jr.normal(key, (1000,))) > p["b"])


def nested(p, key):
    def outer(x, _):
        return jax.lax.fori_loop(0, 10, lambda _, y: jnp.cos(y + p["a"]), x), None

    return jax.lax.scan(outer, p["b"] * jnp.ones(4), None, 20)[0]


def many_outputs(p, key):
    return {str(i): jnp.sin(p["a"] * i + p["b"]) for i in range(24)}


# Written after the rule.


def kuramoto(p, key):
    """Sixteen coupled oscillators."""
    rates = jnp.linspace(-1, 1, 16)

    def step(_, x):
        pull = jnp.mean(jnp.sin(x[None] - x[:, None]), axis=1)
        return x + 0.05 * (rates + 4 * p["a"] * pull)

    return jax.lax.fori_loop(0, 200, step, rates * 3 * p["b"])


def newton(p, key):
    """The root of Kepler's equation, to a tolerance."""
    return jax.lax.while_loop(
        lambda c: (jnp.abs(c[1]) > 1e-5) & (c[2] < 100),
        lambda c: (
            c[0] - c[1],
            (c[0] - c[1] - p["b"] * jnp.sin(c[0] - c[1]) - 3 * p["a"])
            / (1 - p["b"] * jnp.cos(c[0] - c[1])),
            c[2] + 1,
        ),
        (p["a"], jnp.float32(1), 0),
    )[0]


def recurrent(p, key):
    """A recurrent network of 32 units over 100 steps."""
    w = jr.normal(jr.key(1), (32, 32)) / 6
    step = lambda h, x: (jnp.tanh(p["a"] * (w @ h) + p["b"] * x), None)  # noqa: E731
    return jax.lax.scan(step, jnp.zeros(32), jnp.sin(jnp.arange(100.0)))[0]


def walk(p, key):
    """A random walk whose steps draw from folded keys."""

    def step(i, x):
        return x + p["a"] * jr.normal(jr.fold_in(key, i), (3,))

    return jax.lax.fori_loop(0, 50, step, p["b"] * jnp.ones(3))


def heat(p, key):
    """Diffusion on a ring of 128 cells."""

    def step(_, u):
        return u + 0.4 * p["a"] * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1))

    start = jnp.exp(-((jnp.arange(128.0) - 64) ** 2) * p["b"] / 50)
    return jax.lax.fori_loop(0, 100, step, start)[::16]


def gradient(p, key):
    """The slope of a loss over 256 data."""
    x = jnp.linspace(-1, 1, 256)
    loss = lambda w: jnp.mean((jnp.tanh(w[0] * x + w[1]) - x**3) ** 2)  # noqa: E731
    return jax.grad(loss)(jnp.stack([p["a"], p["b"]]))


MODELS = {  # how many points to sweep, about
    closed_form: 2**21,
    runge_kutta: 2**15,
    divergent: 2**14,
    euler_maruyama: 2**14,
    network: 2**11,
    solve: 2**12,
    eigen: 2**11,
    fourier: 2**13,
    logistic: 2**15,
    training: 2**10,
    monte_carlo: 2**12,
    nested: 2**15,
    many_outputs: 2**17,
    kuramoto: 2**12,
    newton: 2**18,
    recurrent: 2**12,
    walk: 2**13,
    heat: 2**11,
    gradient: 2**13,
}
HELD_OUT = {"kuramoto", "newton", "recurrent", "walk", "heat", "gradient"}


def regret(model, points):
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
    best = {size: math.inf for size in sizes}
    for size in sizes:
        timed(size)
    for _ in range(ROUNDS):
        for size in sizes:
            # What is hopeless by now is not tried again.
            if best[size] < 4 * min(best.values()) or best[size] == math.inf:
                best[size] = min(best[size], timed(size)[0])
    least = min(best, key=best.__getitem__)
    return chosen, least, best


def main():
    wanted = sys.argv[2:]
    print(f"jax {jax.__version__}, {DEVICES} device(s)")
    print(f"{'model':16s}{'auto':>8s}{'best':>8s}{'best time':>12s}  regret")
    regrets = {}
    for model, points in MODELS.items():
        name = model.__name__
        if wanted and name not in wanted:
            continue
        chosen, least, best = regret(model, points)
        regrets[name] = best[chosen] / best[least]
        print(
            f"{name:16s}{chosen:8d}{least:8d}{best[least] * 1e3:9.1f} ms"
            f"  {regrets[name]:.2f}   "
            + " ".join(f"{s}:{t / best[least]:.2f}" for s, t in best.items()),
            flush=True,
        )
    for title, own in (
        ("made on", {k: v for k, v in regrets.items() if k not in HELD_OUT}),
        ("held out", {k: v for k, v in regrets.items() if k in HELD_OUT}),
    ):
        if own:
            mean = np.exp(np.mean(np.log(list(own.values()))))
            print(f"{title}: geometric mean {mean:.3f}, worst {max(own.values()):.2f}")


if __name__ == "__main__":
    main()
