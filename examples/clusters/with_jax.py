"""`jax.distributed`: `srun python with_jax.py STORE`, or one process for each host.

Every process loads the whole result from the store, which all of them see. Elsewhere
than in Slurm, name the processes: `python with_jax.py STORE HOST:PORT COUNT INDEX`.
"""

import sys

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

import eqx_pipe as ep


def model(p):
    return {"y": jnp.sin(p["x"]) * p["scale"]}


if __name__ == "__main__":
    store, address, count, index = [*sys.argv[1:], None, None, None][:4]
    if address is None:
        jax.distributed.initialize()
    else:
        jax.distributed.initialize(address, int(count), int(index))
    # After `initialize`, since axes are arrays of JAX.
    space = {"x": ep.Linspace(0, 3, 500), "scale": ep.Values([1.0, 2.0])}
    ep.sweep(model, space, store=store, shard="auto")
    multihost_utils.sync_global_devices("all shares are stored")
    result = ep.SweepResult.load(store)
    print(f"{result.ok.sum()} of {len(result)} points")
