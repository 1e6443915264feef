"""What does the first call of a sweep take beside `jit(shard_map(vmap))` by hand?

Tracing, compiling and the first run, of another program in every round (a number in it
differs). By hand all points of a device are one batch. "In batches" is by hand, too: a
loop of a length that is data, over batches of the size of the sweep, each written into
the array of all values. That is the least that a sweep compiles, since what it computes
must depend neither on how many points there are nor on the devices.
"""

import itertools as it

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

from . import _models
from ._timing import ratio

DEVICES = "all"
ROUNDS = 20
QUICK = {"only": ("closed_form",), "side": 8}
BAR = 1.15
number = it.count(1)


def on_devices(device, grid, *counts):
    """Run a function on every device with its share of a grid, and fetch the values."""
    mesh = jax.make_mesh((jax.device_count(),), ("d",), (jax.sharding.AxisType.Auto,))
    program = jax.shard_map(
        device,
        mesh=mesh,
        in_specs=(*[P()] * len(counts), *[P("d")] * len(grid)),
        out_specs=P("d"),
        check_vma=False,
    )
    args = jax.device_put(grid, NamedSharding(mesh, P("d")))
    return jax.device_get(jax.jit(program)(*counts, *args))


def in_batches(fn, size):
    """Return the loop over batches of one device."""

    def device(count, *grid):
        def batch(k, filled):
            at = [jax.lax.dynamic_slice_in_dim(x, k * size, size) for x in grid]
            rows = jax.vmap(fn)(*at)
            return jax.lax.dynamic_update_slice_in_dim(filled, rows, k * size, 0)

        out = jax.eval_shape(fn, *(x[0] for x in grid))
        empty = jnp.zeros((len(grid[0]), *out.shape), out.dtype)
        return jax.lax.fori_loop(0, count, batch, empty)

    return device


def main(run, *, side=64):
    models = (_models.closed_form, _models.runge_kutta, _models.adaptive)
    key = jr.key(0)
    ends = {"a": (0.01, 1, side), "b": (0.1, 0.9, side)}
    space = ep.Space({name: ep.Linspace(*axis) for name, axis in ends.items()})
    points = [np.linspace(*axis, dtype=np.float32) for axis in ends.values()]
    grid = [each.ravel() for each in np.meshgrid(*points, indexing="ij")]
    each = -(-space.size // jax.device_count())
    for model in models:
        for case in run.chosen([model.__name__]):

            def anew(model=model):
                factor = 1 + 1e-6 * next(number)
                return lambda a, b: model({"a": a * factor, "b": b}, key)

            def swept(anew=anew):
                fn = anew()
                return ep.sweep(lambda p: fn(**p), space, progress=False)

            size = swept().batch_size
            sides = {
                "by hand": lambda anew=anew: on_devices(jax.vmap(anew()), grid),
                "sweep": lambda swept=swept: swept().values,
            }
            if each % size == 0:
                sides["by hand, in batches"] = lambda anew=anew, size=size: on_devices(
                    in_batches(anew(), size), grid, each // size
                )
            times = run.compare(case, sides, "by hand")
            over = ratio(times, "sweep", "by hand")
            run.bar(f"{case}: first call over by hand", over, BAR)
