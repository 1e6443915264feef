"""Arguments that each public function accepts."""

import functools as ft

import jax
import jax.numpy as jnp
import jax.random as jr
from jax import ShapeDtypeStruct as Struct
from jax.numpy import sin
from jaxtyping import Array, Float

import eqx_pipe as ep

from .common import key, linear, mesh, ones, stack

LINE = {"x": ep.Linspace(0, 1, 3)}
BOX = {"x": ep.Uniform(0, 1)}


def call(*args, **kwargs):
    return args, kwargs


def value(p):
    return p["x"]


def annotated(x: Float[Array, " n"]) -> Float[Array, " n"]:
    return x


def of_stages():
    pair = ep.chain(linear(key()), linear(key()))
    of_one = "batched chain frozen parallel precision residual weighted"
    return {
        **{name: call(sin) for name in of_one.split()},
        "at": call("a", sin),
        "cond": call(jnp.all, sin, sin),
        "ensemble": call(linear, 2, key=key()),
        "feed": call(sin, "x"),
        "gated": call(sin, gates=(jnp.all,)),
        "graph": call({"a": sin}, {"a": []}, "a"),
        "kernel": call(sin),
        "outputs": call(ep.chain(a=sin), "a"),
        "refill": call(ft.partial(jax.lax.while_loop, lambda c: c < 3, jnp.sin)),
        "repeat": call(linear, 2, key=key()),
        "scan": call(jnp.add, 0),
        "summary": call(sin, ones(3)),
        "switch": call(jnp.argmax, sin),
        "tied": call(pair, lambda p: p[0].weight, lambda p: p[1].weight),
        "trainable": call(linear(key()), "weight"),
    }


def of_axes():
    return {
        "Geomspace": call(1, 2, 3),
        "Linspace": call(0, 1, 3),
        "LogUniform": call(1, 2),
        "Mapped": call(sin, ep.Values([1])),
        "Random": call(jr.normal, 2),
        "Seeds": call(2),
        "Space": call(LINE),
        "Static": call([1]),
        "Uniform": call(0, 1),
        "Values": call([1]),
        "sobol": call(BOX, 2),
    }


def of_sweeps():
    of_nothing = "ArgMax ArgMin Max Mean Min Sum Var"
    design = ep.search.Design([[0.0]])
    training = ep.Training(lambda p: p["x"], lambda p, x: (x, None))
    return {
        "plan": call(value, LINE),
        "plan_train": call(training, LINE),
        "program": call(sin, ones(3)),
        "topology": call("h100"),
        "show": call(ep.sweep(value, LINE)),
        "sweep": call(value, LINE),
        "sweeper": call(value, LINE),
        "Training": call(sin, max),
        "train": call(training, LINE, 1),
        "use_cpu_devices": call(2),
        "vmap": call(sin, axis_size=2),
        "vmap_space": call(value, LINE),
        **{f"reduce.{name}": call() for name in of_nothing.split()},
        "search.Adaptive": call(),
        "reduce.Histogram": call([0, 1]),
        "reduce.Quantile": call(0.5),
        "reduce.Reducer": call(sin, max, max, sin),
        "reduce.TopK": call(1),
        "search.Design": call([[0.0]]),
        "search.Evosax": call(print),
        "search.Optuna": call(print),
        "search.Halving": call("value"),
        "search.PBT": call("value", ["x"]),
        "search.explore": call(value, BOX, method=design, rounds=1, num=1),
    }


def of_data_and_devices():
    source = ep.data.ArraySource(jnp.arange(5))
    loader = ep.data.Loader(source, batch_size=2, shuffle=False)
    cursor, stages = loader.init(key()), jax.make_mesh((2,), ("stages",))
    return {
        "data.ArraySource": call(jnp.arange(5)),
        "data.Loader": call(source, batch_size=2),
        "data.Loader.init": call(loader, key()),
        "data.Loader.next": call(loader, cursor),
        "data.Loader.scan": call(loader, max, 0.0, cursor, 1),
        "sharding.AxisRules": call({}),
        "sharding.constrain": call(ones(8)),
        "sharding.init_sharded": call(linear, key(), mesh(), None),
        "sharding.parallelize": call(sin, init_params=linear, initial_batch=ones(8, 3)),
        "sharding.pipelined": call(stack(2), stages, 2),
        "sharding.shard": call(ones(8), mesh(), None),
    }


def of_testing():
    loader = ep.data.Loader(jnp.arange(5), batch_size=2)
    return {
        "testing.arguments": call(annotated),
        "testing.arrays": call(Struct((), "f4")),
        "testing.assert_compiles": call(1),
        "testing.check_axis": call(ep.Values([1])),
        "testing.check_function": call(sin, ones(2)),
        "testing.check_loader": call(loader, key=key()),
        "testing.check_method": call(ep.search.Design([[0.0]]), value, BOX),
        "testing.check_reducer": call(ep.reduce.Mean(), ones(5)),
        "testing.from_jaxtyping": call(Float[Array, " n"]),
        "testing.given_typed": call(annotated),
    }


@ft.cache
def calls():
    """Return arguments for each public function and class, by its name."""
    kinds = of_stages, of_axes, of_sweeps, of_data_and_devices, of_testing
    return {name: call for kind in kinds for name, call in kind().items()}
