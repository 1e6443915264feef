"""`residual`: what some stages make of the input, added to it."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import pytest
from support.by_hand import by_hand, child_key
from support.helpers import assert_agree, filled
from support.stages import Count

import eqx_pipe as ep

KEY = jr.key(0)
LINEAR = filled(lambda key: eqx.nn.Linear(4, 4, key=key), KEY)
WIDER = filled(lambda key: eqx.nn.Linear(4, 6, key=key), KEY)
X = jnp.linspace(-1.0, 1.0, 4)


def test_it_is_the_sum_of_what_is_added():
    block = ep.residual({"norm": eqx.nn.LayerNorm(4), "lin": LINEAR})
    assert_agree(block(X), X + LINEAR(eqx.nn.LayerNorm(4)(X)))
    wide = ep.residual(jnp.tanh, WIDER, skip=WIDER)
    assert_agree(wide(X), WIDER(X) + WIDER(jnp.tanh(X)))
    assert list(ep.outputs(block)(X)[1]) == ["norm", "lin"]
    assert list(ep.outputs(wide)(X)[1]) == ["0", "1", "skip"]
    assert block["lin"] is LINEAR and len(wide) == 2


def test_draws_are_those_of_a_chain():
    def noise(x, *, key):
        return x + jr.normal(key, x.shape)

    wanted = X + ep.chain(noise, noise)(X, key=KEY)
    assert_agree(ep.residual(noise, noise)(X, key=KEY), wanted)
    wanted = noise(X, key=child_key(KEY, "skip")) + jnp.sin(X)
    assert_agree(ep.residual(jnp.sin, skip=noise)(X, key=KEY), wanted)


def test_state_goes_through_the_stages_and_the_skip():
    def make():
        return ep.residual(Count(), Count(), skip=Count())

    pipe, state = eqx.nn.make_with_state(make)()
    y, after = pipe(jnp.zeros(()), state)
    assert_agree(y, jnp.float32(3))
    assert_agree(pipe(jnp.zeros(()), after)[0], jnp.float32(6))


def test_it_is_the_sum_by_hand():
    block = ep.residual(LINEAR, skip=LINEAR)
    assert_agree(block(X, key=KEY), by_hand(block, X, KEY))


def test_nothing_is_broadcast():
    with pytest.raises(ep.StructureError, match="by `skip=` a projection") as caught:
        ep.chain(r=ep.residual(lambda x: x[:1]))(X)
    assert "`r.skip` and `r.0`" in str(caught.value)
