"""What does a sweep of a few points cost beyond its computation?

Warm: `sweep` with a new lambda each time, a `sweeper` and tvboptim's executor, both
made before, beside the same computation by hand as one compiled program; and one trace
of the function, which of them `sweep` alone needs at every call. "New space" is made
and swept, as in the rounds of a search; the other sides get the same one again, and
tvboptim's executor cannot be given another. "Beyond" is what a side takes more than the
program by hand in the same round. A program for several devices takes longer to call
than one for one: the plain case has that by hand, too, and the bar, 0.3 ms for the
sweeper, is held to it. Of many points see `sweep_peers`: "sweep, same" and "shard_map".

"Labels" compares `to_xarray` and `to_pandas` of 10,000 points with a sweep of a
formula; the bar is 0.7 of the sweep for `to_xarray`.
"""

import itertools as it

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

from ._sides import SIDES, Case
from ._timing import beyond, ratio

DEVICES = "all"
ROUNDS = 300
BAR = 3e-4
QUICK = {"side": 10, "only": ("plain", "labels")}


def product_of(p):
    return p["k"] * p["c"]


def hand_written(space, reduced):
    """Return what a small sweep computes as one warm program on one device."""
    points = [space.point(i) for i in range(space.size)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *points)
    run = jax.jit(lambda points: reduced(jax.vmap(product_of)(points)))
    return lambda: jax.device_get(run(stacked))


def on_all_devices(space):
    """Return the plain case on every device: put there before, fetched from there."""
    spread = NamedSharding(jax.make_mesh((jax.device_count(),), ("d",)), P("d"))
    size = -(-space.size // jax.device_count()) * jax.device_count()
    points = [space.point(min(i, space.size - 1)) for i in range(size)]
    stacked = jax.tree.map(lambda *x: jax.device_put(jnp.stack(x), spread), *points)
    run = jax.jit(jax.vmap(product_of))
    return lambda: jax.device_get(run(stacked))


def labels(run, side):
    def damped(p):
        return jnp.exp(-p["rate"] * p["time"]) * jnp.cos(p["time"])

    space = {"rate": ep.Geomspace(0.01, 1, side), "time": ep.Linspace(0, 10, side)}
    result = ep.sweep(damped, space)
    sides = {
        "sweep": lambda: ep.sweep(damped, space).values,
        "to_xarray": lambda: len(result.to_xarray()),
        "to_pandas": lambda: len(result.to_pandas()),
    }
    for case in run.chosen(["labels"]):
        times = run.compare(case, sides, to="sweep")
        run.bar("to_xarray over sweep", ratio(times, "to_xarray", "sweep"), 0.7)


def axes_of(points, end=1.0):
    return {"c": (0.0, end, 4), "k": (1.0, 9.0, points // 4)}


def space_of(points, end=1.0):
    axes = axes_of(points, end).items()
    return ep.Space({name: ep.Linspace(*axis) for name, axis in axes})


def all_sides(run, points, reduced, options):
    space, ends = space_of(points), it.count(1.0)
    again = ep.sweeper(product_of, space, **options)
    point = jax.eval_shape(space.point, 0)
    sides = {
        "by hand": hand_written(space, reduced),
        "sweep": lambda: ep.sweep(lambda p: product_of(p), space, **options).values,
        "one trace": lambda: jax.make_jaxpr(lambda p: product_of(p))(point) and None,
        "sweeper": lambda: again(space).values,
        "sweeper, new space": lambda: again(space_of(points, next(ends))).values,
    }
    if not options:
        sides["by hand, all devices"] = on_all_devices(space)
        if run.has("tvboptim"):
            case = Case("plain", product_of, axes_of(points))
            sides["tvboptim"] = SIDES["tvboptim"].make(case, 16)
    return sides


def main(run, *, points=20, side=100):
    labels(run, side)
    cases = {
        f"plain, {points}": (lambda x: x, {}),
        f"reduce, Mean, {points}": (jnp.mean, {"reduce": ep.reduce.Mean()}),
    }
    for case in run.chosen(cases):

        def more(name, times):
            return {"beyond": beyond(times, name, "by hand")}

        sides = all_sides(run, points, *cases[case])
        times = run.compare(case, sides, "by hand", columns=more)
        if "by hand, all devices" in sides:
            found = beyond(times, "sweeper", "by hand, all devices")
            run.bar("seconds of the sweeper beyond its computation", found, BAR)
