"""Logical axes, placement, stages on meshes, microbatches."""

import jax
import jax.numpy as jnp
import jax.random as jr
from equinox import nn
from jax import ShapeDtypeStruct as Struct
from jax.numpy import sin
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

from .common import key, linear, mesh, ones, stack


def row(n):
    return jax.make_mesh((n,), ("stages",), axis_types=(AxisType.Auto,))


def parallelize(**changes):
    settings = {"init_params": linear, "initial_batch": ones(8, 3)} | changes
    return ep.sharding.parallelize(settings.pop("fun", lambda m, x: 0.0), **settings)


def constrain(x, *names):
    with ep.sharding.AxisRules({"a": "data", "b": "model", "c": "nope"}).on(mesh()):
        ep.sharding.constrain(x, *names)


def rules(given):
    with ep.sharding.AxisRules(given).on(mesh()):
        pass


RULES = [
    ("3", lambda: ep.sharding.AxisRules(3), TypeError, '"batch", "data"'),
    (
        "half a pair",
        lambda: ep.sharding.AxisRules([("a",)]),
        TypeError,
        "A pair is a logical n",
    ),
    (
        "twice",
        lambda: ep.sharding.AxisRules({"a": ("x", "x")}),
        ValueError,
        "name it once",
    ),
    (
        "bach",
        lambda: ep.sharding.AxisRules({"batch": "x"}).spec("bach"),
        ValueError,
        "`batch`",
    ),
    (
        "a name twice",
        lambda: ep.sharding.AxisRules({"a": "x"}).spec("a", "a"),
        ValueError,
        "given 2 times.*Name one of these",
    ),
    (
        "taken",
        lambda: ep.sharding.AxisRules({"a": "x", "b": "x"}).spec("b", "a"),
        ValueError,
        r"`x` is taken by `a`. Add the pair `\('b', None\)",
    ),
    (
        "no mesh",
        lambda: ep.sharding.AxisRules({"a": "x"}).sharding(3, "a"),
        TypeError,
        "jax.make_mesh",
    ),
    ("no rules", lambda: rules(None), TypeError, "Give a mapping from logical names"),
    ("rules 3", lambda: rules(3), TypeError, "Give a mapping from logical names"),
    ("size 7", lambda: constrain(ones(7, 4), "a", "b"), ValueError, "sharding.pad_to"),
    ("too few", lambda: constrain(ones(8, 4), "a"), ValueError, "one name per axis"),
    (
        "no rule",
        lambda: constrain(ones(8, 4), "a", "d"),
        ValueError,
        "Add the pair.*names or the rules",
    ),
    (
        "no axis",
        lambda: constrain(ones(8, 4), "c", None),
        ValueError,
        "names or the rules",
    ),
]

SHARDING = [
    ("mesh 3", lambda: ep.sharding.shard(ones(8), 3, None), TypeError, "jax.make_mesh"),
    (
        "text",
        lambda: ep.sharding.shard(ones(8), mesh(), "data"),
        TypeError,
        "or None for a copy",
    ),
    (
        "rules",
        lambda: ep.sharding.shard(ones(8), mesh(), None, 3),
        TypeError,
        "Give a mapping",
    ),
    (
        "7",
        lambda: ep.sharding.shard(ones(7), mesh(), P("data")),
        ValueError,
        "4 or 8.*pads arr",
    ),
    (
        "modl",
        lambda: ep.sharding.shard(ones(8), mesh(), P("modl")),
        ValueError,
        "mean `model`",
    ),
    (
        "2 entries",
        lambda: ep.sharding.shard(ones(8), mesh(), P(None, "data")),
        ValueError,
        "Change the specs",
    ),
    (
        "other containers",
        lambda: ep.sharding.shard({"a": ones(8)}, mesh(), [P("data")]),
        ep.StructureError,
        "a mapping from patterns of paths",
    ),
    (
        "a pattern",
        lambda: ep.sharding.shard({"abc": ones(8)}, mesh(), {"abd": P("data")}),
        ValueError,
        "Did you mean `abc`",
    ),
    (
        "structs",
        lambda: ep.sharding.shard(Struct((8,), jnp.float32), mesh(), None),
        TypeError,
        "Give arrays; `eqx_pipe.sharding.init_sharded`",
    ),
    (
        "pad to nope",
        lambda: ep.sharding.pad_to(ones(8), mesh(), P("nope")),
        ValueError,
        "Known names: `data`, `model`",
    ),
    (
        "init 3",
        lambda: ep.sharding.init_sharded(3, key(), mesh(), None),
        TypeError,
        "A stage is a callable",
    ),
    (
        "None",
        lambda: ep.sharding.init_sharded(linear, None, mesh(), None),
        TypeError,
        r"jax.random.key\(seed",
    ),
    (
        "an rbg key",
        lambda: ep.sharding.init_sharded(linear, jr.key(0, impl="rbg"), mesh(), None),
        ValueError,
        "threefry2x32",
    ),
    (
        "a size that does not fit",
        lambda: ep.sharding.init_sharded(linear, key(), mesh(), P("model")),
        ValueError,
        "Change the specs or the sizes",
    ),
    (
        "shard_map 3",
        lambda: ep.sharding.shard_map(3, mesh(), None, None),
        TypeError,
        "A stage is a",
    ),
    (
        "no mesh",
        lambda: ep.sharding.shard_map(sin, 3, None, None),
        TypeError,
        "jax.make_mesh",
    ),
    (
        "an input of 7",
        lambda: ep.sharding.shard_map(sin, mesh(), P("data"), P("data"))(ones(7)),
        ValueError,
        "4 or 8.*Change the specs or the sizes",
    ),
    ("on 3", lambda: ep.sharding.on(3, sin), TypeError, "jax.make_mesh"),
    (
        "on stage 3",
        lambda: ep.sharding.on(mesh(), 3),
        TypeError,
        "A stage is a callable",
    ),
    (
        "on inside jit",
        lambda: jax.jit(lambda x: ep.sharding.on(mesh(), sin)(x))(ones(3)),
        ValueError,
        "Call it outside; .*use `eqx_pipe.sharding.pipelined`",
    ),
    ("no batch", lambda: parallelize(initial_batch=None), ValueError, "or one batch"),
    ("fun 3", lambda: parallelize(fun=3), TypeError, "A stage is a callable"),
    (
        "init before a batch",
        lambda: parallelize(
            fun=lambda m, x: jnp.sum(ep.sharding.constrain(x, "batch", None)),
            initial_batch=None,
            get_input_batch=lambda a, b: ones(8, 3),
            mesh=mesh(),
            rules={"batch": "data"},
        )[1](key()),
        ValueError,
        "Call `get_input_batch` once before `init_params`",
    ),
]

