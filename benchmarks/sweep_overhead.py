"""What a sweep costs beyond its computation.

Compares `sweep` with a hand-written `shard_map` program at the same batch size, on a
large space (the rate), for a closed form, a scan and a `while` loop; and looks at small
warm sweeps (the overhead of one call, next to one trace of the function). Run:
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


def median(fn, repeats):
    return statistics.median(spent(fn) for _ in range(repeats))


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


def small():
    """Twelve points, warm, each time with a new lambda."""
    space = ep.Space({"k": ep.Linspace(1, 9, 3), "c": ep.Linspace(0, 1, 4)})
    key = jr.key(0)
    five = {
        "mean": ep.Mean(),
        "var": ep.Var(),
        "least": ep.ArgMin(),
        "top": ep.TopK(3),
        "bins": ep.Histogram(np.linspace(0, 10, 6)),
    }

    def product(**options):
        return lambda: ep.sweep(lambda p: p["k"] * p["c"], space, **options)

    def noisy(**options):
        def run():
            fn = lambda p, key: p["k"] * p["c"] + jr.normal(key)  # noqa: E731
            return ep.sweep(fn, space, key=key, **options)

        return run

    cases = {
        "plain": product(),
        "key": noisy(),
        "order_by": product(order_by=np.arange(12.0)),
        "reduce, Mean": product(reduce=ep.Mean()),
        "reduce, Mean, key": noisy(reduce=ep.Mean()),
        "reduce, five": product(reduce=five),
    }
    struct = jax.eval_shape(space.point, 0)
    keys = jax.eval_shape(lambda: key)
    traces = {
        False: lambda: jax.make_jaxpr(lambda p: p["k"] * p["c"])(struct),
        True: lambda: jax.make_jaxpr(lambda p, key: p["k"] * p["c"] + jr.normal(key))(
            struct, keys
        ),
    }
    print(f"{space.size} points, warm{'':10s} sweep  one trace  our own")
    for name, run in cases.items():
        run()
        trace = median(traces["key" in name], 300)
        total = median(run, 300)
        own = total - trace
        print(
            f"{name:20s}{total * 1e3:9.2f} ms{trace * 1e3:8.2f} ms{own * 1e3:6.2f} ms",
            flush=True,
        )


if __name__ == "__main__":
    print(f"jax {jax.__version__}, Python {sys.version.split()[0]}")
    which, *names = sys.argv[1:] or [""]
    if which != "small":
        rate(names)
    if which != "rate":
        small()
