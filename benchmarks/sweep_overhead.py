"""What a sweep costs beyond its computation.

Compares `sweep` with a hand-written `shard_map` program at the same batch size, on a
large space (the rate), for a closed form, a scan and a `while` loop; and looks at small
warm sweeps: one call, less one trace of the function and the same computation as a
program written by hand, interleaved. Run:
`python benchmarks/sweep_overhead.py [rate | small] [model ...]`;
`SIDE=4096` in the environment makes the large space 16 times as large.
"""

import os
import sys

os.environ.setdefault(
    "XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}"
)

import statistics
import time

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

PAIRS = 21
SIDE = int(os.environ.get("SIDE", "1024"))


def closed_form(point):
    k, c = point["k"], point["c"]
    return jnp.exp(-c * 3) * jnp.sin(k * 5) / (1 + k**2)


def oscillator(point):
    """A hundred steps of a damped oscillator."""

    def step(state, _):
        x, v = state
        a = -point["k"] * x - point["c"] * v
        return (x + 0.01 * v, v + 0.01 * a), None

    (x, _), _ = jax.lax.scan(step, (jnp.float32(1), jnp.float32(0)), None, 100)
    return x


def newton(point):
    """A root by Newton's method, of as many steps as it takes."""

    def step(carry):
        x, _, i = carry
        return x - (x * x - point["k"]) / (2 * x + point["c"]), x, i + 1

    def going(carry):
        return (jnp.abs(carry[0] - carry[1]) > 1e-5) & (carry[2] < 100)

    start = (point["k"], jnp.float32(0), jnp.int32(0))
    return jax.lax.while_loop(going, step, start)[0]


MODELS = {
    "closed form": (closed_form, 16_384),
    "oscillator (scan)": (oscillator, 128),
    "newton (while)": (newton, 64),
}


def spent(fn):
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def by_hand(model, k, c, batch):
    """The grid of `k` and `c`, decoded on the devices, `batch` points at once."""
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(AxisType.Auto,))
    per_device = k.size * c.size // jax.device_count()

    @jax.jit
    def run(k, c):
        def device(k, c):
            first = jax.lax.axis_index("i") * per_device

            def chunk(i):
                at = first + i * batch + jnp.arange(batch)
                return jax.vmap(model)({"k": k[at // c.size], "c": c[at % c.size]})

            return jax.lax.map(chunk, jnp.arange(per_device // batch)).reshape(-1)

        return jax.shard_map(
            device, mesh=mesh, in_specs=P(), out_specs=P("i"), check_vma=False
        )(k, c)

    return lambda: np.array(run(k, c))


def rate(names):
    space = ep.Space({"k": ep.Linspace(1, 9, SIDE), "c": ep.Linspace(0, 1, SIDE)})
    k, c = jnp.linspace(1, 9, SIDE), jnp.linspace(0, 1, SIDE)
    print(f"{SIDE**2:,} points, {jax.device_count()} devices, {PAIRS} pairs")
    print(f"{'model':20s} batch   by hand     sweep  ratio (MAD)")
    for name, (model, batch) in MODELS.items():
        if names and not any(name.startswith(n) for n in names):
            continue
        hand = by_hand(model, k, c, batch)
        ours = lambda: ep.sweep(model, space, batch_size=batch).values  # noqa: B023, E731
        np.testing.assert_allclose(hand(), ours(), rtol=1e-4, atol=1e-5)
        pairs = [(spent(hand), spent(ours)) for _ in range(PAIRS)]
        times = [statistics.median(column) * 1e3 for column in zip(*pairs, strict=True)]
        ratios = [b / a for a, b in pairs]
        ratio = statistics.median(ratios)
        spread = statistics.median(abs(r - ratio) for r in ratios)
        print(
            f"{name:20s}{batch:6d} {times[0]:7.1f} ms{times[1]:7.1f} ms"
            f"  {ratio:.3f} ({spread:.3f})",
            flush=True,
        )


EDGES = np.linspace(0, 10, 6)


def product_of(p):
    return p["k"] * p["c"]


def noisy_of(p, key):
    return product_of(p) + jr.normal(key)


def mean_of(x):
    return x.mean()


def five_of(x):
    at = jnp.argmin(x)
    bins = jnp.histogram(x, EDGES)[0]
    return x.mean(), x.var(ddof=1), (at, x[at]), jax.lax.top_k(x, 3), bins


def hand_written(space, key, reduced):
    """What a small sweep computes as one warm program on one device."""
    points = [space.point(i) for i in range(space.size)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *points)

    @jax.jit
    def run(points, key):
        if key is None:
            return reduced(jax.vmap(product_of)(points))
        keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(space.size))
        return reduced(jax.vmap(noisy_of)(points, keys))

    return lambda: jax.device_get(run(stacked, key))


def small():
    """Twelve points, warm, each time with a new lambda."""
    space = ep.Space({"k": ep.Linspace(1, 9, 3), "c": ep.Linspace(0, 1, 4)})
    key = jr.key(0)
    five = {
        "mean": ep.Mean(),
        "var": ep.Var(),
        "least": ep.ArgMin(),
        "top": ep.TopK(3),
        "bins": ep.Histogram(EDGES),
    }

    def product(**options):
        return lambda: ep.sweep(lambda p: product_of(p), space, **options)

    def noisy(**options):
        return lambda: ep.sweep(
            lambda p, key: noisy_of(p, key), space, key=key, **options
        )

    same = lambda x: x  # noqa: E731
    cases = {
        "plain": (product(), same),
        "key": (noisy(), same),
        "order_by": (product(order_by=np.arange(12.0)), same),
        "reduce, Mean": (product(reduce=ep.Mean()), mean_of),
        "reduce, Mean, key": (noisy(reduce=ep.Mean()), mean_of),
        "reduce, five": (product(reduce=five), five_of),
    }
    struct = jax.eval_shape(space.point, 0)
    keys = jax.eval_shape(lambda: key)
    traces = {
        False: lambda: jax.make_jaxpr(lambda p: product_of(p))(struct),
        True: lambda: jax.make_jaxpr(lambda p, key: noisy_of(p, key))(struct, keys),
    }
    print(f"{space.size} points, warm{'':11s}sweep one trace   by hand    the rest")
    for name, (run, reduced) in cases.items():
        draws = "key" in name
        sides = run, traces[draws], hand_written(space, key if draws else None, reduced)
        for side in sides:
            side()
        rows = [[spent(side) * 1e3 for side in sides] for _ in range(300)]
        total, trace, hand = np.median(rows, axis=0)
        rest = np.median([row[0] - row[1] - row[2] for row in rows])
        print(
            f"{name:20s}{total:9.2f} ms{trace:7.2f} ms{hand:7.2f} ms{rest:9.2f} ms",
            flush=True,
        )


if __name__ == "__main__":
    print(f"jax {jax.__version__}, Python {sys.version.split()[0]}")
    which, *names = sys.argv[1:] or [""]
    if which != "small":
        rate(names)
    if which != "rate":
        small()
