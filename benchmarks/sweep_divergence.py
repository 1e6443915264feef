"""What it costs that some points take longer than others, and what helps.

65,536 points whose loops take 1 to 1,000 steps, 150 on average, in random order. Next
to `vmap` over all points on one device, and to one batch per device: the sweep of the
plain `while_loop`, with `order_by` (the number of steps, or guesses that are off by up
to 10 and 30 %), and of `refill`; then those of the same functions under `jax.jit`,
which need not be traced again (nor need the two by hand). Run: `python
benchmarks/sweep_divergence.py [diffrax | model ...]`; with `CLOCK=cpu` in the
environment it counts processor time, which other work on the machine disturbs less, and
`ROUNDS` is how often each side runs; `ORDER=ascending` or `descending` has the points
in that order instead; `ONLY=jitted` leaves out the sweeps of functions that are traced
each time (or any others without that text).
"""

import os
import sys

os.environ.setdefault(
    "XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}"
)

import functools
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

clock = time.process_time if os.environ.get("CLOCK") == "cpu" else time.perf_counter
ROUNDS = int(os.environ.get("ROUNDS", "21"))
ORDER = os.environ.get("ORDER", "random")
ONLY = os.environ.get("ONLY", "")
N = 65_536


def logistic(p, x):
    return 3.7 * x * (1 - x)


def sine(p, x):
    return x + 0.01 * jnp.sin(x)


def sines(p, x):
    for _ in range(4):
        x = x + 0.01 * jnp.sin(x)
    return x


def rossler(p, x):
    """One step of Runge-Kutta in three dimensions."""

    def slope(x):
        a, b, c = x
        return jnp.stack([-b - c, a + 0.2 * b, 0.2 + c * (a - 5.7)])

    h = 0.01
    k1 = slope(x)
    k2 = slope(x + h / 2 * k1)
    k3 = slope(x + h / 2 * k2)
    k4 = slope(x + h * k3)
    return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


MODELS = {
    "sine": (sine, lambda p: p["x"]),
    "logistic": (logistic, lambda p: p["x"]),
    "sines": (sines, lambda p: p["x"]),
    "rossler": (rossler, lambda p: p["x"] * jnp.ones(3)),
}


def parts(step, start):
    """What both kinds of loop are made of."""
    init = lambda p: (jnp.int32(0), start(p))  # noqa: E731
    cond = lambda p, c: c[0] < p["n"]  # noqa: E731
    body = lambda p, c: (c[0] + 1, step(p, c[1]))  # noqa: E731
    out = lambda p, c: jnp.sum(c[1])  # noqa: E731
    return init, cond, body, out


def plain(init, cond, body, out):
    def fn(p):
        return out(
            p,
            jax.lax.while_loop(
                functools.partial(cond, p), functools.partial(body, p), init(p)
            ),
        )

    return fn


def mesh(n):
    devices = jax.devices()[:n]
    return jax.make_mesh((n,), ("i",), (AxisType.Auto,), devices=devices)


def one_batch(fn, points, devices):
    """By hand: everything that a device has to do, vectorised at once."""
    run = jax.jit(
        jax.shard_map(
            jax.vmap(fn),
            mesh=mesh(devices),
            in_specs=P("i"),
            out_specs=P("i"),
            check_vma=False,
        )
    )
    return lambda: np.asarray(run(points))


def compare(sides, rounds=ROUNDS):
    """The median time of each side, interleaved, and the deviation of the ratio."""
    sides = {name: f for name, f in sides.items() if ONLY in name or "hand" in name}
    for side in sides.values():
        side()
    times = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        order.append(order.pop(0))  # what comes after the longest finds cold caches
        for name in order:
            start = clock()
            sides[name]()
            times[name].append(clock() - start)
    first = next(iter(times.values()))
    for name, own in times.items():
        ratios = [a / b for a, b in zip(first, own, strict=True)]
        ratio = statistics.median(ratios)
        spread = statistics.median(abs(r - ratio) for r in ratios)
        print(
            f"  {name:34s}{statistics.median(own) * 1e3:9.1f} ms"
            f"   {ratio:6.2f} times faster ({spread:.2f})",
            flush=True,
        )


def loops(names):
    rng = np.random.default_rng(0)
    trips = rng.exponential(152, 2 * N).astype(np.int32)
    trips = trips[(trips >= 1) & (trips <= 1000)][:N]
    if ORDER != "random":
        trips = np.sort(trips)[:: {"ascending": 1, "descending": -1}[ORDER]].copy()
    x = rng.uniform(0.1, 0.9, N).astype(np.float32)
    costs = {
        "order_by": trips,
        "order_by within 10 %": trips * rng.uniform(0.9, 1.1, N),
        "order_by within 30 %": trips * rng.uniform(0.7, 1.3, N),
    }
    points = {"n": jnp.asarray(trips), "x": jnp.asarray(x)}
    space = ep.Space({k: ep.Values(v) for k, v in points.items()}, "zip")
    print(f"{N:,} points of 1 to {trips.max()} steps, {trips.mean():.0f} on average,")
    print(f"in {ORDER} order")
    for name in names or MODELS:
        model = MODELS[name]
        four = parts(*model)
        fn, refilled = plain(*four), ep.refill(*four)
        for d in sorted({1, len(jax.devices())}):
            print(f"{name}, {d} device{'s' * (d > 1)}")
            each = functools.partial(ep.sweep, space=space, mesh=mesh(d))
            size = each(refilled).batch_size
            sides = {
                "by hand, one batch on one device": one_batch(fn, points, 1),
                "by hand, one batch per device": one_batch(fn, points, d),
                "sweep": functools.partial(each, fn),
            }
            for prefix, wrap in (("sweep", lambda f: f), ("jitted", jax.jit)):
                own, other = wrap(fn), wrap(refilled)
                for label, cost in costs.items():
                    sides[f"{prefix}, {label}"] = functools.partial(
                        each, own, order_by=cost
                    )
                label = f"{prefix}, refill (batches of {size})"
                sides[label] = functools.partial(each, other)
            compare(sides)


def adaptive():
    """Van der Pol's oscillator, solved with adaptive steps: the stiffer, the slower."""
    import diffrax

    def fn(p):
        def field(t, y, args):
            return jnp.stack([y[1], p["mu"] * (1 - y[0] ** 2) * y[1] - y[0]])

        return diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            0.0,
            10.0,
            None,
            jnp.stack([p["y"], p["y"]]),
            stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
            max_steps=100_000,
            adjoint=diffrax.ForwardMode(),
            saveat=diffrax.SaveAt(t1=True),
        ).ys[0]

    n = 16_384
    rng = np.random.default_rng(0)
    mu = np.float32(rng.permutation(np.geomspace(0.1, 100, n)))
    y = np.float32(rng.uniform(0.5, 2, n))
    space = ep.Space({"mu": ep.Values(mu), "y": ep.Values(y)}, "zip")
    print(f"diffrax {diffrax.__version__}, {n:,} points, all devices")
    compare(
        {
            "sweep": lambda: ep.sweep(fn, space),
            "sweep, order_by": lambda: ep.sweep(fn, space, order_by=mu),
        }
    )


if __name__ == "__main__":
    adaptive() if sys.argv[1:] == ["diffrax"] else loops(sys.argv[1:])
