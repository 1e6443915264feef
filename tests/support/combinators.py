"""Every combinator in pipelines that take a vector, for laws over all of them."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from support.helpers import filled

import eqx_pipe as ep

KEY = jr.key(0)
DROPOUT = eqx.nn.Dropout(0.5)


def positive(x):
    return x[0] > 0.03


def never(x):
    return False


def noisy_gate(x, *, key):
    return jr.bernoulli(key)


def gate(x):
    return jax.nn.sigmoid(x[:2])


def noisy_product(a, b, *, key):
    return a * b + jr.normal(key, a.shape, a.dtype)


def noisy_cell(carry, x, *, key):
    return jnp.tanh(carry + x + jr.normal(key, x.shape)), carry


def plus_sine(a, b):
    return a + jnp.sin(b)


def twice(x):
    return jnp.stack([x, -x])


def product(ys):
    return ys[0] * ys[1]


def noise_of(key):
    return ep.chain(DROPOUT)


def with_mask(*stages):
    return ep.chain(lambda x: {"x": x, "mask": jnp.cos(x)}, *stages)


class Parts:
    """Stages of one size, each made when it is first needed."""

    def __init__(self, size):
        self.size = size

    def linear(self, key):
        return eqx.nn.Linear(self.size, self.size, key=key)

    def masked(self, key):
        nodes = {"a": self.linear(key), "scale": jnp.multiply, "end": plus_sine}
        edges = {"a": "x", "scale": ["a", "mask"], "end": {"a": "scale", "b": "x"}}
        return ep.graph(nodes, edges, "end", inputs=("x", "mask"))

    def many(self, make, n, maker=None, **settings):
        maker = maker or self.linear
        return filled(lambda key: make(maker, n, key=key, **settings), KEY)

    a = ft.cached_property(lambda self: filled(self.linear, jr.key(0)))
    b = ft.cached_property(lambda self: filled(self.linear, jr.key(1)))
    c = ft.cached_property(lambda self: filled(self.linear, jr.key(2)))

    @property
    def block(self):
        return filled(self.masked, KEY)

    @property
    def gru(self):
        return filled(lambda key: eqx.nn.GRUCell(self.size, self.size, key=key), KEY)

    @property
    def cell(self):
        """A pipeline of a carry and a step."""
        nodes = {"sum": jnp.add, "out": self.a}
        edges = {"sum": ["carry", "x"], "out": ["sum"]}
        return ep.graph(nodes, edges, ("out", "sum"), inputs=("carry", "x"))


def masked_sum(carry, x):
    return carry + x["x"] * x["mask"], jnp.sin(carry)


GATES = (positive, never)
COMBINATORS = {
    "empty chain": lambda p: ep.chain(),
    "chain": lambda p: ep.chain(p.a, jnp.tanh, p.b),
    "named chain": lambda p: ep.chain(first=p.a, second=ep.chain(jnp.tanh)),
    "chain broadcast": lambda p: with_mask(
        ep.chain(p.block, ep.feed(jnp.multiply, "x", "mask"), broadcast="mask")
    ),
    "parallel sum": lambda p: ep.parallel(p.a, jnp.sin, p.b, merge="sum"),
    "parallel mean": lambda p: ep.parallel(p.a, jnp.sin, p.b, merge="mean"),
    "parallel max": lambda p: ep.parallel(p.a, jnp.sin, p.b, merge="max"),
    "parallel prod": lambda p: ep.parallel(p.a, jnp.sin, p.b, merge="prod"),
    "parallel concat": lambda p: ep.parallel(p.a, jnp.sin),
    "parallel stack": lambda p: ep.parallel(p.a, jnp.sin, merge="stack", axis=0),
    "parallel tuple": lambda p: ep.parallel(p.a, jnp.sin, merge="tuple"),
    "parallel dict": lambda p: ep.parallel({"b": p.a, "a": jnp.sin}, merge="dict"),
    "parallel module": lambda p: ep.parallel(
        p.a, jnp.sin, merge=ep.chain(product, p.c)
    ),
    "weighted": lambda p: ep.weighted(p.a, p.b, weights=[0.2, 0.6]),
    "weighted softmax": lambda p: ep.weighted(p.a, p.b, normalize="softmax"),
    "weighted by a gate": lambda p: ep.weighted(
        p.a, p.b, weights=gate, normalize="sum"
    ),
    "residual": lambda p: ep.residual(p.a, p.b),
    "residual broadcast": lambda p: with_mask(ep.residual(p.block, broadcast="mask")),
    "at a path": lambda p: ep.chain(
        lambda x: {"a": x, "b": (x, 1.0)}, ep.at(("b", 0), p.a)
    ),
    "feed": lambda p: with_mask(ep.feed(plus_sine, "x", b="mask")),
    "graph": lambda p: ep.graph(
        {"first": p.a, "left": p.b, "right": jnp.sin, "end": plus_sine},
        {"first": [], "left": ["first"], "right": "first", "end": ["left", "right"]},
        "end",
    ),
    "graph with two sinks": lambda p: ep.graph(
        {"a": p.a, "b": jnp.tanh}, {"a": [], "b": ["a"]}, {"x": "a", "y": "b"}
    ),
    "repeat": lambda p: p.many(ep.repeat, 3),
    "repeat of none": lambda p: p.many(ep.repeat, 0),
    "repeat broadcast": lambda p: with_mask(
        p.many(ep.repeat, 3, p.masked, broadcast="mask")
    ),
    "repeat shared": lambda p: ep.repeat(ep.chain(p.a, jnp.tanh), 3, shared=True),
    "ensemble": lambda p: p.many(ep.ensemble, 3),
    "ensemble max": lambda p: p.many(ep.ensemble, 3, merge="max"),
    "batched": lambda p: ep.chain(twice, ep.batched(ep.chain(p.a, jnp.tanh))),
    "batched with a name": lambda p: ep.chain(
        twice, ep.batched(lambda x: x - jax.lax.pmean(x, "rows"), axis_name="rows")
    ),
    "scan": lambda p: ep.chain(twice, ep.scan(p.cell, lambda xs: -xs[0])),
    "scan broadcast": lambda p: ep.chain(
        lambda x: {"x": twice(x), "mask": jnp.cos(x)},
        ep.scan(masked_sum, lambda xs: -xs["x"][0], broadcast="mask"),
    ),
    "scan of a GRU": lambda p: ep.chain(
        twice, ep.scan(p.gru, returns="carry", reverse=True)
    ),
    "tied": lambda p: ep.tied(
        ep.chain(p.a, jnp.tanh, p.b), lambda q: q[2].weight, lambda q: q[0].weight.T
    ),
    "frozen": lambda p: ep.chain(ep.frozen(p.a), p.b),
    "precision": lambda p: ep.precision(
        ep.chain(a=p.a, norm=eqx.nn.LayerNorm(p.size), b=p.b), keep="norm"
    ),
    "outputs": lambda p: ep.outputs(ep.chain(a=p.a, act=jnp.tanh, b=p.b), "act"),
    "cond": lambda p: ep.cond(positive, p.a, jnp.cos),
    "switch": lambda p: ep.switch(lambda x: jnp.argmax(x[:3]), p.a, jnp.sin, p.b),
    "gated sum": lambda p: ep.gated(p.a, jnp.sin, gates=GATES),
    "gated mean": lambda p: ep.gated(p.a, jnp.sin, gates=GATES, merge="mean"),
    "gated max": lambda p: ep.gated(p.a, jnp.sin, gates=GATES, merge="max"),
    "gated stack": lambda p: ep.gated(p.a, jnp.sin, gates=GATES, merge="stack"),
    "gated dict": lambda p: ep.gated(
        {"a": p.a, "b": jnp.sin}, gates={"b": never, "a": positive}, merge="dict"
    ),
    # Where keys go.
    "noisy chain": lambda p: ep.chain(jnp.sin, DROPOUT, DROPOUT),
    "noisy names": lambda p: ep.chain(a=DROPOUT, b=ep.chain(DROPOUT)),
    "noisy parallel": lambda p: ep.parallel(
        DROPOUT, DROPOUT, merge=lambda ys, key: DROPOUT(ys[0] + ys[1], key=key)
    ),
    "noisy weighted": lambda p: ep.weighted(
        {"a": DROPOUT, "b": DROPOUT}, weights=lambda x, key: jr.uniform(key, (2,))
    ),
    "noisy residual": lambda p: ep.residual(DROPOUT, DROPOUT),
    "noisy at": lambda p: ep.chain(lambda x: (x,), ep.at(0, DROPOUT)),
    "noisy feed": lambda p: with_mask(ep.feed(noisy_product, "x", b="mask")),
    "noisy graph": lambda p: ep.graph(
        {"a": DROPOUT, "b": noisy_product}, {"a": [], "b": ["a", "input"]}, "b"
    ),
    "noisy repeat": lambda p: ep.repeat(noise_of, 3, key=KEY),
    "noisy repeat shared": lambda p: ep.repeat(DROPOUT, 3, shared=True),
    "noisy ensemble": lambda p: ep.ensemble(noise_of, 3, key=KEY, merge="max"),
    "noisy batched": lambda p: ep.chain(twice, ep.batched(DROPOUT)),
    "noisy scan": lambda p: ep.chain(twice, ep.scan(noisy_cell, lambda xs: xs[0])),
    "noisy tied": lambda p: ep.tied(
        ep.chain(p.a, p.b, DROPOUT), lambda q: q[1].weight, lambda q: q[0].weight
    ),
    "noisy frozen": lambda p: ep.frozen(ep.chain(DROPOUT)),
    "noisy precision": lambda p: ep.precision(ep.chain(DROPOUT), "float32"),
    "noisy outputs": lambda p: ep.outputs(ep.chain(a=DROPOUT), "a"),
    "noisy cond": lambda p: ep.cond(noisy_gate, DROPOUT, DROPOUT),
    "noisy switch": lambda p: ep.switch(lambda x: 1, {"a": DROPOUT, "b": DROPOUT}),
    "noisy gated": lambda p: ep.gated(DROPOUT, DROPOUT, gates=(noisy_gate, positive)),
}
"""A pipeline or more for each combinator, as functions of some `Parts`."""
