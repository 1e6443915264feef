"""Nested pipelines, drawn by a seed: every combinator, inside of every kind of other.

The library's own strategy draws pipelines too, but is rewritten itself. Each stage
here maps a vector of `WIDTH` numbers to another.
"""

import random

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqx_pipe as ep

WIDTH, DEPTH, COUNT = 4, 3, 10


def nestings():
    """Return functions that draw the pipelines, by name.

    Each begins with three combinators, the next three in the alphabet, so that ten of
    them contain all. A function returns the pipeline and the combinators in it.
    """
    kinds, found = sorted(COMBINATORS), {}
    assert 3 * COUNT >= len(kinds), "some combinators are in no nesting"
    for i in range(COUNT):
        spine = [kinds[k % len(kinds)] for k in range(3 * i, 3 * i + 3)]
        found[" ".join([str(i), *spine])] = lambda i=i, spine=spine: _drawn(i, spine)
    return found


def _drawn(seed, spine):
    drawing = Drawing(seed)
    return drawing.build(jr.key(seed), DEPTH, spine), drawing.used


class Drawing:
    """A source of choices, which notes the combinators that it used."""

    def __init__(self, seed):
        self.choices = random.Random(seed)
        self.used = set()

    def choose(self, *options):
        return options[self.choices.randrange(len(options))]

    def build(self, key, depth, spine=()):
        """Draw a stage; `spine` names the combinators that it must begin with."""
        if not spine and (depth == 0 or self.choices.random() < 0.3):
            return self.layer(key)
        kind = spine[0] if spine else self.choose(*sorted(COMBINATORS))
        self.used.add(kind)
        keys, rest = iter(jr.split(key, 8)), list(spine[1:])

        def child():
            below, rest[:] = list(rest), []  # the first child goes on with the spine
            return self.build(next(keys), depth - 1, below)

        return COMBINATORS[kind](self, child, lambda: next(keys))

    def layer(self, key):
        return self.choose(
            lambda: eqx.nn.Linear(WIDTH, WIDTH, key=key),
            lambda: eqx.nn.LayerNorm(WIDTH),
            lambda: eqx.nn.Dropout(0.5),
            lambda: jnp.tanh,
            lambda: scaled,
        )()

    def maker(self, key):
        """Return a function that draws the same stage with other parameters."""
        seed, below = self.choices.randrange(2**32), Drawing(0)

        def make(key):
            below.choices = random.Random(seed)
            stage = below.build(key, 1)
            return stage if eqx.filter(stage, eqx.is_array) else below.layer(key)

        return lambda key: ep.chain(eqx.nn.Linear(WIDTH, WIDTH, key=key), make(key))


def scaled(x):
    return 1.5 * x + 0.1


def positive(x):
    return jnp.sum(x) > 0


def first_positive(x):
    return x[0] > 0


def num_positive(x):
    return positive(x).astype(jnp.int32) + first_positive(x).astype(jnp.int32)


def linear(key, size=WIDTH):
    return eqx.nn.Linear(size, WIDTH, key=key)


def two_entries(x):
    return {"u": x, "v": 2 * x}


def three_rows(x):
    return jnp.stack([x, 0.5 * x, -x])


def chain(draw, child, key):
    if draw.choose(True, False):
        return ep.chain(child(), child())
    return ep.chain(first=child(), then=child())


def over(draw, child, key):
    inner = ep.chain(lambda d: d["u"] * d["v"], lambda d: d["u"] + d["v"], over="u")
    return ep.chain(two_entries, inner, child())


def parallel(draw, child, key):
    merge = draw.choose("sum", "mean", "max", "min", "prod", "concat", "stack", "tuple")
    pipe = ep.parallel(child(), child(), merge=merge)
    if merge == "concat":
        return ep.chain(pipe, linear(key(), 2 * WIDTH))
    if merge == "stack":
        return ep.chain(pipe, lambda y: jnp.sum(y.reshape(WIDTH, -1), axis=1))
    return ep.chain(pipe, lambda pair: pair[0] - pair[1]) if merge == "tuple" else pipe


