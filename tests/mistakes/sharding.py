"""Logical axes, placement, stages on meshes."""

import jax
import jax.numpy as jnp
from equinox import nn
from jax import ShapeDtypeStruct as Struct
from jax.experimental.sparse import BCOO
from jax.numpy import sin
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep
from eqx_pipe.sharding import AxisRules, init_sharded, pipelined, shard

from .common import key, linear, mesh, ones, stack


def row(n):
    return jax.make_mesh((n,), ("stages",), axis_types=(AxisType.Auto,))


def parallelize(**changes):
    settings = {"init_params": linear, "initial_batch": ones(8, 3)} | changes
    return ep.sharding.parallelize(settings.pop("fun", lambda m, x: 0.0), **settings)


def constrain(x, *names):
    with AxisRules({"a": "data", "b": "model", "c": "nope"}).on(mesh()):
        ep.sharding.constrain(x, *names)


RULES = {
    TypeError: {"A pair is a logical n": lambda: AxisRules([("a",)])},
    ValueError: {
        "`batch`": lambda: AxisRules({"batch": "x"}).spec("bach"),
        "`x` is taken by `a`.*another name": lambda: AxisRules({"a": "x"}).spec(
            "a", "a"
        ),
        r"add the pair `\('b', None\)": lambda: AxisRules({"a": "x", "b": "x"}).spec(
            "b", "a"
        ),
        "`jnp.pad` pads": lambda: constrain(ones(7, 4), "a", "b"),
        "one name per axis": lambda: constrain(ones(8, 4), "a"),
        "add the pair.*names or the rules": lambda: constrain(ones(8, 4), "a", "d"),
        "no axis `nope`.*names or the rules": lambda: constrain(ones(8, 4), "c", None),
    },
}

SHARDING = {
    ValueError: {
        "4 or 8.*pads an arr": lambda: shard(ones(7), mesh(), P("data")),
        "mean `model`": lambda: shard(ones(8), mesh(), P("modl")),
        "Change the specs": lambda: shard(ones(8), mesh(), P(None, "data")),
        "Did you mean `abc`": lambda: shard(
            {"abc": ones(8)}, mesh(), {"abd": P("data")}
        ),
        "the specs or the sizes": lambda: init_sharded(
            linear, key(), mesh(), P("model")
        ),
        "4 or 8.*the specs or the": lambda: shard(ones(7), mesh(), P("data")),
        "Call it outside; .*sharding.pipelined`": lambda: jax.jit(
            lambda x: ep.sharding.on(mesh(), sin)(x)
        )(ones(3)),
        "or one batch": lambda: parallelize(initial_batch=None),
        "Call `get_input_batch` once before `init_params`": lambda: parallelize(
            fun=lambda m, x: jnp.sum(ep.sharding.constrain(x, "batch", None)),
            initial_batch=None,
            get_input_batch=lambda a, b: ones(8, 3),
            mesh=mesh(),
            rules={"batch": "data"},
        )[1](key()),
    },
    ep.StructureError: {
        "a mapping from patterns": lambda: shard({"a": ones(8)}, mesh(), [P("data")]),
    },
    TypeError: {
        "`eqx_pipe.sharding.init_sharded`": lambda: shard(
            Struct((8,), jnp.float32), mesh(), None
        ),
        r"jax.random.key\(seed": lambda: init_sharded(linear, None, mesh(), None),
    },
}

PIPELINED = {
    TypeError: {
        "a sparse BCOO.*make it dense.": lambda: pipelined(stack(2), row(2), 2)(
            BCOO.fromdense(ones(4, 4))
        ),
    },
    ValueError: {
        "return the whole mapping": lambda: pipelined(
            ep.repeat(lambda k: ep.feed(sin, "x"), 2, key=key(), broadcast="by"),
            row(2),
            2,
        ),
        "4 or 8": lambda: pipelined(stack(6), row(4), 2),
        "Known names: `data`, `model`": lambda: pipelined(stack(2), mesh(), 2),
        "sizes that do: 4 or 8": lambda: pipelined(stack(2), row(2), 4)(ones(6, 4)),
        "belong in the stages": lambda: pipelined(stack(2), row(2), 4)(ones()),
        "`equinox.nn.GroupNorm`": lambda: pipelined(
            stack(2, lambda k: nn.BatchNorm(4, "b", mode="batch")), row(2), 2
        ),
    },
    ep.StructureError: {
        "Return the structure, shapes and dtypes": lambda: pipelined(
            stack(2, lambda k: nn.Lambda(lambda x: x[:1])), row(2), 2
        )(ones(4, 4)),
    },
}
