"""Programs of `cond` and `switch` under `vmap`: branches, memory and flops."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax
from support.branches import choose, close


def test_parameters_are_not_copied_per_example():
    weights = jr.normal(jr.key(0), (2, 64, 64))
    xs = jr.normal(jr.key(1), (32, 64))

    def model(weights, x):
        branches = [lambda x, i=i: jnp.tanh(weights[i].T @ x) for i in range(2)]
        return choose(x[0] > 0, branches, x)

    def loss(weights, xs):
        return jax.vmap(model, (None, 0))(weights, xs).sum()

    per_example = jax.vmap(
        jax.grad(lambda w, x: model(w, x).sum(), argnums=1), (None, 0)
    )
    for fn in (jax.vmap(model, (None, 0)), jax.grad(loss), per_example):
        compiled = jax.jit(fn).lower(weights, xs).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 32 * 64 * 64 * 4


def test_a_branch_that_no_example_chose_does_not_run():
    ran = []

    def noisy(name):
        return lambda x: jax.pure_callback(
            lambda x: (ran.append(name), np.asarray(x))[1],
            x,
            x,
            vmap_method="expand_dims",
        )

    @jax.jit
    def run(xs):
        return jax.vmap(lambda x: choose(x > 0, [noisy("no"), noisy("yes")], x))(xs)

    jax.block_until_ready(run(jnp.ones(4)))
    assert set(ran) == {"yes"}
    jax.block_until_ready(run(-jnp.ones(4)))
    assert set(ran) == {"yes", "no"}


def test_closed_lanes_neither_prolong_a_loop_nor_raise():
    def countdown(x):
        # never ends for a negative x
        loop = ft.partial(lax.while_loop, lambda v: v != 0, lambda v: v - 1)
        return jax.jit(loop)(x)

    def checked(x):
        return eqx.error_if(x, x < 0, "negative")

    xs = jnp.array([3, -1, 2, -5])
    for branch, expected in ((countdown, [0, -1, 0, -5]), (checked, [3, -1, 2, -5])):
        run = jax.jit(jax.vmap(lambda x, b=branch: choose(x > 0, [lambda x: x, b], x)))
        assert run(xs).tolist() == expected


def test_gradients_per_example_cost_what_a_select_costs():
    weights = jr.normal(jr.key(0), (2, 64, 64))
    xs = jr.normal(jr.key(1), (32, 64))

    def ours(weights, x):
        branches = [lambda x, i=i: jnp.tanh(weights[i] @ x) for i in range(2)]
        return choose(x[0] > 0, branches, x)

    def hand(weights, x):
        no, yes = (jnp.tanh(weights[i] @ x) for i in range(2))
        return jnp.where(x[0] > 0, yes, no)

    def cost(fn):
        grad = jax.vmap(
            jax.grad(lambda w, x: fn(w, x).sum(), argnums=(0, 1)), (None, 0)
        )
        return jax.jit(grad).lower(weights, xs).compile().cost_analysis()["flops"]

    assert cost(ours) <= 1.05 * cost(hand)


@pytest.mark.parametrize("per_example", [False, True])
def test_collectives_over_the_batch_inside_a_branch(per_example):
    xs = jr.normal(jr.key(0), (8, 3)) + 1

    def one(x):
        mean = lax.pmean(x, "b")
        branches = [
            lambda x: (x, jnp.zeros(3)),
            lambda x: (x - mean, lax.pmean(x, "b")),
        ]
        pred = (x if per_example else mean)[0] > 0
        return choose(pred, branches, x)

    out_axes = (0, 0 if per_example else None)
    y, mean = jax.vmap(one, axis_name="b", out_axes=out_axes)(xs)
    assert mean.shape == ((8, 3) if per_example else (3,))
    if not per_example:
        close(y, xs - xs.mean(0, keepdims=True))
        close(mean, xs.mean(0))


def test_the_position_in_the_batch_inside_a_branch():
    def one(x):
        branches = [lambda x: x, lambda x: x + lax.axis_index("b")]
        return choose(jnp.array(True), branches, x)

    run = jax.vmap(one, in_axes=None, axis_name="b", axis_size=3, out_axes=0)
    assert run(jnp.int32(1)).tolist() == [1, 2, 3]
