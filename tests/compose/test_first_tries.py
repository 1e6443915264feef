"""What people type first, and what they get told."""

import functools as ft

import equinox as eqx
import equinox.nn as nn
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

X = jnp.ones(3)


def noise(x, key):
    return x + jr.normal(key, x.shape)


class Runtime(eqx.Module):
    """Fails when run, not when traced, with a key as without."""

    def __call__(self, x, *, key=None):
        return eqx.error_if(x, x.sum() > 0, "bad value here")


def test_a_failure_at_run_time_is_not_a_missing_key():
    with pytest.raises(Exception, match="bad value here") as caught:
        ep.chain(Runtime())(X)
    assert not isinstance(caught.value, ep.MissingKeyError)


class Forgetful(nn.StatefulLayer):
    index: nn.StateIndex
    result: object = eqx.field(static=True)

    def __init__(self, result):
        self.index = nn.StateIndex(jnp.float32(0))
        self.result = result

    def __call__(self, x, state, *, key=None):
        return x if self.result == "x" else (x, x)


@pytest.mark.parametrize("result", ["x", "pair"])
def test_a_stateful_stage_must_return_its_state(result):
    pipe, state = nn.make_with_state(lambda: ep.chain(Forgetful(result)))()
    with pytest.raises(TypeError, match=r"Return `\(y, state\)`"):
        pipe(X, state)


def test_keys_that_a_function_has_already_stay():
    key, other = jr.key(1), jr.key(2)
    bound = ft.partial(noise, key=key)
    for given in (None, other):
        np.testing.assert_array_equal(ep.chain(bound)(X, key=given), noise(X, key))

    def with_default(x, key=key):
        return noise(x, key)

    np.testing.assert_array_equal(ep.chain(with_default)(X), noise(X, key))
    drawn = ep.chain(with_default)(X, key=other)
    np.testing.assert_array_equal(drawn, noise(X, jr.fold_in(other, 0)))


def test_the_first_parameter_is_the_input_whatever_its_name():
    draw = ep.chain(lambda key: jr.normal(key, (2,)))
    np.testing.assert_array_equal(draw(jr.key(3)), jr.normal(jr.key(3), (2,)))


def test_a_layer_takes_its_key_by_keyword_in_repeat():
    deep = ep.repeat(ft.partial(nn.Linear, 3, 3), 2, key=jr.key(0))
    made = nn.Linear(3, 3, key=jr.fold_in(jr.key(0), 1))
    np.testing.assert_array_equal(deep[1].weight, made.weight)


def test_an_index_too_large_for_an_array_is_clamped():
    pipe = ep.switch(lambda x: 2**40, jnp.sin, jnp.cos)
    np.testing.assert_allclose(pipe(X), jnp.cos(X), rtol=1e-6)


def test_batch_norm_in_a_branch():
    def make():
        norm = nn.BatchNorm(3, axis_name="b", mode="batch")
        return ep.cond(lambda x: jnp.array(True), norm)

    pipe, state = nn.make_with_state(make)()
    xs = jr.normal(jr.key(0), (4, 3))
    y, _ = ep.batched(pipe, axis_name="b")(xs, state)
    np.testing.assert_allclose(y.mean(0), jnp.zeros(3), atol=1e-5)


def test_outputs_of_a_gated():
    pipe = ep.chain(
        g=ep.gated(
            {"a": jnp.sin, "b": jnp.cos},
            gates={"a": lambda x: True, "b": lambda x: False},
        )
    )
    found = ep.outputs(pipe)(X)[1]
    assert list(found) == ["g.gates.a", "g.gates.b", "g.a", "g.b", "g"]
    np.testing.assert_allclose(found["g.a"], jnp.sin(X), rtol=1e-6)
    np.testing.assert_array_equal(found["g.b"], jnp.zeros(3))
