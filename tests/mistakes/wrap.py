"""One stage in another: `at`, `batched`, `repeat`, `outputs`, `refill`."""

import functools as ft

import jax
import jax.numpy as jnp
import jax.random as jr
from equinox import nn
from jax.numpy import sin

import eqx_pipe as ep

from .common import Counter, block, key, linear, ones, stack


def steps(**changes):
    given = {
        "init": lambda x: x,
        "cond": lambda x, c: c < 3,
        "body": lambda x, c: c + 1,
        "out": lambda x, c: c,
    } | changes
    return ep.refill(*given.values())


FOCUS = [
    ("None", lambda: ep.at(None, sin), TypeError, "lambda x: x.image"),
    ("a list", lambda: ep.at(["a"], sin), TypeError, "a tuple of them read as a path"),
    ("stage 3", lambda: ep.at("a", 3), TypeError, "A stage is a callable"),
    ("imag", lambda: ep.at("imag", sin)({"image": 1}), ep.StructureError, "n `image`"),
    ("2", lambda: ep.at(2, sin)((1, 2)), ep.StructureError, "Known names: `0`, `1`"),
    (
        "a path too long",
        lambda: ep.at(("a", "b"), sin)({"a": ones(2)}),
        ep.StructureError,
        "`a.b`.*Known names: `a`",
    ),
    (
        "a function that fails",
        lambda: ep.at(lambda x: x["c"], sin)({"a": 1}),
        ep.StructureError,
        "return one part of the input unchanged",
    ),
    (
        "two parts",
        lambda: ep.at(lambda x: (x["a"], x["b"]), sin)({"a": 1, "b": 2}),
        ep.StructureError,
        "put one `at` after another",
    ),
]

BATCHED = [
    ("stage 3", lambda: ep.batched(3), TypeError, "A stage is a callable"),
    ("text", lambda: ep.batched(sin, in_axes="0"), TypeError, "`None`, or a pytree"),
    ("True", lambda: ep.batched(sin, in_axes=True), TypeError, "Give an integer"),
    ("nothing", lambda: ep.batched(sin, in_axes=None), ValueError, "Give the axis"),
    ("a list", lambda: ep.batched(sin, axis_name=["a"]), TypeError, '="batch"'),
    ("a scalar", lambda: ep.batched(sin)(1.0), ep.StructureError, "same number of exa"),
    (
        "two sizes",
        lambda: ep.batched(sin)({"a": ones(2), "b": ones(3)}),
        ep.StructureError,
        "`None` in `in_axes` for what all examples share",
    ),
    (
        "other axes",
        lambda: ep.batched(sin, in_axes={"a": 0})((ones(2),)),
        ep.StructureError,
        "same containers as the input",
    ),
    (
        "a state for each example",
        lambda: (lambda p, s: p(jnp.arange(3.0), s))(
            *nn.make_with_state(lambda: ep.batched(Counter()))()
        ),
        ValueError,
        "by a collective over `axis_name`",
    ),
]

REPEAT = [
    ("3", lambda: ep.repeat(3, 2, key=key()), TypeError, "makes one stage from a key"),
    (
        "a stage",
        lambda: ep.repeat(linear(key()), 2, key=key()),
        TypeError,
        "lambda key",
    ),
    ("no argument", lambda: ep.repeat(lambda: sin, 2, key=key()), TypeError, "Wrap it"),
    ("a class", lambda: stack(2, lambda key: nn.MLP), TypeError, "Make an instance"),
    ("None made", lambda: stack(2, lambda key: None), TypeError, "A stage is a call"),
    ("2.0", lambda: ep.repeat(block, 2.0, key=key()), TypeError, "integer of at least"),
    ("-1", lambda: ep.repeat(block, -1, key=key()), ValueError, "of at least 0"),
    ("no key", lambda: ep.repeat(block, 2, key=None), TypeError, "key=jax.random.key"),
    ("keys", lambda: ep.repeat(block, 2, key=jr.split(key())), TypeError, "`jax.vmap`"),
    ("by name", lambda: stack(2)["a"], KeyError, "Give an integer from -2 to 1"),
    (
        "a parameter",
        lambda: stack(2, linear).weight,
        AttributeError,
        "`pipe.stages.weight`",
    ),
    ("far away", lambda: stack(2)[5], IndexError, "Give an integer from -2 to 1"),
    (
        "another shape",
        lambda: stack(2, lambda key: lambda x: x[:1])(ones(3)),
        ep.StructureError,
        "for stages that differ use `chain`",
    ),
    (
        "a layer under vmap",
        lambda: stack(2, lambda key: jax.vmap(linear(key))),
        ValueError,
        r"`eqx_pipe.batched\(layer\)` instead of `jax.vmap\(layer\)`",
    ),
    (
        "a layer under checkpoint",
        lambda: stack(2, lambda key: jax.checkpoint(linear(key))),
        ValueError,
        r"Write `equinox.filter_checkpoint\(layer\)`",
    ),
    (
        "a frozen layer of its own",
        lambda: stack(2, lambda key: ep.frozen(linear(key))),
        ValueError,
        "Freeze only what is made outside",
    ),
    (
        "a closure",
        lambda: stack(2, lambda k: ft.partial(jnp.add, jr.normal(k, (3,)))),
        ValueError,
        "Return an `equinox.Module` that has these arrays as fields",
    ),
]

