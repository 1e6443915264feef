"""A composed program is the one that XLA makes of the same maths written by hand."""

import re

import equinox as eqx
import equinox.nn as nn
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import pytest
from support.branches import close, first_positive, linears, selected
from support.by_hand import by_hand
from support.combinators import COMBINATORS, Parts
from support.helpers import few, numbers, slow_unless
from support.hlo import normalized
from support.pipelines import pipelines
from support.strategies import structs

import eqx_pipe as ep

X = numbers(jax.ShapeDtypeStruct((8,), jnp.float32))


def composed(pipe, x, key):
    return pipe(x, key=key)


def forward(call):
    return lambda pipe, x, key: call(pipe, x, key)


def backward(call):
    def total(both, key):
        y = call(*both, key)
        leaves = [leaf for leaf in jtu.tree_leaves(y) if eqx.is_inexact_array(leaf)]
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves)

    return lambda pipe, x, key: eqx.filter_grad(total)((pipe, x), key)


def programs(direction, pipe, x, key):
    """Compile a pipeline, and what it means when written by hand."""
    # Nothing is baked in: a constant would be folded, or not, as XLA likes.
    return [
        eqx.filter_jit(direction(call)).lower(pipe, x, key).compile().compiled
        for call in (composed, by_hand)
    ]


QUICK = {
    *{"chain broadcast", "parallel mean", "weighted softmax", "residual", "at a path"},
    *{"graph", "repeat", "ensemble", "batched", "scan of a GRU", "tied", "precision"},
    *{"cond", "switch", "gated mean", "noisy names"},
}


@pytest.mark.parametrize("name", slow_unless(QUICK, COMBINATORS))
def test_each_combinator_is_the_program_written_by_hand(name):
    key = jr.key(0) if name.startswith("noisy") else None
    for direction in (forward, backward):
        ours, theirs = programs(direction, COMBINATORS[name](Parts(8)), X, key)
        if direction is backward and name in ONLY_COSTS:
            assert_costs(ours, theirs)
        else:
            assert normalized(ours.as_text()) == normalized(theirs.as_text())


# A branch that draws keeps other values for its backward pass than `lax.cond` does.
ONLY_COSTS = {"noisy cond", "noisy gated"}
if jax.__version_info__ < (0, 12):
    # There `lax.cond` returns the parameters of its branches for the backward pass.
    ONLY_COSTS |= {name for name in COMBINATORS if re.search("cond|switch|gated", name)}


def assert_costs(ours, theirs):
    """Raise if a program has more flops, or clearly more bytes, than another."""
    (flops, size, temporary), most = counted(ours), counted(theirs)
    assert flops <= most[0]
    assert size <= 1.02 * most[1] + 4096
    assert temporary <= 1.02 * most[2] + 4096


def counted(program):
    """Return the flops, the bytes accessed and the temporary bytes of a program."""
    found = program.cost_analysis()
    temporary = program.memory_analysis().temp_size_in_bytes
    return found.get("flops", 0.0), found.get("bytes accessed", 0.0), temporary


@few
@hp.given(st.data())
def test_nestings_are_the_program_of_their_maths(data):
    struct = data.draw(structs())
    random = data.draw(st.booleans())
    pipe = data.draw(pipelines(struct, max_depth=2, branches=False, random=random))
    key = jr.key(0) if random else None
    for direction in (forward, backward):
        assert_costs(*programs(direction, ep.chain(pipe), numbers(struct), key))


def test_a_long_chain_has_the_equations_of_the_loop():
    layers = [eqx.nn.Linear(4, 4, key=jr.key(0))] * 128
    pipe = ep.chain(*[stage for layer in layers for stage in (layer, jnp.tanh)])

    def loop(x):
        for layer in layers:
            x = jnp.tanh(layer.weight @ x + layer.bias)
        return x

    counts = [len(jax.make_jaxpr(f)(X[:4]).eqns) for f in (lambda x: pipe(x), loop)]
    assert counts[0] == counts[1]


def nest(depth, seed=0, size=32):
    if depth == 0:
        return nn.Linear(size, size, key=jr.key(seed))
    return ep.cond(
        lambda x: x[depth] > 0,
        nest(depth - 1, 2 * seed, size),
        nest(depth - 1, 2 * seed + 1, size),
    )


@pytest.mark.parametrize("depth", [1, 3])
def test_batched_costs_what_a_select_costs(depth):
    pipe = nest(depth)
    arrays, static = eqx.partition(pipe, eqx.is_array)
    xs = jr.normal(jr.key(1), (64, 32))

    def lower(fn):
        run = jax.jit(lambda a, xs: jax.vmap(fn, (None, 0))(eqx.combine(a, static), xs))
        return run.lower(arrays, xs)

    ours, hand = lower(lambda pipe, x: pipe(x)), lower(selected)
    compiled = [low.compile() for low in (ours, hand)]
    close(*(program(arrays, xs) for program in compiled))
    flops = [program.cost_analysis()["flops"] for program in compiled]
    assert flops[0] <= 1.05 * flops[1]
    assert len(ours.as_text()) <= 3 * len(hand.as_text())


def positive(x):
    return jnp.sum(x) > 0


BRANCHES = {
    "cond": ep.cond(positive, *linears(2, 64)),
    "switch": ep.switch(lambda x: jnp.argmax(x[:3]), *linears(3, 64)),
    "gated": ep.gated(*linears(2, 64), gates=(positive, first_positive)),
}


@pytest.mark.parametrize(
    ("name", "grad"),
    [
        ("cond", False),
        ("switch", True),
        pytest.param("gated", True, marks=pytest.mark.slow),
    ],
)
def test_for_each_example_it_counts_the_flops_and_twice_the_bytes_of_a_select(
    name, grad
):
    """Check costs; each branch is a conditional, whose output is not fused."""
    arrays, static = eqx.partition(ep.batched(BRANCHES[name]), eqx.is_array)
    xs = jr.normal(jr.key(1), (32, 64))

    def cost(call):
        def run(arrays, xs):
            return call(eqx.combine(arrays, static), xs)

        def total(arrays, xs):
            return (run(arrays, xs) ** 2).sum()

        fn = jax.grad(total, argnums=(0, 1)) if grad else run
        return jax.jit(fn).lower(arrays, xs).compile().cost_analysis()

    def hand(pipe, xs):
        return jax.vmap(lambda x: selected(pipe.stage, x))(xs)

    ours, hand = cost(lambda pipe, xs: pipe(xs)), cost(hand)
    assert ours["flops"] <= 1.05 * hand["flops"]
    assert ours["bytes accessed"] <= 2 * hand["bytes accessed"]
