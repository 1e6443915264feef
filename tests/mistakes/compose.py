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


CHAIN = {
    TypeError: {
        r"unpack .*chain\(\*stages\)": lambda: ep.chain([sin, cos]),
        r"`chain\(\*\*stages\)`": lambda: ep.chain({"a": sin}),
        "or all by name": lambda: ep.chain(sin, a=cos),
        "a node of `eqx_pipe.graph`": lambda: ep.chain(jnp.add),
        r"one to each example: `jax.vmap\(pipe\)\(xs, key=jax.random.split": lambda: (
            ep.chain(sin)(ones(1), key=jr.split(key()))
        ),
        "several values go in as one tuple or dict": lambda: ep.chain(sin)(
            ones(1), ones(1)
        ),
        "derive it from `equinox.nn.StatefulLayer`": lambda: ep.chain(Raw())(ones(3)),
        "a slice, or a name if": lambda: ep.chain(sin)[0.5],
    },
    ValueError: {
        "without a dot.*Rename": lambda: ep.chain(**{"a.b": cos}),
        "non-empty string": lambda: ep.chain(**{"": cos}),
        r"Write `eqx_pipe.batched\(layer\)`.*use `eqx_pipe.frozen\(\.\.\.\)`": lambda: (
            ep.chain(jax.vmap(linear(key())))
        ),
        "Use `equinox.Partial`": lambda: ep.chain(
            ft.partial(lambda layer, x: layer(x), linear(key()))
        ),
        "a subclass of `eqx_pipe.Stage`": lambda: (
            lambda layer: ep.chain(lambda x: layer(x))
        )(linear(key())),
        r"`norm` is stateful.*make_with_state.*y, state = pipe\(x, state\)": lambda: (
            ep.chain(norm=stateful()[0])(ones(3))
        ),
        "made together with this pipeline": lambda: ep.chain(Counter())(
            ones(3), stateful()[1]
        ),
    },
    KeyError: {"Did you mean `abc`": lambda: ep.chain(abc=sin)["abd"]},
    IndexError: {"an integer from -1 to 0": lambda: ep.chain(sin)[3]},
    AttributeError: {
        r'`pipe\["abc"\]`': lambda: ep.chain(abc=sin).abc,
        "Did you mean `abc`": lambda: ep.chain(abc=sin).abd,
    },
}

PARALLEL = {
    ValueError: {
        "Give at least one": lambda: ep.parallel(),
        "`concat`": lambda: ep.parallel(sin, merge="concta"),
        "in a mapping": lambda: ep.parallel(sin, merge="dict"),
        "non-empty string": lambda: ep.parallel({1: sin}),
        "Rename the": lambda: ep.parallel({"merge": sin}, merge=sum),
        "Give `axis` from -2 to 1": lambda: ep.parallel(
            *give(ones(2), ones(2)), merge="stack", axis=3
        )(1.0),
        'by `merge="stack"`': lambda: ep.parallel(
            *give(ones(), ones()), merge="concat"
        )(1.0),
    },
    TypeError: {
        "gets one tuple": lambda: ep.parallel(sin, merge=jnp.add),
        "in one mapping": lambda: ep.parallel({"a": sin}, sin),
        r"`parallel\(\*stages\)`": lambda: ep.parallel([sin]),
        'by `eqx_pipe.at`, or use `merge="tuple"`': lambda: ep.parallel(
            *give("a", "b"), merge="sum"
        )(1.0),
    },
    ep.StructureError: {
        "agree by a stage after one of them": lambda: ep.parallel(
            *give(ones(2), ones(3)), merge="sum"
        )(1.0)
    },
}

WEIGHTED = {
    ValueError: {
        "Rename the stage": lambda: ep.weighted({"weights": sin}, weights=cos),
        r"float32\[1\]": lambda: ep.weighted(sin, weights=[1.0, 2.0]),
        "weight per stage": lambda: ep.weighted(sin, weights=1.0),
        "Known names": lambda: ep.weighted(sin, normalize=None),
    },
    TypeError: {
        "or all in one mapping": lambda: ep.weighted({"a": sin}, cos),
        "Give real numbers": lambda: ep.weighted(sin, weights=[1j]),
        "to the other parts only, by `eqx_pipe.at`": lambda: ep.weighted(
            eqx.nn.Identity()
        )({"a": "dog"}),
    },
    ep.StructureError: {
        r"float32\[2\]. For weights per example wrap the stage in `batched`": lambda: (
            ep.weighted(sin, cos, weights=lambda x: ones(3))(ones(3))
        )
    },
}


def two(inputs=("x", "by")):
    return ep.graph({"a": jnp.multiply}, {"a": ["x", "by"]}, "a", inputs=inputs)


