"""Stages put together: `chain`, `parallel`, `weighted`, `graph`."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from equinox import nn
from jax.experimental import sparse
from jax.numpy import cos, sin

import eqx_pipe as ep

from .common import Counter, key, linear, ones, stateful


def merged(*values, **settings):
    """Merge the outputs of one stage for each value, which returns it."""
    stages = (ft.partial(lambda value, x: value, value) for value in values)
    return ep.parallel(*stages, **settings)(1.0)


class Forgetful(Counter):
    """A stateful stage that does not return its state."""

    def __call__(self, x, state, *, key=None):
        return x


class Forgets(eqx.Module):
    """A stage with a state that Equinox does not know as one."""

    def __call__(self, x, state, *, key=None):
        return x, state


CHAIN = {
    TypeError: {
        r"unpack .*chain\(\*stages\)": lambda: ep.chain([sin, cos]),
        r"`chain\(\*\*stages\)`": lambda: ep.chain({"a": sin}),
        "or all by name": lambda: ep.chain(sin, a=cos),
        "a node of `eqx_pipe.graph`": lambda: ep.chain(jnp.add),
        "Only an `equinox.nn.StatefulLayer`": lambda: ep.chain(Forgets()),
        "is true gets a state, by pos": lambda: ep.batched(lambda x, state: (x, state)),
        r"each example: `jax.vmap\(pipe\)\(xs, key=": lambda: ep.chain(sin)(
            ones(1), key=jr.split(key())
        ),
        "go in as one tuple or dict": lambda: ep.chain(sin)(ones(1), ones(1)),
        "a slice, or a name if": lambda: ep.chain(sin)[0.5],
    },
    ValueError: {
        "without a dot.*Rename": lambda: ep.chain(**{"a.b": cos}),
        r"eqx_pipe.batched\(layer\)`.*eqx_pipe.frozen\(": lambda: ep.chain(
            jax.vmap(linear(key()))
        ),
        "`filter_grad` and `Partial`": lambda: ep.chain(
            ft.partial(lambda layer, x: layer(x), linear(key()))
        ),
        "a subclass of `eqx_pipe.Stage`": lambda: (
            lambda layer: ep.chain(lambda x: layer(x))
        )(linear(key())),
        r"`norm` .*y, state = pipe\(x, state\)": lambda: ep.chain(norm=stateful()[0])(
            ones(3)
        ),
        "returned together with": lambda: ep.chain(Counter())(ones(3), stateful()[1]),
    },
    KeyError: {
        "Did you mean `abc`": lambda: ep.chain(abc=sin)["abd"],
        "no stage `c` in `a`. Did you mean `a.b`": lambda: ep.chain(a=ep.chain(b=sin))[
            "a.c"
        ],
        "a part of a layer, an attribute, use": lambda: ep.chain(a=sin)["a.fn"],
    },
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
        "Rename the": lambda: ep.parallel({"merge": sin}, merge=sum),
        "`axis` from -2 to 1": lambda: merged(ones(2), ones(2), merge="stack", axis=3),
        'by `merge="stack"`': lambda: merged(ones(), ones(), merge="concat"),
    },
    TypeError: {
        "function of the tuple of outputs: `lambda": lambda: ep.parallel(
            sin, merge=jnp.add
        ),
        "in one mapping": lambda: ep.parallel({"a": sin}, sin),
        'eqx_pipe.at`, or use `merge="tuple': lambda: merged("a", "b", merge="sum"),
    },
    ep.StructureError: {
        "differ.*Append a stage to one of them": lambda: merged(
            ones(2), ones(3), merge="sum"
        )
    },
}

WEIGHTED = {
    ValueError: {
        r"float32\[1\]": lambda: ep.weighted(sin, weights=[1.0, 2.0]),
        "weight per stage": lambda: ep.weighted(sin, weights=1.0),
    },
    TypeError: {
        "Give real numbers": lambda: ep.weighted(sin, weights=[1j]),
        "by `eqx_pipe.at`": lambda: ep.weighted(eqx.nn.Identity())({"a": "dog"}),
    },
    ep.StructureError: {
        r"float32\[2\]. .* wrap the stage in `batched`": lambda: ep.weighted(
            sin, cos, weights=lambda x: ones(3)
        )(ones(3))
    },
}


def node(edges, stage=sin, sink="a", **settings):
    """Make a graph of one node `a`."""
    return ep.graph({"a": stage}, edges, sink, **settings)


def two(inputs=("x", "by")):
    return ep.graph({"a": jnp.multiply}, {"a": ["x", "by"]}, "a", inputs=inputs)


def tie(where, get):
    pipe = ep.chain(a=linear(key()), b=nn.Linear(3, 2, key=key()))
    return ep.tied(pipe, where, get)


TIED = {
    ep.StructureError: {
        "but not return a part that": lambda: tie(lambda p: p["a"], lambda p: p["a"]),
        r"float32\[2,3\].*same structure.*transpose": lambda: tie(
            lambda p: p["b"].weight, lambda p: p["a"].weight
        ),
    },
}


INPUTS = {
    TypeError: {
        "cannot have the name": lambda: ep.chain(broadcast=sin),
        "by `eqx_pipe.feed`": lambda: ep.chain(
            nn.MultiheadAttention(1, 2, key=key()), broadcast="x"
        ),
        "gets no input.*Name the inp": lambda: ep.feed(sin),
        "in the order in which": lambda: ep.feed(sin, "x", "by"),
        "by its names alone": lambda: ep.feed(two(), "x", "by"),
        "a pipeline takes one.*by its names alone": lambda: ep.feed(
            two(), "x", by="by"
        ),
        "`y=input`.*name them as the stage does": lambda: node(
            {"a": {"y": "input"}}, linear(key())
        ),
        "passed on by itself": lambda: node({"a": {"key": "input"}}, linear(key())),
        "a mapping give them by": lambda: node({"a": ["input", "input"]}, two()),
        "input at `0` at `.m` is a sparse BCOO.*todense.*`broadcast`": lambda: ep.chain(
            ep.scan(lambda c, x: (c, c), 0.0)
        )({"m": sparse.BCOO.fromdense(ones(2, 2))}),
        "takes one array.*a function of the carry": lambda: ep.scan(
            nn.GRUCell(2, 3, key=key()), broadcast="by"
        ),
        "output of the cell is a sparse BCOO": lambda: ep.scan(
            lambda c, x: (c, sparse.BCOO.fromdense(x, nse=2)), 0.0
        )(ones(2, 2)),
    },
    ValueError: {
        "Known names: `a`, `input`": lambda: two(()),
        "without a dot": lambda: two(("x", "b.y")),
        "for an input of the graph. Rename": lambda: two(("x", "a")),
        "`t` does not contribute.*Remove such nodes and inputs": lambda: two(
            ("x", "by", "t")
        ),
        "Did you mean `bye`": lambda: two(("x", "bye")),
        "Known names: `a`": lambda: node({"a": "x"}, sink="x", inputs=("x",)),
        "Known names": lambda: node({"a": {"x": []}}, jnp.add),
        "`broadcast`.*without a dot": lambda: ep.chain(two(), broadcast="a.b"),
    },
    ep.StructureError: {
        'dict .*`{"x": ..., "by': lambda: two()(ones(1)),
        "no entry `by`. Known": lambda: two()({"x": ones(1)}),
        r"`t`.*Known names: `x`, `by`.*eqx_pipe.feed\(graph, x=\"x\", by=": lambda: (
            two()({"x": ones(1), "by": ones(1), "t": ones(1)})
        ),
        "no entry `z`. Known names: `x`, `by`": lambda: ep.chain(two(), broadcast="z")(
            {"x": ones(1), "by": ones(1)}
        ),
        "`by` are broadcast and 2 are left. Leave one": lambda: ep.chain(
            two(), broadcast="by"
        )({"x": ones(1), "by": ones(1), "t": ones(1)}),
        "0 are left.*add the others to": lambda: ep.residual(two(), broadcast="by")(
            {"by": ones(1)}
        ),
        'a leading axis of steps.*scan.*broadcast="memory"': lambda: ep.scan(
            lambda c, x: (c, c), 0.0, broadcast="by"
        )({"x": 1.0, "by": ones(1)}),
        '`{"by": ..., "x": ...}`': lambda: ep.repeat([two()], broadcast="by")(ones(2)),
        "no entry `mask`. Did|no entry `mask`. Known": lambda: ep.scan(
            lambda c, x: (c, c), 0.0, broadcast="mask"
        )({"x": ones(1)}),
        "no entry `y`. .*Known names: `x`": lambda: ep.feed(sin, "y")({"x": ones(1)}),
    },
}

GRAPH = {
    ValueError: {
        "Known names: none": lambda: ep.graph({}, {}, "a"),
        "Rename the stage": lambda: ep.graph({"input": sin}, {}, "input"),
        "without a dot": lambda: ep.graph({"a.b": sin}, {}, "a.b"),
        '{"a": .*graph.s': lambda: node({}),
        "Did you mean `abc`": lambda: ep.graph(
            {"abc": sin}, {"abc": [], "abd": []}, "abc"
        ),
        "Did you mean `input`": lambda: node({"a": ["inptu"]}),
        "`a` does not contribute": lambda: node({"a": []}, sink=()),
        "`a`": lambda: node({"a": []}, sink="input"),
        "a -> b -> a. Remove.*`repeat`": lambda: ep.graph(
            {"a": sin, "b": cos}, {"a": ["b"], "b": ["a"]}, "a"
        ),
        "connect them, or add them to `sink`": lambda: ep.graph(
            {"a": sin, "b": cos}, {"a": [], "b": []}, "a"
        ),
    },
    TypeError: {
        "list of names": lambda: node({"a": None}),
        "join several values in a node before it": lambda: node({"a": ["input"] * 2}),
    },
    KeyError: {"`a`": lambda: node({"a": []})["b"]},
}
