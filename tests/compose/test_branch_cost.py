"""Choices for each example cost a select; see `test_programs.py` for one choice."""

import equinox as eqx
import equinox.nn as nn
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from support.branches import close, first_positive, linears
from support.by_hand import selected

import eqx_pipe as ep


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
    """Each branch is a conditional of its own, whose output is not fused."""
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
