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


def main(run, *, side=64):
    models = (_models.closed_form, _models.runge_kutta, _models.adaptive)
    devices = jax.device_count()
    mesh = jax.make_mesh((devices,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    key = jr.key(0)
    a = np.linspace(0.01, 1, side, dtype=np.float32)
    b = np.linspace(0.1, 0.9, side, dtype=np.float32)
    grid = [each.ravel() for each in np.meshgrid(a, b, indexing="ij")]
    space = {"a": ep.Linspace(0.01, 1, side), "b": ep.Linspace(0.1, 0.9, side)}
    for model in models:
        for case in run.chosen([model.__name__]):

            def anew(model=model):
                factor = 1 + 1e-6 * next(number)
                return lambda p: model({"a": p["a"] * factor, "b": p["b"]}, key)

            size = ep.sweep(anew(), space, progress=False).batch_size
            each = -(-side * side // devices)

            def by_hand(anew=anew):
                fn = anew()
                points = jax.shard_map(
                    jax.vmap(lambda a, b: fn({"a": a, "b": b})),
                    mesh=mesh,
                    in_specs=P("d"),
                    out_specs=P("d"),
                    check_vma=False,
                )
                spread = NamedSharding(mesh, P("d"))
                return jax.device_get(jax.jit(points)(*jax.device_put(grid, spread)))

            def in_batches(anew=anew, size=size, each=each):
                fn = anew()
                out = jax.eval_shape(fn, {"a": a[0], "b": b[0]})

                def device(count, a, b):
                    def batch(k, filled):
                        at = [
                            jax.lax.dynamic_slice_in_dim(x, k * size, size)
                            for x in (a, b)
                        ]
                        rows = jax.vmap(lambda a, b: fn({"a": a, "b": b}))(*at)
                        return jax.lax.dynamic_update_slice_in_dim(
                            filled, rows, k * size, 0
                        )

                    empty = jnp.zeros((each, *out.shape), out.dtype)
                    return jax.lax.fori_loop(0, count, batch, empty)

                mapped = jax.shard_map(
                    device,
                    mesh=mesh,
                    in_specs=(P(), P("d"), P("d")),
                    out_specs=P("d"),
                    check_vma=False,
                )
                spread = NamedSharding(mesh, P("d"))
                args = jax.device_put(grid, spread)
                return jax.device_get(jax.jit(mapped)(each // size, *args))

            sides = {
                "by hand": by_hand,
                "sweep": lambda anew=anew: (
                    ep.sweep(anew(), space, progress=False).values
                ),
            }
            if each % size == 0:
                sides["by hand, in batches"] = in_batches
            times = run.compare(case, sides, "by hand")
            run.bar(
                f"{case}: first call over by hand",
                ratio(times, "sweep", "by hand"),
                BAR,
            )
