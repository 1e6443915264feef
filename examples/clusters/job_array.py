"""A job array: `sbatch job_array.sh`. Each task computes its share of the points.

When all tasks have ended, `python job_array.py runs.zarr` computes what is missing, if
anything is, and has the whole result.
"""

import sys

import jax.numpy as jnp

import eqx_pipe as ep

ep.use_cpu_devices()


def model(p):
    return {"y": jnp.sin(p["x"]) * p["scale"]}


space = {"x": ep.Linspace(0, 3, 500), "scale": ep.Values([1.0, 2.0])}
result = ep.sweep(model, space, store=sys.argv[1], shard="auto")
print(f"{result.ok.sum()} of {len(result)} points")
