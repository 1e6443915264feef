"""Stages put together: `chain`, `parallel`, `weighted`, `graph`."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from equinox import nn
from jax.numpy import cos, sin

import eqx_pipe as ep

from .common import Counter, key, linear, ones, stateful


def give(*values):
    """One stage for each value, which gives it whatever comes in."""
    return tuple(ft.partial(lambda value, x: value, value) for value in values)


class Forgetful(Counter):
    """A stateful stage that does not return its state."""

    def __call__(self, x, state, *, key=None):
        return x


class Raw(eqx.Module):
    """Has state, and does not say so by its type."""

    index: nn.StateIndex

    def __init__(self):
        self.index = nn.StateIndex(jnp.zeros(()))

    def __call__(self, x, state, *, key=None):
        return x, state


CHAIN = [
    ("a number", lambda: ep.chain(3), TypeError, "A stage is a callable"),
    ("a class", lambda: ep.chain(nn.Linear), TypeError, r"first: `Linear\(\.\.\.\)`"),
    ("a list", lambda: ep.chain([sin, cos]), TypeError, r"unpack .*chain\(\*stages\)"),
    ("a dict", lambda: ep.chain({"a": sin}), TypeError, r"`chain\(\*\*stages\)`"),
    ("both", lambda: ep.chain(sin, a=cos), TypeError, "or all by name"),
    ("a dot", lambda: ep.chain(**{"a.b": cos}), ValueError, "without a dot.*Rename"),
    ("no name", lambda: ep.chain(**{"": cos}), ValueError, "non-empty string"),
    ("two inputs", lambda: ep.chain(jnp.add), TypeError, "a node of `eqx_pipe.graph`"),
    (
        "a hidden layer",
        lambda: ep.chain(jax.vmap(linear(key()))),
        ValueError,
        r"Write `eqx_pipe.batched\(layer\)`.*use `eqx_pipe.frozen\(\.\.\.\)`",
    ),
    (
        "a partial of a layer",
        lambda: ep.chain(ft.partial(lambda layer, x: layer(x), linear(key()))),
        ValueError,
        "Use `equinox.Partial`",
    ),
    (
        "a lambda over a layer",
        lambda: (lambda layer: ep.chain(lambda x: layer(x)))(linear(key())),
        ValueError,
        "a subclass of `eqx_pipe.Stage`",
    ),
    ("key 3", lambda: ep.chain(sin)(ones(1), key=3), TypeError, r"jax.random.key\(s"),
    (
        "keys",
        lambda: ep.chain(sin)(ones(1), key=jr.split(key())),
        TypeError,
        r"one to each example: `jax.vmap\(pipe\)\(xs, key=jax.random.split",
    ),
    (
        "no key",
        lambda: ep.chain(a=nn.Dropout(0.5))(ones(3)),
        ep.MissingKeyError,
        r"`a` .*`key=jax.random.key\(0\)`.*inference_mode",
    ),
    (
        "a second input",
        lambda: ep.chain(sin)(ones(1), ones(1)),
        TypeError,
        "several values go in as one tuple or dict",
    ),
    (
        "no state",
        lambda: ep.chain(norm=stateful()[0])(ones(3)),
        ValueError,
        r"`norm` is stateful.*make_with_state.*y, state = pipe\(x, state\)",
    ),
    (
        "another state",
        lambda: ep.chain(Counter())(ones(3), stateful()[1]),
        ValueError,
        "made together with this pipeline",
    ),
    (
        "a state lost",
        lambda: (lambda p, s: p(ones(3), s))(
            *nn.make_with_state(lambda: ep.chain(Forgetful()))()
        ),
        TypeError,
        r"Return `\(y, state\)`",
    ),
    (
        "no stateful layer",
        lambda: ep.chain(Raw())(ones(3)),
        TypeError,
        "derive it from `equinox.nn.StatefulLayer`",
    ),
    ("hash", lambda: hash(ep.chain(linear(key()))), TypeError, "equinox.filter_jit"),
    ("a wrong name", lambda: ep.chain(abc=sin)["abd"], KeyError, "Did you mean `abc`"),
    ("far away", lambda: ep.chain(sin)[3], IndexError, "an integer from -1 to 0"),
    ("half", lambda: ep.chain(sin)[0.5], TypeError, "a slice, or a name if"),
    ("a. name", lambda: ep.chain(abc=sin).abc, AttributeError, r'`pipe\["abc"\]`'),
    ("nearly", lambda: ep.chain(abc=sin).abd, AttributeError, "Did you mean `abc`"),
]

PARALLEL = [
    ("nothing", lambda: ep.parallel(), ValueError, "Give at least one"),
    ("an empty dict", lambda: ep.parallel({}), ValueError, "Give at least one"),
    ("merge concta", lambda: ep.parallel(sin, merge="concta"), ValueError, "`concat`"),
    ("merge 3", lambda: ep.parallel(sin, merge=3), TypeError, "A stage is a callable"),
    ("a class", lambda: ep.parallel(sin, merge=nn.Linear), TypeError, "an instance"),
    ("jnp.add", lambda: ep.parallel(sin, merge=jnp.add), TypeError, "gets one tuple"),
    ("no names", lambda: ep.parallel(sin, merge="dict"), ValueError, "in a mapping"),
    ("a dict and", lambda: ep.parallel({"a": sin}, sin), TypeError, "in one mapping"),
    ("name 1", lambda: ep.parallel({1: sin}), ValueError, "non-empty string"),
    ("stage 3", lambda: ep.parallel({"a": 3}), TypeError, "A stage is a callable"),
    ("a list", lambda: ep.parallel([sin]), TypeError, r"`parallel\(\*stages\)`"),
    ("axis 1.0", lambda: ep.parallel(sin, axis=1.0), TypeError, "Give one integer"),
    ("two axes", lambda: ep.parallel(sin, axis=(0, 1)), TypeError, "Give one integer"),
    ("merge", lambda: ep.parallel({"merge": sin}, merge=sum), ValueError, "Rename the"),
    (
        "outputs that disagree",
        lambda: ep.parallel(*give(ones(2), ones(3)), merge="sum")(1.0),
        ep.StructureError,
        "agree by a stage after one of them",
    ),
    (
        "text",
        lambda: ep.parallel(*give("a", "b"), merge="sum")(1.0),
        TypeError,
        'by `eqx_pipe.at`, or use `merge="tuple"`',
    ),
    (
        "an axis too many",
        lambda: ep.parallel(*give(ones(2), ones(2)), merge="stack", axis=3)(1.0),
        ValueError,
        "Give `axis` from -2 to 1",
    ),
    (
        "scalars",
        lambda: ep.parallel(*give(ones(), ones()), merge="concat")(1.0),
        ValueError,
        'by `merge="stack"`',
    ),
]

WEIGHTED = [
    ("nothing", lambda: ep.weighted(), ValueError, "Give at least one"),
    ("stage 3", lambda: ep.weighted(3), TypeError, "A stage is a callable"),
    (
        "the name of the gate",
        lambda: ep.weighted({"weights": sin}, weights=cos),
        ValueError,
        "Rename the stage",
    ),
    (
        "names and positions",
        lambda: ep.weighted({"a": sin}, cos),
        TypeError,
        "or all in one mapping",
    ),
    ("two", lambda: ep.weighted(sin, weights=[1.0, 2.0]), ValueError, r"float32\[1\]"),
    ("one", lambda: ep.weighted(sin, weights=1.0), ValueError, "weight per stage"),
    ("text", lambda: ep.weighted(sin, weights="no"), TypeError, "or a stage that"),
    (
        "a dict",
        lambda: ep.weighted(sin, weights={"a": 1}),
        TypeError,
        "Give one number per",
    ),
    ("complex", lambda: ep.weighted(sin, weights=[1j]), TypeError, "Give real numbers"),
    ("a key", lambda: ep.weighted(sin, weights=key()), TypeError, "one number per"),
    ("softmx", lambda: ep.weighted(sin, normalize="softmx"), ValueError, "`softmax`"),
    ("None", lambda: ep.weighted(sin, normalize=None), ValueError, "Known names"),
    (
        "a gate for each example",
        lambda: ep.weighted(sin, cos, weights=lambda x: ones(3))(ones(3)),
        ep.StructureError,
        r"float32\[2\]. For weights per example wrap the stage in `batched`",
    ),
    (
        "text in, text out",
        lambda: ep.weighted(eqx.nn.Identity())({"a": "dog"}),
        TypeError,
        "to the other parts only, by `eqx_pipe.at`",
    ),
]


def two(inputs=("x", "by")):
    return ep.graph({"a": jnp.multiply}, {"a": ["x", "by"]}, "a", inputs=inputs)


def tie(where, get):
    pipe = ep.chain(a=linear(key()), b=nn.Linear(3, 2, key=key()))
    return ep.tied(pipe, where, get)


TIED = [
    ("3", lambda: ep.tied(3, sin, sin), TypeError, "A stage is a callable"),
    ("where a", lambda: tie("a", lambda p: p[0]), TypeError, "Give a function of the"),
    (
        "no such stage",
        lambda: tie(lambda p: p["d"], lambda p: p["a"]),
        ValueError,
        "`where` fails.*Known names: .*found by names",
    ),
    (
        "no such field",
        lambda: tie(lambda p: p["a"], lambda p: p["a"].w),
        ValueError,
        "`get` fails.*found by names",
    ),
    (
        "another shape",
        lambda: tie(lambda p: p["b"].weight, lambda p: p["a"].weight),
        ep.StructureError,
        "agree in structure, shapes and dtypes; .*transpose",
    ),
    (
        "to itself",
        lambda: tie(lambda p: p["a"], lambda p: p["a"]),
        ValueError,
        "and `get` the one that stays",
    ),
]


INPUTS = [
    ("a name", lambda: two("x"), TypeError, "Give a tuple of names"),
    ("none", lambda: two(()), ValueError, "leave `inputs` out"),
    ("a dot", lambda: two(("x", "b.y")), ValueError, "without a dot"),
    ("twice", lambda: two(("x", "by", "x")), ValueError, "more than once. Rename"),
    ("of a node", lambda: two(("x", "a")), ValueError, "is a node's.*Rename"),
    ("input", lambda: two(("x", "input")), ValueError, "Rename"),
    (
        "unused",
        lambda: two(("x", "by", "t")),
        ValueError,
        "`t` does not contribute.*Remove such nodes and inputs",
    ),
    ("unknown", lambda: two(("x", "bye")), ValueError, "Did you mean `bye`"),
    (
        "as the sink",
        lambda: ep.graph({"a": sin}, {"a": "x"}, "x", inputs=("x",)),
        ValueError,
        "Known names: `a`",
    ),
    (
        "a keyword too few",
        lambda: ep.graph({"a": jnp.add}, {"a": {"x": []}}, "a"),
        ValueError,
        "Known names",
    ),
    (
        "another keyword",
        lambda: ep.graph({"a": linear(key())}, {"a": {"y": "input"}}, "a"),
        ValueError,
        "`y=input` by keyword.*name them as the stage does",
    ),
    (
        "the key",
        lambda: ep.graph({"a": linear(key())}, {"a": {"key": "input"}}, "a"),
        ValueError,
        "passed on by itself",
    ),
    (
        "two to a pipeline",
        lambda: ep.graph({"a": two()}, {"a": ["input", "input"]}, "a"),
        ValueError,
        "to a pipeline that takes a mapping give them by name",
    ),
    ("an array", lambda: two()(ones(1)), ep.StructureError, 'dict .*`{"x": ..., "by'),
    ("missing", lambda: two()({"x": ones(1)}), ep.StructureError, "no `by`. Known"),
    (
        "one too many",
        lambda: two()({"x": ones(1), "by": ones(1), "t": ones(1)}),
        ep.StructureError,
        r"has `t`.*Known names: `x`, `by`.*`eqx_pipe.feed\(graph, ",
    ),
    ("over 3", lambda: ep.chain(two(), over=3), TypeError, "name of the input that ev"),
    ("a stage `over`", lambda: ep.chain(over=sin), TypeError, "cannot have the name"),
    ("residual 3", lambda: ep.residual(two(), over=3), TypeError, 'as `over="x"`'),
    ("over a.b", lambda: ep.chain(two(), over="a.b"), ValueError, "without a dot"),
    (
        "over nothing",
        lambda: ep.chain(two(), over="z")({"x": ones(1), "by": ones(1)}),
        ep.StructureError,
        "no `z`. Known names: `x`, `by`",
    ),
    (
        "a layer over x",
        lambda: ep.chain(nn.MultiheadAttention(1, 2, key=key()), over="x"),
        TypeError,
        "entries of a mapping by `eqx_pipe.feed`",
    ),
    (
        "repeat over x",
        lambda: ep.repeat(lambda key: two(), 2, key=key(), over=1),
        TypeError,
        'over="x"',
    ),
    ("feed nothing", lambda: ep.feed(sin), TypeError, "given no input.*Name the inp"),
    ("feed a number", lambda: ep.feed(sin, 1), ValueError, "non-empty string"),
    ("feed 3", lambda: ep.feed(3, "x"), TypeError, "A stage is a callable"),
    ("feed two", lambda: ep.feed(sin, "x", "by"), TypeError, "in the order in which"),
    ("feed a pipe", lambda: ep.feed(two(), "x", "by"), TypeError, "by its names alone"),
    (
        "feed a pipe both",
        lambda: ep.feed(two(), "x", by="by"),
        TypeError,
        "a pipeline takes one.*by its names alone",
    ),
    (
        "fed too little",
        lambda: ep.feed(sin, "y")({"x": ones(1)}),
        ep.StructureError,
        "no `y`. .*Known names: `x`",
    ),
]

GRAPH = [
    ("pairs", lambda: ep.graph([("a", sin)], {}, "a"), TypeError, "Give a dict from"),
    ("nothing", lambda: ep.graph({}, {}, "a"), ValueError, "Give at least one node"),
    ("input", lambda: ep.graph({"input": sin}, {}, "input"), ValueError, "Rename it"),
    ("a dot", lambda: ep.graph({"a.b": sin}, {}, "a.b"), ValueError, "without a dot"),
    ("a class", lambda: ep.graph({"a": nn.MLP}, {"a": []}, "a"), TypeError, "instance"),
    ("edge pairs", lambda: ep.graph({"a": sin}, [], "a"), TypeError, "predecessors"),
    ("no edges", lambda: ep.graph({"a": sin}, {}, "a"), ValueError, '{"a": .*graph.s'),
    (
        "edges of no node",
        lambda: ep.graph({"abc": sin}, {"abc": [], "abd": []}, "abc"),
        ValueError,
        "Did you mean `abc`",
    ),
    (
        "None",
        lambda: ep.graph({"a": sin}, {"a": None}, "a"),
        TypeError,
        "list of names",
    ),
    (
        "from nowhere",
        lambda: ep.graph({"a": sin}, {"a": ["inptu"]}, "a"),
        ValueError,
        "Did you mean `input`",
    ),
    ("sink 3", lambda: ep.graph({"a": sin}, {"a": []}, 3), TypeError, "name of a node"),
    ("no sink", lambda: ep.graph({"a": sin}, {"a": []}, ()), ValueError, "names: `a`"),
    ("sink input", lambda: ep.graph({"a": sin}, {"a": []}, "input"), ValueError, "`a`"),
    ("sink b", lambda: ep.graph({"a": sin}, {"a": []}, "b"), ValueError, "names: `a`"),
    (
        "a cycle",
        lambda: ep.graph({"a": sin, "b": cos}, {"a": ["b"], "b": ["a"]}, "a"),
        ValueError,
        "a -> b -> a. Remove one of these arrows.*`repeat`",
    ),
    (
        "a dead node",
        lambda: ep.graph({"a": sin, "b": cos}, {"a": [], "b": []}, "a"),
        ValueError,
        "connect them, or add them to `sink`",
    ),
    (
        "two for one",
        lambda: ep.graph({"a": sin}, {"a": ["input"] * 2}, "a"),
        ValueError,
        "join several values in a node before it",
    ),
    (
        "a wrong item",
        lambda: ep.graph({"a": sin}, {"a": []}, "a")["b"],
        KeyError,
        "`a`",
    ),
]