BUILT = [
    ("no stages", lambda: ep.repeat([]), ValueError, "Give at least one"),
    (
        "stages and a key",
        lambda: ep.repeat([sin], key=key()),
        TypeError,
        "Give the stages alone, or a function",
    ),
    (
        "another width",
        lambda: ep.repeat([linear(key()), nn.Linear(3, 4, key=key())]),
        ep.StructureError,
        r"`stages\[1\]`.*`.weight`: float32\[3,3\] against float32\[4,3\].*Give each",
    ),
    (
        "another setting",
        lambda: ep.repeat([nn.LayerNorm(3), nn.LayerNorm(3, eps=0.1)]),
        ep.StructureError,
        "1e-05.* against .*0.1.*or use `eqx_pipe.chain`",
    ),
    (
        "functions of their own",
        lambda: ep.repeat([lambda x: x, lambda x: -x]),
        ep.StructureError,
        "share functions between them",
    ),
    ("remat", lambda: ep.repeat([sin], remat="dots"), TypeError, "or a policy"),
    ("unroll", lambda: ep.repeat([sin], unroll=0), ValueError, "of at least 1"),
    ("no member", lambda: ep.ensemble(block, 0, key=key()), ValueError, "at least 1"),
    (
        "none left",
        lambda: ep.ensemble(block, 2, key=key())[2:],
        ValueError,
        "needs at least 1",
    ),
    (
        "concat",
        lambda: ep.ensemble([sin], merge="concat"),
        ValueError,
        "Known names: `mean`",
    ),
    (
        "a mean of text",
        lambda: ep.ensemble([lambda x: "a"])(ones(2)),
        TypeError,
        'Use `merge="stack"`',
    ),
]


def add(total, x):
    return total + x, total


SCAN = [
    ("3", lambda: ep.scan(3), TypeError, "A stage is a callable"),
    ("one input", lambda: ep.scan(jnp.isnan, 0), TypeError, r"eqx_pipe.batched\(stage"),
    ("no init", lambda: ep.scan(add), TypeError, "Give the carry of the first step"),
    (
        "returns",
        lambda: ep.scan(add, 0, returns="all"),
        ValueError,
        "Known names: `sequence`",
    ),
    ("reverse", lambda: ep.scan(add, 0, reverse=1), TypeError, "True or False"),
    ("unroll", lambda: ep.scan(add, 0, unroll=0), ValueError, "of at least 1"),
    ("a scalar", lambda: ep.scan(add, 0.0)(1.0), ep.StructureError, "axis of steps"),
    (
        "two lengths",
        lambda: ep.scan(add, 0.0)({"a": ones(2), "b": ones(3)}),
        ep.StructureError,
        "`.b` is float32.3.*all of the same length",
    ),
    (
        "another carry",
        lambda: ep.scan(add, 0)(ones(3)),
        ep.StructureError,
        "in a `scan` those of the carry",
    ),
    (
        "no pair",
        lambda: ep.scan(lambda c, x: x, 0.0)(ones(3)),
        TypeError,
        r"Return `\(carry, y\)`",
    ),
    (
        "no last step",
        lambda: ep.scan(add, 0.0, returns="last")(ones(0)),
        ep.StructureError,
        "Give one step at least",
    ),
]

RESIDUAL = [
    ("no stage", lambda: ep.residual(), ValueError, "Give at least one"),
    ("skip 3", lambda: ep.residual(sin, skip=3), TypeError, "A stage is a callable"),
    ("a name", lambda: ep.residual({"skip": sin}), ValueError, "Rename the stage"),
    (
        "another shape",
        lambda: ep.residual(lambda x: x[:1])(ones(3)),
        ep.StructureError,
        "by `skip=` a projection",
    ),
    ("text", lambda: ep.residual(lambda x: x)("a"), TypeError, "by `eqx_pipe.at`"),
]

OUTPUTS = [
    (
        "a layer",
        lambda: ep.outputs(linear(key()), "*"),
        TypeError,
        "Give a pipeline of this library",
    ),
    ("pattern 3", lambda: ep.outputs(ep.chain(sin), 3), TypeError, "as strings"),
    (
        "nothing matches",
        lambda: ep.outputs(ep.chain(sine=sin), "sin"),
        ValueError,
        "Did you mean `sine`",
    ),
]

OTHERS = [
    ("frozen 3", lambda: ep.frozen(3), TypeError, "A stage is a callable"),
    ("init 3", lambda: steps(init=3), TypeError, r"refill\(init, cond, body, out\)"),
    (
        "a carry that changes",
        lambda: steps(body=lambda x, c: ones(2))(jnp.float32(1)),
        TypeError,
        "`body`, which returns what `init` starts with",
    ),
    (
        "no boolean",
        lambda: steps(cond=lambda x, c: c)(jnp.float32(1)),
        TypeError,
        "`cond`, which returns one boolean",
    ),
    (
        "reverse mode",
        lambda: jax.grad(steps())(jnp.float32(1)),
        ValueError,
        "Use forward mode",
    ),
]