def parallel_named(draw, child, key):
    pipe = ep.parallel({"left": child(), "right": child()}, merge="dict")
    return ep.chain(pipe, lambda d: d["left"] * d["right"])


def weighted(draw, child, key):
    weights = draw.choose(
        lambda: None,
        lambda: jnp.array([0.3, 0.7]),
        lambda: eqx.nn.Linear(WIDTH, 2, key=key()),
    )()
    normalize = draw.choose("none", "softmax")
    return ep.weighted(child(), child(), weights=weights, normalize=normalize)


def gated(draw, child, key):
    merge, closed = draw.choose("sum", "mean", "max"), draw.choose("input", "zeros")
    gates = (positive, first_positive)
    return ep.gated(child(), child(), gates=gates, merge=merge, closed=closed)


def cond(draw, child, key):
    return ep.cond(positive, child(), child())


def switch(draw, child, key):
    return ep.switch(num_positive, child(), child(), child())


def at(draw, child, key):
    part = ep.at(lambda d: d["u"], child())
    return ep.chain(two_entries, part, lambda d: d["u"] + d["v"])


def feed(draw, child, key):
    fed = ep.feed(lambda p, q: p + q, "v", q="u")
    return ep.chain(two_entries, fed, child())


def repeat(draw, child, key):
    remat = draw.choose(False, True)
    return ep.chain(ep.repeat(draw.maker(key), 3, key=key(), remat=remat), child())


def ensemble(draw, child, key):
    merge = draw.choose("mean", "max")
    return ep.chain(ep.ensemble(draw.maker(key), 3, key=key(), merge=merge), child())


def residual(draw, child, key):
    return ep.residual(child(), skip=draw.choose(None, scaled))


def scan(draw, child, key):
    reverse = draw.choose(False, True)
    cell = draw.choose(
        lambda: eqx.nn.GRUCell(WIDTH, WIDTH, key=key()),
        lambda: lambda carry, x: (0.5 * carry + x, jnp.tanh(carry + x)),
    )()
    steps = ep.scan(cell, jnp.ones(WIDTH), reverse=reverse)
    return ep.chain(three_rows, steps, lambda ys: jnp.sum(ys, axis=0), child())


def scan_last(draw, child, key):
    last = ep.scan(eqx.nn.GRUCell(WIDTH, WIDTH, key=key()), returns="last")
    return ep.chain(three_rows, last, child())


def batched(draw, child, key):
    return ep.chain(three_rows, ep.batched(child()), lambda ys: jnp.sum(ys, axis=0))


def graph(draw, child, key):
    nodes = {"a": child(), "b": child(), "c": child(), "sum": lambda p, q: p + q}
    edges = {"a": [], "b": "a", "c": "a", "sum": ["b", "c"]}
    return ep.graph(nodes, edges, "sum")


def tied(draw, child, key):
    pipe = ep.chain(linear(key()), child(), linear(key()))
    return ep.tied(pipe, lambda p: p[2].weight, lambda p: p[0].weight)


def frozen(draw, child, key):
    return ep.frozen(child())


def precision(draw, child, key):
    return ep.precision(child(), "bfloat16")


def outputs(draw, child, key):
    pipe = ep.outputs(ep.chain(first=child(), then=child()), "first")
    return ep.chain(pipe, lambda pair: pair[0] + pair[1]["first"])


COMBINATORS = {
    make.__name__: make
    for make in (
        *(chain, over, parallel, parallel_named, weighted, gated, cond, switch, at),
        *(feed, repeat, ensemble, residual, scan, scan_last, batched, graph, tied),
        *(frozen, precision, outputs),
    )
}


def trained_in_part():
    """Return the loss of a pipeline of which `trainable` selects one layer."""
    pipe = ep.chain(a=linear(jr.key(0)), b=jnp.tanh, c=linear(jr.key(1)))
    trained, fixed = eqx.partition(pipe, ep.trainable(pipe, "c"))

    def loss(trained, x):
        return jnp.sum(eqx.combine(trained, fixed)(x) ** 2)

    return jax.grad(loss), (trained, jnp.ones(WIDTH))
