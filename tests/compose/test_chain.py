"""`chain`: left to right, and the laws that every composite inherits from it."""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax.numpy as jnp
import jax.random as jr
from support.helpers import assert_agree
from support.stages import Count
from support.strategies import one_stage, structs

import eqx_pipe as ep
import eqx_pipe.testing as ept


@hp.given(st.data())
def test_the_empty_chain_is_the_identity(data):
    struct = data.draw(structs())
    x = data.draw(ept.arrays(struct))
    assert_agree(ep.chain()(x), x)
    stage = data.draw(one_stage(struct, random=False))
    for pipe in (ep.chain(stage), ep.chain(ep.chain(), stage, eqx.nn.Identity())):
        assert_agree(pipe(x), stage(x))


@hp.given(st.data())
def test_chaining_is_associative(data):
    struct = data.draw(structs())
    x = data.draw(ept.arrays(struct))
    few = one_stage(struct, random=False)
    f, g, h = (data.draw(few) for _ in range(3))
    flat = ep.chain(f, g, h)(x)
    assert_agree(ep.chain(f, ep.chain(g, h))(x), flat)
    assert_agree(ep.chain(ep.chain(f, g), h)(x), flat)


def test_a_pipeline_sits_in_sequential():
    linear = eqx.nn.Linear(3, 3, key=jr.key(0))
    inner = ep.chain(linear, ep.parallel(jnp.sin, jnp.cos))
    x, key = jnp.arange(3.0), jr.key(1)
    outer = eqx.nn.Sequential([inner, eqx.nn.Lambda(jnp.tanh)])
    assert_agree(outer(x), jnp.tanh(inner(x)))
    noisy = ep.chain(inner, eqx.nn.Dropout(0.5))
    assert eqx.nn.Sequential([noisy])(x, key=key).shape == (6,)
    assert_agree(eqx.nn.inference_mode(noisy)(x), inner(x))
    assert_agree(ep.chain(outer, jnp.sin)(x), jnp.sin(outer(x)))


def test_a_state_comes_back_whenever_it_is_given():
    _, state = eqx.nn.make_with_state(Count)()
    pipe, x = ep.chain(jnp.sin), jnp.ones(2)
    assert not pipe.is_stateful()
    for y, new in (pipe(x, state), pipe(x, state=state)):
        assert_agree(y, jnp.sin(x))
        assert eqx.tree_equal(new, state)
