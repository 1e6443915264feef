"""Ray: `python with_ray.py runs.zarr`, in a cluster or on one machine."""

import sys

import jax.numpy as jnp
import ray

import eqx_pipe as ep


class Executor:
    """The tasks of Ray as an executor."""

    def submit(self, fn, *args):
        return ray.remote(fn).remote(*args).future()


def model(p):
    return {"y": jnp.sin(p["x"]) * p["scale"]}


space = {"x": ep.Linspace(0, 3, 500), "scale": ep.Values([1.0, 2.0])}

if __name__ == "__main__":
    ray.init(include_dashboard=False)
    result = ep.sweep(model, space, store=sys.argv[1], executor=Executor())
    print(f"{result.ok.sum()} of {len(result)} points")
