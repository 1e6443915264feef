"""How long `to_xarray` and `to_pandas` take beside the sweep that they label.

Run as `python benchmarks/sweep_labels.py [repeats]`. A closed form on a grid of 10,000
points, the cheapest sweep there is: swept, labelled and made a table in turn, so that a
busy machine harms all alike. Printed: the median times, and the medians of the ratios
to the sweep of the same turn. Fails if `to_xarray` takes more than 0.7 of the sweep.
"""

import statistics
import sys
import time

import jax
import jax.numpy as jnp

import eqx_pipe as ep

LIMIT = 0.7


def damped(p):
    return jnp.exp(-p["rate"] * p["time"]) * jnp.cos(p["time"])


def milliseconds(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def main(repeats):
    ep.use_cpu_devices()
    space = {"rate": ep.Geomspace(0.01, 1, 100), "time": ep.Linspace(0, 10, 100)}
    result = ep.sweep(damped, space)
    calls = {
        "sweep": lambda: ep.sweep(damped, space),
        "to_xarray": result.to_xarray,
        "to_pandas": result.to_pandas,
    }
    for call in calls.values():
        call()
    times = [
        {name: milliseconds(call) for name, call in calls.items()}
        for _ in range(repeats)
    ]
    print(f"jax {jax.__version__}, {len(result)} points, median of {repeats}")
    ratios = {}
    for name in calls:
        median = statistics.median(turn[name] for turn in times)
        ratios[name] = statistics.median(turn[name] / turn["sweep"] for turn in times)
        print(f"{name:<10} {median:6.2f} ms  {ratios[name]:.2f} of the sweep")
    if ratios["to_xarray"] > LIMIT:
        sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
