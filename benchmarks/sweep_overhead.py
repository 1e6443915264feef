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
import jax.random as jr
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

from ._sides import SIDES, Case
from ._timing import beyond, ratio

DEVICES = "all"
ROUNDS = 300
BAR = 3e-4
QUICK = {"side": 10, "only": ("plain", "labels")}
EDGES = np.linspace(0, 10, 6)


def product_of(p):
    return p["k"] * p["c"]


def noisy_of(p, key):
    return product_of(p) + jr.normal(key)


def five_of(x):
    at = jnp.argmin(x)
    bins = jnp.histogram(x, EDGES)[0]
    return x.mean(), x.var(ddof=1), (at, x[at]), jax.lax.top_k(x, 3), bins


FIVE = {
    "mean": ep.reduce.Mean(),
    "var": ep.reduce.Var(),
    "least": ep.reduce.ArgMin(),
    "top": ep.reduce.TopK(3),
    "bins": ep.reduce.Histogram(EDGES),
}


def hand_written(space, key, reduced):
    """What a small sweep computes as one warm program on one device."""
    points = [space.point(i) for i in range(space.size)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *points)

    @jax.jit
    def run(points, key):
        if key is None:
            return reduced(jax.vmap(product_of)(points))
        keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(space.size))
        return reduced(jax.vmap(noisy_of)(points, keys))

    return lambda: jax.device_get(run(stacked, key))


def on_all_devices(space):
    """The plain case on every device: what is put there before, and got from there."""
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
        times = run.compare(case, sides, to="sweep", rounds=20)
        run.bar("to_xarray over sweep", ratio(times, "to_xarray", "sweep"), 0.7)


def main(run, *, points=20, side=100):
    labels(run, side)
    axes = {"c": (0.0, 1.0, 4), "k": (1.0, 9.0, points // 4)}

    def space_to(end):
        ends = axes | {"c": (0.0, end, 4)}
        return ep.Space({name: ep.Linspace(*axis) for name, axis in ends.items()})

    space = space_to(1.0)
    numbers = it.count(1.0)
    key = jr.key(0)
    same = lambda x: x  # noqa: E731
    mean = lambda x: x.mean()  # noqa: E731
    cases = {
        "plain": (same, {}),
        "key": (same, {"key": key}),
        "order_by": (same, {"order_by": np.arange(float(space.size))}),
        "reduce, Mean": (mean, {"reduce": ep.reduce.Mean()}),
        "reduce, Mean, key": (mean, {"reduce": ep.reduce.Mean(), "key": key}),
        "reduce, five": (five_of, {"reduce": FIVE}),
    }
    for name, (reduced, options) in cases.items():
        for case in run.chosen([f"{name}, {space.size}"]):
            own = options.get("key")
            draws, fn = own is not None, noisy_of if own is not None else product_of
            args = [jax.eval_shape(space.point, 0)]
            args += [jax.eval_shape(lambda: key)] if draws else []

            def fresh(fn=fn, draws=draws):
                return (lambda p, key: fn(p, key)) if draws else lambda p: fn(p)

            sides = {
                "by hand": hand_written(space, own, reduced),
                "sweep": lambda f=fresh, o=options: ep.sweep(f(), space, **o).values,
                "one trace": lambda f=fresh, a=args: jax.make_jaxpr(f())(*a) and None,
            }
            if "order_by" not in options:
                again = ep.sweeper(fn, space, **options)
                sides["sweeper"] = lambda run=again: run(space).values
                sides["sweeper, new space"] = lambda run=again: (
                    run(space_to(next(numbers))).values
                )
            if name == "plain":
                sides["by hand, all devices"] = on_all_devices(space)
            if name == "plain" and run.has("tvboptim"):
                make = SIDES["tvboptim"].make
                sides["tvboptim"] = make(Case("plain", product_of, axes), 16)

            def more(name, times):
                return {"beyond": beyond(times, name, "by hand")}

            times = run.compare(case, sides, "by hand", columns=more)
            if name == "plain":
                found = beyond(times, "sweeper", "by hand, all devices")
                run.bar("seconds of the sweeper beyond its computation", found, BAR)