def tie(where, get):
    pipe = ep.chain(a=linear(key()), b=nn.Linear(3, 2, key=key()))
    return ep.tied(pipe, where, get)


TIED = {
    ValueError: {
        "`where` fails.*Known names: .*found by names": lambda: tie(
            lambda p: p["d"], lambda p: p["a"]
        ),
        "`get` fails.*found by names": lambda: tie(
            lambda p: p["a"], lambda p: p["a"].w
        ),
        "and `get` the one that stays": lambda: tie(lambda p: p["a"], lambda p: p["a"]),
    },
    ep.StructureError: {
        "agree in structure, shapes and dtypes; .*transpose": lambda: tie(
            lambda p: p["b"].weight, lambda p: p["a"].weight
        )
    },
}


INPUTS = {
    TypeError: {
        "Give a tuple of names": lambda: two("x"),
        "cannot have the name": lambda: ep.chain(over=sin),
        "entries of a mapping by `eqx_pipe.feed`": lambda: ep.chain(
            nn.MultiheadAttention(1, 2, key=key()), over="x"
        ),
        "given no input.*Name the inp": lambda: ep.feed(sin),
        "in the order in which": lambda: ep.feed(sin, "x", "by"),
        "by its names alone": lambda: ep.feed(two(), "x", "by"),
        "a pipeline takes one.*by its names alone": lambda: ep.feed(
            two(), "x", by="by"
        ),
    },
    ValueError: {
        "leave `inputs` out": lambda: two(()),
        "without a dot": lambda: two(("x", "b.y")),
        "more than once. Rename": lambda: two(("x", "by", "x")),
        "is a node's.*Rename": lambda: two(("x", "a")),
        "`t` of `inputs`.*remove it": lambda: two(("x", "by", "t")),
        "Did you mean `bye`": lambda: two(("x", "bye")),
        "Known names: `a`": lambda: ep.graph(
            {"a": sin}, {"a": "x"}, "x", inputs=("x",)
        ),
        "Known names": lambda: ep.graph({"a": jnp.add}, {"a": {"x": []}}, "a"),
        "`y=input`, passed to it by keyword.*name them as the stage does": lambda: (
            ep.graph({"a": linear(key())}, {"a": {"y": "input"}}, "a")
        ),
        "passed on by itself": lambda: ep.graph(
            {"a": linear(key())}, {"a": {"key": "input"}}, "a"
        ),
        "to a pipeline that takes a mapping give them by name": lambda: ep.graph(
            {"a": two()}, {"a": ["input", "input"]}, "a"
        ),
        "`over`.*without a dot": lambda: ep.chain(two(), over="a.b"),
    },
    ep.StructureError: {
        'dict .*`{"x": ..., "by': lambda: two()(ones(1)),
        "no `by`. Known": lambda: two()({"x": ones(1)}),
        r"has `t`.*Known names: `x`, `by`.*`eqx_pipe.feed\(graph, ": lambda: two()(
            {"x": ones(1), "by": ones(1), "t": ones(1)}
        ),
        "no `z`. Known names: `x`, `by`": lambda: ep.chain(two(), over="z")(
            {"x": ones(1), "by": ones(1)}
        ),
        "no `y`. .*Known names: `x`": lambda: ep.feed(sin, "y")({"x": ones(1)}),
    },
}

GRAPH = {
    ValueError: {
        "Give at least one node": lambda: ep.graph({}, {}, "a"),
        "Rename it": lambda: ep.graph({"input": sin}, {}, "input"),
        "without a dot": lambda: ep.graph({"a.b": sin}, {}, "a.b"),
        '{"a": .*graph.s': lambda: ep.graph({"a": sin}, {}, "a"),
        "Did you mean `abc`": lambda: ep.graph(
            {"abc": sin}, {"abc": [], "abd": []}, "abc"
        ),
        "Did you mean `input`": lambda: ep.graph({"a": sin}, {"a": ["inptu"]}, "a"),
        "names: `a`": lambda: ep.graph({"a": sin}, {"a": []}, ()),
        "`a`": lambda: ep.graph({"a": sin}, {"a": []}, "input"),
        "a -> b -> a. Remove one of these arrows.*`repeat`": lambda: ep.graph(
            {"a": sin, "b": cos}, {"a": ["b"], "b": ["a"]}, "a"
        ),
        "connect them, or add them to `sink`": lambda: ep.graph(
            {"a": sin, "b": cos}, {"a": [], "b": []}, "a"
        ),
        "join several values in a node before it": lambda: ep.graph(
            {"a": sin}, {"a": ["input"] * 2}, "a"
        ),
    },
    TypeError: {"list of names": lambda: ep.graph({"a": sin}, {"a": None}, "a")},
    KeyError: {"`a`": lambda: ep.graph({"a": sin}, {"a": []}, "a")["b"]},
}
