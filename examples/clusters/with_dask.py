"""Dask: `python with_dask.py runs.zarr tcp://scheduler:8786`.

Without an address it starts two workers on this machine. Workers that see the store
write to it.
"""

import sys

import jax.numpy as jnp
from dask.distributed import Client

import eqx_pipe as ep


def model(p):
    return {"y": jnp.sin(p["x"]) * p["scale"]}


space = {"x": ep.Linspace(0, 3, 500), "scale": ep.Values([1.0, 2.0])}

if __name__ == "__main__":
    path, *address = sys.argv[1:]
    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with Client(*address) if address else Client(**local) as client:
        pool = client.get_executor()
        result = ep.sweep(model, space, store=path, executor=pool, timeout=600)
    print(f"{result.ok.sum()} of {len(result)} points")
