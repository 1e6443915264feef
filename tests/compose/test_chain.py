"""`chain`: left to right, and the laws that every composite inherits from it."""

import inspect

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from support.by_hand import child_key
from support.helpers import assert_agree, numbers
from support.stages import Count, draw
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


def test_children_draw_by_position_or_by_name():
    key, x = jr.key(3), jnp.zeros(2)
    by_position = ep.chain(eqx.nn.Identity(), draw)(x, key=key)
    assert_agree(by_position, draw(x, key=child_key(key, 1)))
    by_name = ep.chain(a=eqx.nn.Identity(), noise=draw)(x, key=key)
    assert_agree(by_name, draw(x, key=child_key(key, "noise")))
    deep = ep.chain(out=ep.chain(eqx.nn.Identity(), draw))(x, key=key)
    inner = child_key(child_key(key, "out"), 1)
    assert_agree(deep, draw(x, key=inner))


@hp.given(st.data())
def test_a_stage_at_the_end_changes_no_earlier_draw(data):
    struct = data.draw(structs())
    stages = [data.draw(one_stage(struct)) for _ in range(2)]
    x, key = numbers(struct, 2), data.draw(ept.keys())
    before = ep.outputs(ep.chain(*stages))(x, key=key)[1]
    last = data.draw(one_stage(struct))
    after = ep.outputs(ep.chain(*stages, last))(x, key=key)[1]
    assert_agree({path: after[path] for path in before}, before)


def test_a_missing_key_is_located_at_every_nesting():
    dropout, x = eqx.nn.Dropout(0.5), jnp.ones(3)
    inner = ep.chain(a=eqx.nn.Identity(), b=dropout)

    def merge(outputs, key):
        return dropout(outputs[0], key=key)

    def gate(x, key):
        return draw(x, key=key)[:1]

    pipes = {
        "1": ep.chain(eqx.nn.Identity(), dropout),
        "two.b": ep.chain(one=eqx.nn.Identity(), two=inner),
        "0.1.b": ep.chain(ep.parallel(eqx.nn.Identity(), inner, merge="sum")),
        "0.right.b": ep.chain(
            ep.parallel({"left": eqx.nn.Identity(), "right": inner}, merge="sum")
        ),
        "0.merge": ep.chain(ep.parallel(jnp.sin, merge=merge)),
        "0.1.1": ep.chain(ep.weighted(jnp.sin, ep.chain(eqx.nn.Identity(), dropout))),
        "0.weights": ep.chain(ep.weighted(jnp.sin, weights=gate)),
        "0.stage.b": ep.chain(ep.at((), inner)),
    }
    for path, pipe in pipes.items():
        for call in (pipe, eqx.filter_jit(pipe)):
            with pytest.raises(
                ep.MissingKeyError, match="key=jax.random.key"
            ) as caught:
                call(x)
            assert caught.value.path == path
        pipe(x, key=jr.key(0))


def test_length_iteration_indexing_and_slices():
    pipe = ep.chain(a=jnp.sin, b=jnp.cos, c=jnp.tanh)
    assert len(pipe) == 3 and len(list(pipe)) == 3
    assert pipe["b"] is pipe[1] is list(pipe)[1]
    assert pipe[-1] is pipe["c"]
    x = jnp.arange(3.0)
    assert_agree(pipe[1:](x), jnp.tanh(jnp.cos(x)))
    assert pipe[1:]["c"] is pipe["c"] and len(pipe[:0]) == 0
    with pytest.raises(KeyError, match="Did you mean `a`"):
        pipe["aa"]
    assert pipe[-3] is pipe["a"]
    for i in (3, -4):
        with pytest.raises(IndexError, match=f"no stage {i} among 3. .* -3 to 2"):
            pipe[i]
    for wrong in (True, 1.0, jnp.ones(2), jnp.ones(())):
        with pytest.raises(TypeError, match="Give an integer, a slice, or a name"):
            inspect.unwrap(type(pipe).__getitem__)(pipe, wrong)


