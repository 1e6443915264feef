"""`jax.distributed`: `srun python with_jax.py`, or one process for each host.

Every process gets the whole result. Elsewhere than in Slurm, name the processes:
`python with_jax.py HOST:PORT COUNT INDEX`.
"""

import sys

import jax
import jax.numpy as jnp

import eqx_pipe as ep


def model(p):
    return {"y": jnp.sin(p["x"]) * p["scale"]}


if __name__ == "__main__":
    address, count, index = [*sys.argv[1:], None, None, None][:3]
    if address is None:
        jax.distributed.initialize()
    else:
        jax.distributed.initialize(address, int(count), int(index))
    # After `initialize`, since axes are arrays of JAX.
    space = {"x": ep.Linspace(0, 3, 500), "scale": ep.Values([1.0, 2.0])}
    mesh = jax.make_mesh((jax.device_count(),), ("points",))
    result = ep.sweep(model, space, mesh=mesh)
    print(f"{result.ok.sum()} of {len(result)} points")
