"""`weighted`: a weighted sum of stages."""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import assert_agree
from support.strategies import one_stage, structs

import eqx_pipe as ep
import eqx_pipe.testing as ept


@hp.given(st.data())
def test_the_sum_is_free_of_order_and_linear_in_the_weights(data):
    struct = data.draw(structs())
    stages = [data.draw(one_stage(struct, random=False)) for _ in range(3)]
    x, order = data.draw(ept.arrays(struct)), data.draw(st.permutations(range(3)))
    w = jnp.array([0.5, -1.0, 2.0])
    y = ep.weighted(*stages, weights=w)(x)
    shuffled = [stages[i] for i in order]
    assert_agree(ep.weighted(*shuffled, weights=w[jnp.array(order)])(x), y)
    double = ep.weighted(*stages, weights=2 * w)(x)
    assert_agree(double, jax.tree.map(lambda v: 2 * v, y))


@pytest.mark.parametrize(
    ("normalize", "finish"),
    [
        ("none", lambda w: w),
        ("sum", lambda w: w / w.sum()),
        ("softmax", jax.nn.softmax),
    ],
)
def test_weights_are_normalized(normalize, finish):
    w, x = jnp.array([1.0, 3.0]), jnp.arange(3.0)
    expected = finish(w)[0] * jnp.sin(x) + finish(w)[1] * jnp.cos(x)
    pipe = ep.weighted(jnp.sin, jnp.cos, weights=w, normalize=normalize)
    assert_agree(pipe(x), expected)
    gate = ep.weighted(jnp.sin, jnp.cos, weights=lambda x: w, normalize=normalize)
    assert_agree(gate(x), expected)


def test_weights_are_equal_parts_by_default():
    weights = ep.weighted(jnp.sin, jnp.cos, jnp.tanh).weights
    assert_agree(weights, jnp.full(3, 1 / 3, jnp.float32))


@pytest.mark.parametrize("given", [[1, 3], (1.0, 3.0), np.array([1.0, 3.0]), [1.0, 3]])
def test_weights_may_be_plain_numbers(given):
    pipe = ep.weighted(jnp.sin, jnp.cos, weights=given)
    assert_agree(pipe.weights, jnp.array([1.0, 3.0], jnp.float32))
    assert not pipe.weights.weak_type


@pytest.mark.parametrize(
    ("weights", "leaf", "expected"),
    [
        ("float32", "bfloat16", "bfloat16"),
        ("gate", "float16", "float16"),
        ("bfloat16", "float32", "float32"),
        ("float32", "complex64", "complex64"),
        ("bfloat16", "int32", "float32"),
        ("float32", "uint8", "float32"),
        ("gate", "bool", "float32"),
    ],
)
def test_the_dtype_is_that_of_the_leaf(weights, leaf, expected):
    given = (lambda x: jnp.ones(2)) if weights == "gate" else jnp.ones(2, weights)
    pipe = ep.weighted(eqx.nn.Identity(), eqx.nn.Identity(), weights=given)
    assert pipe(jnp.ones(3, leaf)).dtype == expected


@pytest.mark.parametrize("value", [jnp.ones(3), jnp.ones((2, 1)), 1.0, "text", None])
def test_a_gate_must_give_one_weight_per_stage(value):
    pipe = ep.chain(ep.weighted(jnp.sin, jnp.cos, weights=lambda x: value))
    with pytest.raises(ep.StructureError, match="one weight per stage: float32") as c:
        pipe(jnp.ones(3))
    assert "`0.weights`" in str(c.value)


def test_weights_replaced_by_a_wrong_number_are_noticed():
    pipe = ep.weighted(jnp.sin, jnp.cos)
    pipe = eqx.tree_at(lambda p: p.weights, pipe, jnp.ones(3))
    with pytest.raises(ep.StructureError, match=r"float32\[3\] for 2 stages"):
        pipe(jnp.ones(3))