def test_a_slice_of_a_random_chain_by_position_draws_by_its_own_positions():
    pipe, key, x = ep.chain(eqx.nn.Identity(), draw), jr.key(0), jnp.zeros(2)
    assert_agree(pipe[1:](x, key=key), draw(x, key=child_key(key, 0)))


def test_the_path_of_a_failing_stage_is_shown():
    pipe = ep.chain(
        one=ep.parallel(jnp.sin, ep.chain(eqx.nn.Linear(2, 2, key=jr.key(0))))
    )
    with pytest.raises(TypeError) as caught:
        pipe(jnp.ones(3))
    assert "In eqx_pipe stage `one.1.0`" in caught.value.__notes__


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


def test_training_with_optax():
    import optax

    pipe = ep.chain(
        ep.weighted(
            eqx.nn.Linear(2, 4, key=jr.key(0)), eqx.nn.Linear(2, 4, key=jr.key(1))
        ),
        ep.parallel(jnp.tanh, jax.nn.relu),
        eqx.nn.Linear(8, "scalar", key=jr.key(2)),
    )
    xs = jr.normal(jr.key(3), (64, 2))
    ys = jnp.sin(xs[:, 0]) * xs[:, 1]
    optimiser = optax.sgd(0.1, momentum=0.9)

    def loss(pipe):
        return jnp.mean((jax.vmap(pipe)(xs) - ys) ** 2)

    @eqx.filter_jit
    def step(pipe, moments):
        value, grads = eqx.filter_value_and_grad(loss)(pipe)
        updates, moments = optimiser.update(grads, moments)
        return eqx.apply_updates(pipe, updates), moments, value

    moments = optimiser.init(eqx.filter(pipe, eqx.is_inexact_array))
    first = eqx.filter_jit(loss)(pipe)
    for _ in range(100):
        pipe, moments, value = step(pipe, moments)
    assert value < 0.5 * first
    assert not np.allclose(pipe[0].weights, 0.5)  # they were trained too


def test_state_is_threaded_in_order():
    def make():
        shared = Count()
        return ep.chain(
            shared, ep.parallel(shared, Count(), jnp.sin), eqx.nn.Identity()
        )

    # One layer used in two places is two, each with a state of its own.
    pipe, state = eqx.nn.make_with_state(make)()
    x = jnp.zeros(1)
    for calls in (1, 2):
        y, state = eqx.filter_jit(pipe)(x, state)
        expected = [2.0 * calls, 2.0 * calls, jnp.sin(calls)]
        assert_agree(y, jnp.array(expected, jnp.float32))


def test_a_state_comes_back_whenever_it_is_given():
    _, state = eqx.nn.make_with_state(Count)()
    pipe, x = ep.chain(jnp.sin), jnp.ones(2)
    assert not pipe.is_stateful()
    for y, new in (pipe(x, state), pipe(x, state=state)):
        assert_agree(y, jnp.sin(x))
        assert eqx.tree_equal(new, state)


def test_a_chain_is_traced_once():
    pipe = ep.chain(eqx.nn.Linear(3, 3, key=jr.key(0)), ep.parallel(jnp.sin, jnp.cos))
    call = eqx.filter_jit(eqx.debug.assert_max_traces(lambda p, x: p(x), max_traces=1))
    for i in range(3):
        call(pipe, jnp.full(3, float(i)))
        pipe = jtu.tree_map(lambda v: v * 2 if eqx.is_array(v) else v, pipe)


def test_a_stage_that_returns_none_is_named_where_the_next_one_fails():
    def forgets(x):
        x + 1  # noqa: B018

    for pipe in (
        ep.chain(a=forgets, b=jnp.sin),
        ep.residual({"a": forgets, "b": jnp.cos}),
    ):
        with pytest.raises(TypeError) as caught:
            pipe(jnp.ones(2))
        notes = "\n".join(caught.value.__notes__)
        assert "`a`, returned None: does it lack a `return`?" in notes
