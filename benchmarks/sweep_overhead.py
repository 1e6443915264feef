"""What a sweep costs beyond its computation.

Compares `sweep` with a hand-written `shard_map` program at the same batch size, on a
large space of a loop (the rate), and on a small warm one (the overhead of one call,
next to one trace of the function). Run: `python benchmarks/sweep_overhead.py`.
"""

import os

os.environ.setdefault(
    "XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}"
)

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep


def model(point):
    """A hundred steps of a damped oscillator."""

    def step(state, _):
        x, v = state
        a = -point["k"] * x - point["c"] * v
        return (x + 0.01 * v, v + 0.01 * a), None

    (x, _), _ = jax.lax.scan(step, (jnp.float32(1), jnp.float32(0)), None, 100)
    return x


def median(fn, repeats):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def by_hand(k, c, batch):
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


def main():
    side, batch = 1024, 128
    space = ep.Space({"k": ep.Linspace(1, 9, side), "c": ep.Linspace(0, 1, side)})
    k, c = jnp.linspace(1, 9, side), jnp.linspace(0, 1, side)
    hand = by_hand(k, c, batch)
    ours = lambda: ep.sweep(model, space, batch_size=batch).values  # noqa: E731
    np.testing.assert_allclose(hand(), ours(), rtol=1e-4, atol=1e-5)
    pairs = [(median(hand, 1), median(ours, 1)) for _ in range(11)]
    times = [statistics.median(column) for column in zip(*pairs, strict=True)]
    print(f"{side**2:,} points, batch size {batch}, {jax.device_count()} devices")
    print(f"  by hand {times[0] * 1e3:.1f} ms, sweep {times[1] * 1e3:.1f} ms", end="")
    print(f", ratio {times[1] / times[0]:.3f}")

    small = ep.Space({"k": ep.Linspace(1, 9, 3), "c": ep.Linspace(0, 1, 4)})
    fresh = lambda: ep.sweep(lambda p: p["k"] * p["c"], small)  # noqa: E731
    fresh()
    total = median(fresh, 200)
    struct = jax.eval_shape(small.point, 0)
    one = lambda: jax.make_jaxpr(lambda p: p["k"] * p["c"])(struct)  # noqa: E731
    trace = median(one, 200)
    print(f"12 points, warm: {total * 1e3:.2f} ms, of which one trace of the function")
    print(f"  {trace * 1e3:.2f} ms, so {(total - trace) * 1e3:.2f} ms of our own")


if __name__ == "__main__":
    main()
