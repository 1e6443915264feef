"""`weighted`: a weighted sum of stages."""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.by_hand import child_key
from support.helpers import assert_agree
from support.stages import Count, draw
from support.strategies import one_stage, structs

import eqx_pipe as ep
import eqx_pipe.testing as ept


@hp.given(st.data())
def test_one_hot_weights_give_the_stage(data):
    struct = data.draw(structs())
    stages = [data.draw(one_stage(struct, random=False)) for _ in range(3)]
    x, i = data.draw(ept.arrays(struct)), data.draw(st.integers(0, 2))
    normalize = data.draw(st.sampled_from(["none", "sum"]))
    pipe = ep.weighted(*stages, weights=jnp.eye(3)[i], normalize=normalize)
    assert_agree(pipe(x), stages[i](x))


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


def test_weights_are_a_trainable_leaf():
    pipe = ep.weighted(jnp.sin, jnp.cos, jnp.tanh)
    assert_agree(pipe.weights, jnp.full(3, 1 / 3, jnp.float32))
    x = jnp.arange(3.0)
    grads = eqx.filter_grad(lambda p: jnp.sum(p(x)))(pipe)
    sums = [jnp.sum(f(x)) for f in (jnp.sin, jnp.cos, jnp.tanh)]
    assert_agree(grads.weights, jnp.array(sums))
    moved = eqx.apply_updates(pipe, grads)
    assert_agree(moved.weights, pipe.weights + grads.weights)


def test_a_gate_is_trained_too():
    gate = eqx.nn.Linear(3, 2, key=jr.key(0))
    pipe = ep.weighted(jnp.sin, jnp.cos, weights=gate, normalize="softmax")
    x = jnp.arange(3.0)
    w = jax.nn.softmax(gate(x))
    assert_agree(pipe(x), w[0] * jnp.sin(x) + w[1] * jnp.cos(x))
    grads = eqx.filter_grad(lambda p: jnp.sum(p(x)))(pipe)
    assert jnp.any(grads.weights.weight != 0)
    assert list(ep.outputs(pipe)(x)[1]) == ["weights", "0", "1"]


def test_the_gate_draws_by_its_name():
    def gate(x, key):
        return jr.uniform(key, (1,))

    pipe, key = ep.weighted(draw, weights=gate), jr.key(0)
    x = jnp.zeros(2)
    weight = gate(x, child_key(key, "weights"))
    assert_agree(pipe(x, key=key), weight * draw(x, key=child_key(key, 0)))


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


def test_labels_are_not_scaled_in_silence():
    record = {"image": jnp.ones(2), "label": "dog"}
    with pytest.raises(TypeError, match="eqx_pipe.at") as caught:
        ep.chain(mix=ep.weighted(eqx.nn.Identity()))(record)
    assert "`.label` of the output of `mix.0`" in str(caught.value)
    with pytest.raises(TypeError, match="key<fry>.*eqx_pipe.at"):
        ep.weighted(eqx.nn.Identity())({"key": jr.key(0)})
    assert ep.at("image", ep.weighted(eqx.nn.Identity()))(record)["label"] == "dog"


def test_outputs_that_disagree_are_named():
    pipe = ep.chain(ep.weighted(jnp.sin, lambda x: x[:1]))
    with pytest.raises(ep.StructureError, match="`0.0` and `0.1`") as caught:
        pipe(jnp.ones(3))
    assert "float32[3] against float32[1]" in str(caught.value)
    assert "stage after one of them" in str(caught.value)


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


def test_state_is_threaded_through_gate_and_stages():
    class Gate(Count):
        def __call__(self, x, state, *, key=None):
            y, state = super().__call__(x, state)
            return jnp.full(2, jnp.max(y)), state

    pipe, state = eqx.nn.make_with_state(
        lambda: ep.weighted(Count(), Count(), weights=Gate())
    )()
    for calls in (1.0, 2.0):
        y, state = eqx.filter_jit(pipe)(jnp.zeros(1), state)
        assert_agree(y, jnp.array([calls * 2 * calls]))


def test_length_iteration_and_indexing():
    pipe = ep.weighted(jnp.sin, jnp.cos, weights=lambda x: jnp.ones(2))
    assert len(pipe) == 2 and len(list(pipe)) == 2
    assert pipe[0] is list(pipe)[0] and pipe[-1] is pipe[1]


def test_names_are_paths_and_decide_the_draws():
    pipe = ep.weighted({"a": draw, "b": jnp.sin}, weights=[2.0, 1.0])
    x, key = jnp.ones(3), jr.key(4)
    outs = ep.outputs(pipe)(x, key=key)[1]
    assert list(outs) == ["a", "b"] and pipe.children().keys() == {"a", "b"}
    assert_agree(outs["a"], draw(x, key=child_key(key, "a")))
    assert_agree(pipe(x, key=key), 2 * outs["a"] + outs["b"])
    gated = ep.weighted({"a": draw, "b": jnp.sin}, weights=lambda x: jnp.ones(2))
    assert list(ep.outputs(gated)(x, key=key)[1]) == ["weights", "a", "b"]
    assert '"a: ' in str(ep.draw(pipe))
