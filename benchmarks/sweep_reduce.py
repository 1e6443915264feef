"""What does a reduced sweep of up to 10^9 points take in time and memory, how far off?

Each number of points in a process of its own, whose peak memory is shown. The function
maps the index of a point to a float32 whose mean, variance and sum are known. "First"
and "again" reduce by `Mean`, `Var`, two `Sum`s and an `ArgMax` at once. `--points`
takes other numbers.
"""

import time

import jax.numpy as jnp

import eqx_pipe as ep

from ._timing import in_own_process, seconds

QUICK = {"points": (100_000,)}


def one(size):
    """Return the times, and the errors of the answers."""
    ep.use_cpu_devices()
    # Each of 1000 values comes up equally often, in an order that looks random.
    space = {"slow": ep.Values(jnp.arange(size // 1000)), "k": ep.Values(range(1000))}
    reducers = {
        "mean": ep.reduce.Mean(by="x"),
        "var": ep.reduce.Var(by="x"),
        "sum": ep.reduce.Sum(by="x"),
        "count": ep.reduce.Sum(by="one"),
        "best": ep.reduce.ArgMax(by="x"),
    }

    def fn(point):
        k = (point["k"] * 617 + point["slow"]) % 1000
        return {"x": 100 + k.astype(jnp.float32), "one": k >= 0}

    def reduced():
        return ep.sweep(fn, space, reduce=reducers).values

    row = {f"time {n}": seconds(reduced, time.perf_counter) for n in ("first", "again")}
    values = reduced()
    assert values["count"] == size
    exact = {"mean": 599.5, "var": (1000**2 - 1) / 12, "sum": 599.5 * size}
    return row | {f"{k} off": abs(float(values[k]) / v - 1) for k, v in exact.items()}


def main(run, *, points=(1_000_000, 100_000_000)):
    for size in points:
        row, peak = in_own_process(one, size)
        run.row(case=f"{size:,} points", **row, peak_MiB=round(peak))
