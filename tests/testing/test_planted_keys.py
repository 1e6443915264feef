"""Stages that use a key twice, or not at all, and stages that only look so."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from jax import lax
from support.broken import (
    draws_for_nothing,
)
from support.key_law import (
    KEYS,
    draw,
    each_with_one_kind,
    found,
    normal,
    uniform,
    unpacked,
)

import eqx_pipe as ep
import eqx_pipe.testing as ept

X = jnp.array([1.0, -2.0, 3.0])


def parent_after_split(x, *, key):
    return x * normal(jr.split(key)[0]) + normal(key)


def split_twice(x, *, key):
    return x * normal(jr.split(key)[0]) + normal(jr.split(key, 3)[2])


def folded_alike(x, *, key):
    return x * normal(jr.fold_in(key, 1)) + uniform(jr.fold_in(key, 1))


def split_and_folded_alike(x, *, key):
    """JAX gives the same key in both ways."""
    return x * normal(jr.split(key)[1]) + normal(jr.fold_in(key, 1))


def same_key_in_each_pass(x, *, key):
    return lax.scan(lambda c, _: (c + normal(key), None), x, None, 3)[0]


def same_key_in_each_pass_of_while(x, *, key):
    return lax.while_loop(
        lambda c: c.sum() < 10, lambda c: c + jnp.abs(normal(key)) + 1, jnp.abs(x)
    )


def same_key_in_a_condition(x, *, key):
    return lax.while_loop(
        lambda c: c.sum() < 5 + uniform(key), lambda c: c + jnp.abs(uniform(key)) + 1, x
    )


def carried_past_a_split(x, *, key):
    def step(key, _):
        return key, normal(jr.split(key)[1])

    return x + lax.scan(step, key, None, 3)[1]


def one_key_for_all_lanes(x, *, key):
    keys = jnp.broadcast_to(key, (3, *key.shape))
    return jax.vmap(lambda v, k: v + normal(k))(x, keys)


def twice_in_each_lane(x, *, key):
    return jax.vmap(lambda v, k: v * draw(k))(x, jr.split(key, 3))


def unpacked_in_each_lane(x, *, key):
    return jax.vmap(lambda v, k: v * draw(unpacked(k)[0]))(x, jr.split(key, 3))


def lanes_and_parent(x, *, key):
    return jax.vmap(lambda v, k: v + normal(k))(x, jr.split(key, 3)) * normal(key)


def last_lane_again(x, *, key):
    keys = jr.split(key, 3)
    return jax.vmap(lambda v, k: v + normal(k))(x, keys) * normal(keys[2])


def twice_in_a_branch_not_taken(x, *, key):
    return lax.cond(x.sum() > 100, lambda: x * draw(key), lambda: x)


def before_and_in_a_branch(x, *, key):
    y = x + normal(key)
    return lax.cond(x.sum() > 100, lambda: y * normal(key), lambda: y)


def before_and_in_a_branch_of_lanes(x, *, key):
    def one(v, k):
        return normal(k) + lax.cond(v > 0, lambda: uniform(k), lambda: v)

    return jax.vmap(one)(x, jr.split(key, 3))


def twice_in_a_derivative(x, *, key):
    @jax.custom_vjp
    def f(x, key):
        return x * draw(key)

    f.defvjp(lambda x, key: (f(x, key), None), lambda _, ct: (ct, None))
    return f(x, key)


def twice_in_a_jvp(x, *, key):
    f = jax.custom_jvp(lambda x, noise: x * noise)
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    return f(x, draw(key))


def other_samplers(x, *, key):
    return x * jr.gamma(key, 2.0) + jr.permutation(key, x)


WRONG = [
    parent_after_split, split_twice, folded_alike, split_and_folded_alike,
    same_key_in_each_pass,
    same_key_in_each_pass_of_while, same_key_in_a_condition, carried_past_a_split,
    one_key_for_all_lanes, twice_in_each_lane, unpacked_in_each_lane, lanes_and_parent,
    last_lane_again, twice_in_a_branch_not_taken, before_and_in_a_branch,
    before_and_in_a_branch_of_lanes, twice_in_a_derivative, twice_in_a_jvp,
    other_samplers,
]  # fmt: skip


@pytest.mark.parametrize(("stage", "kind"), each_with_one_kind(WRONG))
def test_a_key_used_twice_is_found(stage, kind):
    assert "one key is used" in found(stage, KEYS[kind])


def one_side_or_the_other(x, *, key):
    return lax.cond(x.sum() > 0, lambda: x * normal(key), lambda: x + uniform(key))


def one_side_or_the_other_in_lanes(x, *, key):
    def one(v, k):
        return lax.cond(v > 0, lambda: (v, normal(k)), lambda: (uniform(k), v))

    return jax.vmap(one)(x, jr.split(key, 3))


def one_of_three_in_lanes(x, *, key):
    def one(v, k):
        sides = [lambda: normal(k), lambda: uniform(unpacked(k)[1]), lambda: v]
        return lax.switch(v.astype(int), sides)

    return jax.vmap(one)(x, jr.split(key, 3))


def our_branches_in_lanes(x, *, key):
    def small(v, *, key):
        return v * normal(key)

    def large(v, *, key):
        return v + uniform(key)

    stage = ep.batched(ep.cond(lambda v: v > 0, small, large))
    return stage(x, key=key)


def a_loop_whose_lanes_end_apart(x, *, key):
    def one(n, key):
        def step(carry):
            i, key, s = carry
            key, own = jr.split(key)
            return i + 1, key, s + normal(own)

        _, key, s = lax.while_loop(lambda c: c[0] < n, step, (0, key, 0.0))
        return s * normal(key)

    return x + jax.vmap(one)(jnp.arange(3), jr.split(key, 3))


def counts_without_a_key(x, *, key):
    rates = jnp.abs(x) + 1
    return jax.vmap(jr.poisson)(jr.split(key, 3), rates).astype(x.dtype)


def copied_on_purpose(x, *, key):
    cloned = x * normal(jr.clone(key)) + jax.jit(lambda k: normal(jr.clone(k)))(key)
    return cloned * draw(*unpacked(key))


def constants(x, *, key):
    one = normal(jr.key(0)) + normal(jr.key(0))
    return x * one * normal(key)


def many_passes(x, *, key):
    def step(c, k):
        return c + normal(k), None

    return lax.scan(step, x, jr.split(key, 50))[0]


def differentiates(x, *, key):
    @jax.checkpoint
    def energy(x):
        return jnp.sin(x * normal(key, x.shape)).sum()

    return jax.grad(energy)(x)


def looks(x, *, key):
    jax.debug.callback(lambda k: None, jr.key_data(key))
    return x * normal(key)


def shared_by_all_lanes(x, *, key):
    return jax.vmap(lambda v: v + normal(key))(x)


def looks_at_numbers(x, *, key):
    return x * normal(key) if float(x[0]) > 0 else x


RIGHT = [
    one_side_or_the_other, one_side_or_the_other_in_lanes, one_of_three_in_lanes,
    our_branches_in_lanes, a_loop_whose_lanes_end_apart,
    copied_on_purpose, constants, many_passes, differentiates, looks,
    shared_by_all_lanes, looks_at_numbers,
]  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        *each_with_one_kind(RIGHT),
        pytest.param(counts_without_a_key, "old", marks=pytest.mark.slow),
    ],
)
def test_a_key_that_only_looks_as_if_used_twice_is_not(stage, kind):
    assert found(stage, KEYS[kind]) is None


def test_the_law_says_where_a_key_is_used():
    def noise(x, *, key):
        a, b = jr.split(key)
        return x + draw(a)

    with pytest.raises(AssertionError) as caught:
        ept.check_stage(ep.chain(jnp.sin, noise), X, key=KEYS["new"])
    text = str(caught.value)
    assert "the law `key` is broken" in text and "stage: `1` (noise)" in text
    assert "one key is used at key_law.py:" in text and "split it" in text


def test_a_draw_in_a_branch_alone_is_looked_at():
    with pytest.raises(AssertionError, match="one key is used"):
        ept.check_stage(twice_in_a_branch_not_taken, X, key=KEYS["new"])


def test_lanes_that_hold_one_key_are_told_from_two_draws():
    told = found(one_key_for_all_lanes, KEYS["new"])
    assert "in several lanes" in told and "a key for each lane" in told


def test_layers_that_were_given_one_key_are_found():
    def twins(x, *, key):
        drop = eqx.nn.Dropout(0.5)
        return drop(x, key=key) + drop(2 * x, key=key)

    with pytest.raises(AssertionError, match="one key is used at .* and again; split"):
        ept.check_key(twins, X, key=KEYS["old"])


# Keys that are given and not used.


def never_opens(x):
    return x.min() > 1000


SHUT = ep.gated(jnp.sin, gates=(never_opens,))


def times_a_difference(x, *, key):
    return x + (x - x) * jr.normal(key, x.shape)


@pytest.mark.parametrize(
    "stage",
    [draws_for_nothing, pytest.param(times_a_difference, marks=pytest.mark.slow)],
)
def test_an_ignored_key_is_caught_beside_a_closed_gate(stage):
    told = rf"`1` \({stage.__name__}\)"
    if stage is times_a_difference:  # seen by what comes out, which does not say where
        told = "of 32 keys all give the same output"
    with pytest.raises(AssertionError, match=told):
        ept.check_key(ep.chain(SHUT, stage), X, key=KEYS["new"])


def first_is_positive(x):
    return x[0] > 0


def test_a_draw_in_a_branch_not_taken_is_told_from_no_draw():
    draws = ep.chain(jnp.sin, ep.cond(first_is_positive, eqx.nn.Dropout(0.5)))
    with pytest.raises(AssertionError) as caught:
        ept.check_key(draws, -X, key=KEYS["new"])
    text = str(caught.value)
    assert "law `key`" in text and "stage: `1` (Cond)" in text
    assert "draws in a branch only" in text and "give an input for which" in text
    assert "skip=('key',)" in text
    ept.check_key(draws, X, key=KEYS["new"])
    with pytest.raises(AssertionError) as caught:
        ept.check_key(ep.chain(jnp.sin, jnp.tanh), X, key=KEYS["new"])
    text = str(caught.value)
    assert "law `key`" in text and "stage: (Chain)" in text
    assert "draws no random numbers at all" in text and "skip=('key',)" in text
