"""A composed program costs what the same maths costs when written by hand."""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import pytest
from support.by_hand import by_hand
from support.helpers import numbers, slow_unless
from support.strategies import structs

import eqx_pipe as ep
import eqx_pipe.testing as ept

WIDE = jax.ShapeDtypeStruct((64,), jnp.float32)


def _forward(call):
    return lambda pipe, x, key: call(pipe, x, key)


def _backward(call):
    def total(both, key):
        y = call(*both, key)
        leaves = [leaf for leaf in jtu.tree_leaves(y) if eqx.is_inexact_array(leaf)]
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves)

    return lambda pipe, x, key: eqx.filter_grad(total)((pipe, x), key)


def _costs(fn, pipe, x, key):
    """Flops, bytes accessed and temporary memory of the compiled program."""
    # Nothing is baked in: a constant would be folded, or not, as XLA likes.
    program = eqx.filter_jit(fn).lower(pipe, x, key).compile().compiled
    analysis = program.cost_analysis()
    memory = program.memory_analysis().temp_size_in_bytes
    return analysis.get("flops", 0.0), analysis.get("bytes accessed", 0.0), memory


def _check_cost(pipe, x, key):
    def composed(pipe, x, key):
        return pipe(x, key=key)

    pipe = ep.chain(pipe)
    for direction in (_forward, _backward):
        ours = _costs(direction(composed), pipe, x, key)
        theirs = _costs(direction(by_hand), pipe, x, key)
        assert ours[0] <= theirs[0], (direction.__name__, "flops", ours, theirs)
        for name, a, b in zip(("bytes", "temp"), ours[1:], theirs[1:], strict=True):
            assert a <= 1.02 * b + 4096, (direction.__name__, name, ours, theirs)


def _linear(seed):
    return eqx.nn.Linear(64, 64, key=jr.key(seed))


def _linear_of(key):
    return eqx.nn.Linear(64, 64, key=key)


A, B, C = LINEAR = [_linear(seed) for seed in range(3)]


def _gate(x):
    return jnp.arange(1.0, 4.0) + jax.nn.sigmoid(x[0])


def _join(ys):
    return ys[0] * ys[1] * ys[2]


def _block(key):
    return ep.graph(
        {"a": _linear_of(key), "scale": jnp.multiply, "add": jnp.add},
        {"a": "x", "scale": ["a", "by"], "add": ["x", "scale"]},
        "add",
        inputs=("x", "by"),
    )


def _with_inputs(*stages):
    return ep.chain(lambda x: {"x": x, "by": jnp.cos(x)}, *stages)


COMBINATORS = {
    "random chain": ep.chain(a=A, drop=eqx.nn.Dropout(0.5), b=B),
    "parallel": ep.parallel(
        {
            str(merge): ep.parallel(A, B, C, merge=merge)
            for merge in ("sum", "mean", "prod", "max", "tuple", "concat", _join)
        },
        merge="dict",
    ),
    "weighted": ep.parallel(
        *(
            ep.weighted(A, B, C, weights=weights, normalize=normalize)
            for weights, normalize in (
                (jnp.linspace(0.2, 1.0, 3), "none"),
                (jnp.linspace(0.2, 1.0, 3), "softmax"),
                (_gate, "sum"),
            )
        ),
        merge="tuple",
    ),
    "at a function": ep.chain(lambda x: {"a": x, "b": x}, ep.at(lambda x: x["a"], A)),
    "repeat": ep.repeat(lambda key: eqx.nn.Linear(64, 64, key=key), 3, key=jr.key(0)),
    "residual": ep.residual(A, B, skip=C),
    "ensemble": ep.ensemble(_linear_of, 3, key=jr.key(0)),
    "scan": ep.chain(
        lambda x: jnp.stack([x, 2 * x]),
        ep.scan(eqx.nn.GRUCell(64, 64, key=jr.key(0)), returns="last"),
    ),
    "batched": ep.chain(lambda x: jnp.stack([x, 2 * x]), ep.batched(A)),
    "graph": ep.graph(
        {"first": A, "left": B, "right": C, "add": jnp.add},
        {"first": [], "left": ["first"], "right": ["first"], "add": ["left", "right"]},
        "add",
    ),
    "over": _with_inputs(
        ep.chain(_block(jr.key(0)), ep.feed(jnp.multiply, "x", "by"), over="x")
    ),
    "tied": ep.tied(ep.chain(A, B), lambda p: p[1].weight, lambda p: p[0].weight.T),
    "precision": ep.precision(
        ep.chain(a=A, norm=eqx.nn.LayerNorm(64), b=B), keep="norm"
    ),
    "outputs": ep.outputs(ep.chain(a=A, act=jnp.tanh, b=B), "act"),
    "frozen": ep.chain(ep.frozen(A), B),
    "repeat over": _with_inputs(ep.repeat(_block, 3, key=jr.key(0), over="x")),
}


QUICK = {"random chain", "parallel", "weighted", "repeat", "batched", "graph", "tied"}


@pytest.mark.parametrize("name", slow_unless(QUICK, COMBINATORS))
def test_each_combinator_costs_what_its_maths_costs(name, getkey):
    key = getkey() if name in ("random chain", "residual") else None
    _check_cost(COMBINATORS[name], numbers(WIDE), key)


@hp.given(st.data())
def test_nestings_cost_what_their_maths_costs(data):
    struct = data.draw(structs())
    random = data.draw(st.booleans())
    pipe = data.draw(ept.pipelines(struct, max_depth=2, branches=False, random=random))
    _check_cost(pipe, numbers(struct), jr.key(0) if random else None)


def _count(jaxpr):
    return len(jaxpr.jaxpr.eqns)


def test_a_long_chain_has_the_equations_of_the_loop():
    layers = [eqx.nn.Linear(4, 4, key=jr.key(i)) for i in range(128)]
    stages = [stage for layer in layers for stage in (layer, jnp.tanh)]
    pipe = ep.chain(*stages)

    def by_hand(x):
        for layer in layers:
            x = jnp.tanh(layer.weight @ x + layer.bias)
        return x

    x = jnp.ones(4)
    assert len(pipe) == 256
    assert _count(jax.make_jaxpr(lambda x: pipe(x))(x)) == _count(
        jax.make_jaxpr(by_hand)(x)
    )


def test_a_repeat_does_not_grow():
    x = jnp.ones(4)
    sizes = []
    for n in (4, 64):
        pipe = ep.repeat(lambda key: eqx.nn.Linear(4, 4, key=key), n, key=jr.key(0))
        sizes.append(len(str(jax.make_jaxpr(lambda x, pipe=pipe: pipe(x))(x))))
    assert sizes[1] <= sizes[0] + 8  # "64" has one more digit than "4"
