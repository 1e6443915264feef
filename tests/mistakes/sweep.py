"""`sweep`, `vmap_space`, `use_cpu_devices`."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.numpy import sin
from support.executors import Plain

import eqx_pipe as ep
from eqx_pipe.reduce import Mean

from .common import ones

DEFAULT = object()


@dataclasses.dataclass
class Fit:
    loss: object


def sweep(fn=sin, space=DEFAULT, **settings):
    return ep.sweep(fn, ep.Linspace(0, 1, 3) if space is DEFAULT else space, **settings)


def vmap_space(fn=sin, space=DEFAULT, **settings):
    space = ep.Linspace(0, 1, 3) if space is DEFAULT else space
    return ep.vmap_space(fn, space, **settings)


def curve(output_coords):
    def fn(p):
        return {"u": p["x"] * ones(3), "w": p["x"] * ones(2, 3)}

    return sweep(fn, {"x": ep.Linspace(0, 1, 3)}, output_coords=output_coords)


def by_hand_steps():
    with jax.disable_jit():
        sweep(count_steps=True)


def again(*args, fn=lambda p: sin(p["x"]), **settings):
    """Call a sweeper."""
    return ep.sweeper(fn, {"x": ep.Linspace(0, 1, 3)})(*args, **settings)


SWEEPER = {
    TypeError: {
        "Use `eqx_pipe.vmap_space`": lambda: jax.jit(
            lambda x: again({"x": ep.Values(x)}).values
        )(ones(2))
    },
    ValueError: {
        "`auto`": lambda: ep.sweeper(sin, ep.Values([1.0]), batch_size="most")
    },
}


def plan(fn=sin, **settings):
    return ep.plan(fn, ep.Linspace(0, 1, 3), **settings)


SWEEP = {
    ValueError: {
        "the path `a.b`. Rename one of the dict keys": lambda: sweep(
            lambda x: {"a.b": x, "a": {"b": x}}
        ),
        "outputs have the path `value`": lambda: vmap_space(
            lambda x: {"value": x, "": x}
        ),
        "two reducers have the path `a.b`": lambda: sweep(
            reduce={"a.b": Mean(), "a": {"b": Mean()}}
        ),
        "two outputs have the path `a.b.c`": lambda: sweep(
            lambda p: {"b.c": p["x"]},
            {"x": ep.Linspace(0, 1, 3), "s": ep.Seeds(2)},
            reduce={
                "a": Mean(over="s"),
                "a.b": Mean(lambda y: {"c": y["b.c"]}, over="s"),
            },
        ).to_xarray(),
        "same path, `store=": lambda: plan(shard=(0, 2)),
        "index < count, or 'auto'": lambda: sweep(store="x", shard=(2, 2)),
        "`auto`": lambda: sweep(batch_size="atuo"),
        "names 'v'. Known names: `u`": lambda: sweep(
            lambda x: {"u": x * ones(3)},
            reduce=Mean(),
            output_coords={"v": {"q": None}},
        ),
        r"`ep.sweep\(fn, space\[:1000\]": lambda: sweep(
            count_steps=True, reduce=Mean()
        ),
        "plain loop, for debugging: leave it out": by_hand_steps,
        r"3,725 GiB, .*`reduce=`, .*`store=": lambda: sweep(
            lambda p: p[0], [ep.Linspace(0, 1, 10**6)] * 2
        ),
        "store='runs.zarr'": lambda: sweep(shard=(0, 2)),
        "path of the store": lambda: sweep(resume="force"),
        "keep the values": lambda: sweep(resume="failed", store="x", reduce=Mean()),
        "one number for each po": lambda: sweep(order_by=[1.0]),
        "`order_by` is 3.0": lambda: sweep(order_by=3.0),
        "`order_by` gives .*tuple": lambda: sweep(order_by=lambda x: (x, x)),
        "gives float32.3, 2.": lambda: sweep(order_by=lambda x: jnp.stack([x, x])),
        "uses all of its own devices": lambda: sweep(
            executor=Plain(),
            mesh=jax.make_mesh((1,), ("x",), devices=jax.devices()[:1]),
        ),
        "give at most": lambda: sweep(
            space=ep.Linspace(0, 1, 2**31 - 1), batch_size=2**31 - 1
        ),
        r"take a slice, `space\[a:b\]`": lambda: vmap_space(
            space=[ep.Linspace(0, 1, 2**31 - 1), ep.Values([1, 2])]
        ),
    },
    TypeError: {
        r"class .*`submit\(fn, \*args\)`": lambda: sweep(executor=Plain),
        "plan.*`return` missing": lambda: plan(lambda x: None),
        "`.a`. .*leave other": lambda: sweep(lambda x: {"a": "no"}),
        "None .NoneType.*`return` missing": lambda: sweep(order_by=lambda x: None),
        "Is its `return` missing": lambda: sweep(lambda x: None, reduce=Mean()),
        "return a number in their place": lambda: sweep(lambda x: [sin]),
        "Use `eqx_pipe.vmap_space`": lambda: jax.eval_shape(
            lambda w: sweep(lambda x: w * x).values, ones()
        ),
        r"`lambda p: fn\(\*\*p\)`": lambda: sweep(lambda rate, time: rate),
        r"`lambda p, key: fn\(\*\*p, key=key\)`": lambda: sweep(
            lambda p, n, key: p, key=jr.key(0)
        ),
        r"`lambda p, key: fn\(p=p, rng=key\)`.*`key=jax": lambda: sweep(
            lambda p, rng: jr.normal(rng)
        ),
        r"fn\(x=p, seed=jax.random.bits\(key\)\)": lambda: sweep(
            lambda x, seed: jr.normal(jr.key(seed)), key=jr.key(0)
        ),
        r"fn\(\*\*p, rng_key=key\)": lambda: sweep(
            lambda x, seed, rng_key: x, {"x": ep.Values([1.0]), "seed": 0}
        ),
        r"`x`, `n`, but.*fn\(\*\*p\)": lambda: sweep(lambda x, *, n: x),
        r"keyword arguments alone.*fn\(\*\*p\)": lambda: sweep(lambda **p: p["x"]),
        r"`jax.tree_util.register_dataclass\(Fit\)`": lambda: sweep(lambda x: Fit(x)),
    },
    ep.StructureError: {
        "Return the same structure": lambda: sweep(
            lambda p: jnp.zeros(p), ep.Static([1, 2])
        )
    },
}

CURVES = {
    TypeError: {
        "a dict from outputs to dicts": lambda: curve({"u": ["step"]}),
        "or None for a name alone": lambda: curve({"u": {"step": 4}}),
        "an array with a number or text": lambda: curve(
            {"u": {"a": "xyz"}, "w": {"b": None, "a": [1, 2, 3]}}
        ),
    },
    ValueError: {
        "names 'v'. Known names: `u`, `w`": lambda: curve({"v": {"step": None}}),
        r"\(2, 3\). Name all dims in order": lambda: curve({"w": {"step": [1, 2]}}),
        r"sizes \[2\].*a value for each": lambda: curve({"u": {"step": [1, 2]}}),
        "the space has this name too": lambda: curve({"u": {"x": None}}),
        "dim 'a' of": lambda: curve({"w": {"a": None, "b": None}, "u": {"a": None}}),
        "share its coordinates: rename": lambda: curve(
            {"u": {"a": [1, 2, 4]}, "w": {"b": None, "a": [1, 2, 3]}}
        ),
    },
}
