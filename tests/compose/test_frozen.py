"""`frozen`: the same stage, whose arrays are constants."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import eqx_pipe as ep

KEY = jr.key(0)
X = jnp.linspace(-1.0, 1.0, 3)


def linear(seed=0):
    return eqx.nn.Linear(3, 3, key=jr.key(seed))


def noisy():
    return ep.chain(linear(), eqx.nn.Dropout(0.5), jnp.tanh)


def parameters(tree):
    return jtu.tree_leaves(eqx.filter(tree, eqx.is_inexact_array))


LAYER = linear()
STAGES = {
    "pipeline": noisy(),
    "with key": lambda x, key: LAYER(x) + jr.normal(key, (3,)),
    "vmap": lambda x: jax.vmap(LAYER)(x[None])[0],
    "jitted function": eqx.filter_jit(lambda x: LAYER(x)),
    "tree_util.Partial": jtu.Partial(lambda f, x: f(LAYER(x)), LAYER),
    "repeat": ep.repeat(lambda key: eqx.nn.Linear(3, 3, key=key), 2, key=KEY),
    "tied": ep.tied(
        ep.chain(LAYER, linear(1)), lambda p: p[1].weight, lambda p: p[0].weight
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_the_same_values_and_draws_without_parameters(name):
    stage = STAGES[name]
    pipe, plain = ep.chain(ep.frozen(stage)), ep.chain(jnp.sin)
    assert parameters(pipe) == []
    plain = eqx.tree_at(lambda p: p[0], plain, ep.frozen(stage).stage)
    expected = plain(X, key=KEY)
    np.testing.assert_allclose(pipe(X, key=KEY), expected, rtol=2e-5, atol=2e-6)
    jitted = eqx.filter_jit(pipe)(X, key=KEY)
    np.testing.assert_allclose(jitted, expected, rtol=1e-6)


def test_weight_decay_does_not_reach_it_and_its_neighbours_learn():
    teacher = linear()
    pipe = ep.chain(ep.frozen(teacher), linear(1))
    optimiser = optax.adamw(0.1, weight_decay=0.5)
    given = eqx.filter(pipe, eqx.is_inexact_array)
    gradients = eqx.filter_grad(lambda pipe: jnp.sum(pipe(X) ** 2))(pipe)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimiser.update(gradients, optimiser.init(given), given)
    trained = eqx.apply_updates(pipe, updates)
    assert trained[0].stage.weight is teacher.weight
    assert jnp.all(trained[1].weight != pipe[1].weight)


def test_frozen_inside_of_a_loss_it_is_a_constant_there():
    def loss(layers, x, wrap):
        return jnp.sum(ep.chain(ep.frozen(wrap(layers[0])), layers[1])(x))

    for wrap in (lambda layer: layer, eqx.filter_jit):
        first, second = eqx.filter_grad(loss)((linear(), linear(1)), X, wrap)
        assert not jnp.any(first.weight) and jnp.any(second.weight)


def test_one_compilation_for_the_same_arrays():
    with jax.checking_leaks():
        run = eqx.filter_jit(
            eqx.debug.assert_max_traces(lambda p, x: p(x), max_traces=1)
        )
        for _ in range(3):
            run(ep.chain(ep.frozen(LAYER), jnp.sin), X)


def test_it_wants_a_key_if_the_stage_does():
    pipe = ep.chain(a=ep.frozen(noisy()))
    with pytest.raises(ep.MissingKeyError, match=r"`a\.1`"):
        pipe(X)
    still = eqx.nn.inference_mode(pipe)
    np.testing.assert_allclose(still(X), jnp.tanh(linear()(X)), rtol=1e-6)


def test_state_is_threaded():
    def build():
        norm = eqx.nn.BatchNorm(3, "batch", mode="batch")
        return ep.batched(ep.chain(ep.frozen(norm), linear()), axis_name="batch")

    pipe, state = eqx.nn.make_with_state(build)()
    assert pipe.is_stateful() and len(parameters(pipe)) == 2
    xs = jnp.arange(12.0).reshape(4, 3)
    _, first = pipe(xs, state)
    plain, state = eqx.nn.make_with_state(
        lambda: eqx.nn.BatchNorm(3, "batch", mode="batch")
    )()
    _, second = jax.vmap(
        plain, axis_name="batch", in_axes=(0, None), out_axes=(0, None)
    )(xs, state)
    for ours, theirs in zip(*map(jtu.tree_leaves, (first, second)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_one_for_all_stages_of_a_repeat():
    shared = ep.frozen(LAYER)
    pipe = ep.repeat(lambda key: ep.chain(shared, jnp.tanh), 2, key=KEY)
    expected = jnp.tanh(LAYER(jnp.tanh(LAYER(X))))
    np.testing.assert_allclose(pipe(X), expected, rtol=1e-6)
