"""What a reduced sweep of a cheap function costs: time, memory, accuracy.

Each number of points runs in a process of its own, so that its peak memory is its own.
The function maps the index of a point to a float32 whose mean, variance and sum are
known. Run: `python benchmarks/sweep_reduce.py [points ...]`.
"""

import os

os.environ.setdefault(
    "XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}"
)

import resource
import subprocess
import sys
import time


def one(size):
    import jax.numpy as jnp

    import eqx_pipe as ep

    # Each of 1000 values comes up equally often, in an order that looks random.
    space = {"slow": ep.Values(jnp.arange(size // 1000)), "k": ep.Values(range(1000))}
    reducers = {
        "mean": ep.Mean(by="x"),
        "var": ep.Var(by="x"),
        "sum": ep.Sum(by="x"),
        "count": ep.Sum(by="one"),
        "best": ep.ArgMax(by="x"),
    }

    def fn(point):
        k = (point["k"] * 617 + point["slow"]) % 1000
        return {"x": 100 + k.astype(jnp.float32), "one": k >= 0}

    start = time.perf_counter()
    ep.sweep(fn, space, reduce=reducers)
    first = time.perf_counter() - start
    start = time.perf_counter()
    result = ep.sweep(fn, space, reduce=reducers)
    second = time.perf_counter() - start
    start = time.perf_counter()
    ep.sweep(fn, space, reduce=ep.Mean(by="x"))
    mean = time.perf_counter() - start
    values = result.values
    assert values["count"] == size
    exact = {"mean": 599.5, "var": (1000**2 - 1) / 12, "sum": 599.5 * size}
    wrong = {k: f"{abs(float(values[k]) / v - 1):.1e}" for k, v in exact.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{size:>13,} points: first {first:.2f} s, again {second:.2f} s, "
        f"mean alone, with compiling, {mean:.2f} s; peak {peak:.0f} MiB; off by {wrong}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(int(sys.argv[2]))
    else:
        for size in sys.argv[1:] or ["1000000", "100000000"]:
            subprocess.run([sys.executable, __file__, "--one", size], check=True)
