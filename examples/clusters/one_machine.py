"""One machine: `python one_machine.py runs.zarr`.

Each process of the pool computes on its own devices. Without the pool, a sweep already
uses all devices of this machine; processes help if `fn` calls back to Python.
"""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import jax.numpy as jnp

import eqx_pipe as ep


def model(p):
    return {"y": jnp.sin(p["x"]) * p["scale"]}


space = {"x": ep.Linspace(0, 3, 500), "scale": ep.Values([1.0, 2.0])}

# JAX does not survive a fork, so processes are spawned, and each imports this file.
if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        result = ep.sweep(model, space, store=sys.argv[1], executor=pool)
    print(f"{result.ok.sum()} of {len(result)} points")