MICROBATCH = [
    (
        "3",
        lambda: ep.sharding.microbatch(3, size=2),
        TypeError,
        "A stage is a callable",
    ),
    (
        "size 0",
        lambda: ep.sharding.microbatch(sin, size=0),
        ValueError,
        "integer of at least 1",
    ),
    (
        "max",
        lambda: ep.sharding.microbatch(sin, size=2, reduce="max"),
        ValueError,
        "`sum`, `me",
    ),
    (
        "argnum",
        lambda: ep.sharding.microbatch(jnp.sum, size=2, argnum=1)(ones(4)),
        TypeError,
        "Give the batch by position, or another `argnum`",
    ),
    (
        "two sizes",
        lambda: ep.sharding.microbatch(lambda t: 0.0, size=2)(
            {"a": ones(3), "b": ones(4)}
        ),
        ValueError,
        "bind what is no batch with a lambda",
    ),
    (
        "no array",
        lambda: ep.sharding.microbatch(lambda t: 0.0, size=2)({"s": 3}),
        ValueError,
        "Give arrays of one batch size",
    ),
    (
        "a bool",
        lambda: ep.sharding.microbatch(lambda x: x.all(), size=2)(ones(4) > 0),
        ValueError,
        r"Return numbers; count with `\.astype\(int\)`",
    ),
    (
        "one value for each",
        lambda: ep.sharding.microbatch(sin, size=2)(ones(5)),
        ep.StructureError,
        "Return a sum or mean over the batch",
    ),
    (
        "no stack",
        lambda: ep.sharding.pipelined(ep.chain(), row(2), 2),
        TypeError,
        "pipe.repeat",
    ),
    (
        "no mesh",
        lambda: ep.sharding.pipelined(stack(2), 3, 2),
        TypeError,
        "jax.make_mesh",
    ),
    ("0", lambda: ep.sharding.pipelined(stack(2), row(2), 0), ValueError, "at least 1"),
    (
        "over one entry",
        lambda: ep.sharding.pipelined(
            ep.repeat(lambda k: ep.feed(sin, "x"), 2, key=key(), over="x"), row(2), 2
        ),
        ValueError,
        "return the whole mapping",
    ),
    (
        "6 on 4",
        lambda: ep.sharding.pipelined(stack(6), row(4), 2),
        ValueError,
        "4 or 8",
    ),
    (
        "two axes",
        lambda: ep.sharding.pipelined(stack(2), mesh(), 2),
        ValueError,
        "Known names: `data`, `model`",
    ),
    (
        "no such axis",
        lambda: ep.sharding.pipelined(stack(2), mesh(), 2, axis_name="c"),
        ValueError,
        "Known names: `data`, `model`",
    ),
    (
        "a batch of 6",
        lambda: ep.sharding.pipelined(stack(2), row(2), 4)(ones(6, 4)),
        ValueError,
        "nearest batch sizes that do: 4 or 8",
    ),
    (
        "no batch",
        lambda: ep.sharding.pipelined(stack(2), row(2), 4)(ones()),
        ValueError,
        "the same for all belongs into the stages",
    ),
    (
        "another shape",
        lambda: ep.sharding.pipelined(
            stack(2, lambda k: nn.Lambda(lambda x: x[:1])), row(2), 2
        )(ones(4, 4)),
        ep.StructureError,
        "Return the structure, shapes and dtypes",
    ),
    (
        "batch norm",
        lambda: ep.sharding.pipelined(
            stack(2, lambda k: nn.BatchNorm(4, "b", mode="batch")), row(2), 2
        ),
        ValueError,
        "`equinox.nn.GroupNorm`",
    ),
]
