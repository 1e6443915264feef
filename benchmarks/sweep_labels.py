"""What do `to_xarray` and `to_pandas` cost beside the cheapest sweep?

A closed form on a grid of 10,000 points. The bar is 0.7 of the sweep for `to_xarray`.
"""

import jax.numpy as jnp

import eqx_pipe as ep

from ._timing import ratio

DEVICES = "all"
ROUNDS = 20
QUICK = {"side": 10}
BAR = 0.7


def damped(p):
    return jnp.exp(-p["rate"] * p["time"]) * jnp.cos(p["time"])


def main(run, *, side=100):
    space = {"rate": ep.Geomspace(0.01, 1, side), "time": ep.Linspace(0, 10, side)}
    result = ep.sweep(damped, space)
    sides = {
        "sweep": lambda: ep.sweep(damped, space).values,
        "to_xarray": lambda: len(result.to_xarray()),
        "to_pandas": lambda: len(result.to_pandas()),
    }
    times = run.compare(f"{side**2:,} points", sides, to="sweep")
    run.bar("to_xarray over sweep", ratio(times, "to_xarray", "sweep"), BAR)
