"""The models of the page "Composing" beside the same in plain Equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from support.helpers import slow_unless
from support.page_models import definitions
from support.plain_models import MODELS, STATEFUL

import eqx_pipe as ep


@pytest.fixture(autouse=True)
def default_settings():
    """JAX as its users have it, not as strict as in the other tests."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@eqx.filter_jit
def _run(model, inputs):
    """The output of a model, and the gradient of a sum over it."""

    @eqx.filter_value_and_grad(has_aux=True)
    def total(model):
        y = model(inputs)
        return jnp.sum(jnp.sin(y)), y

    (_, y), slope = total(model)
    return y, [v for v in jtu.tree_leaves(slope) if eqx.is_inexact_array(v)]


def _length(slopes):
    """The same, however parameters are stacked."""
    return np.sqrt(sum(float(np.sum(np.square(v))) for v in slopes))


@pytest.mark.parametrize("name", slow_unless({"transformer_block"}, MODELS))
def test_a_model_computes_what_plain_equinox_does(name):
    plain, inputs = MODELS[name]
    # Made outside of the program, they share those of the draws with other models.
    ours, our_slopes = _run(definitions()[name](jr.key(0)), inputs())
    theirs, their_slopes = _run(plain(jr.key(0)), inputs())
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert _length(their_slopes) > 0
    np.testing.assert_allclose(_length(our_slopes), _length(their_slopes), rtol=1e-4)


@eqx.filter_jit
def _run_with_state(make, inputs):
    """The same of a model with state, and the updated one."""
    model, state = eqx.nn.make_with_state(make)(jr.key(0))

    @eqx.filter_value_and_grad(has_aux=True)
    def total(model):
        y, after = model(inputs, state)
        return jnp.sum(jnp.sin(y)), (y, after)

    (_, (y, after)), slope = total(model)
    slopes = [v for v in jtu.tree_leaves(slope) if eqx.is_inexact_array(v)]
    return y, jtu.tree_leaves(after), slopes


@pytest.mark.parametrize("name", STATEFUL)
def test_a_model_with_state_updates_it_as_plain_equinox_does(name):
    plain, inputs = STATEFUL[name]
    ours, our_state, our_slopes = _run_with_state(definitions()[name], inputs())
    theirs, their_state, their_slopes = _run_with_state(plain, inputs())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert _length(their_slopes) > 0
    np.testing.assert_allclose(_length(our_slopes), _length(their_slopes), rtol=1e-3)
    for a, b in zip(our_state, their_state, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_blocks_of_a_repeat_read_the_mask():
    make = definitions()["transformer_block"]
    inputs = MODELS["transformer_block"][1]()
    pipe = ep.repeat(make, 2, key=jr.key(0), over="x")
    y = inputs["x"]
    call = eqx.filter_jit(lambda pipe, inputs: pipe(inputs))
    for i in range(2):
        y = call(make(jr.fold_in(jr.key(0), i)), {**inputs, "x": y})
    np.testing.assert_allclose(call(pipe, inputs), y, rtol=1e-5, atol=1e-6)


def test_an_expert_that_no_token_chose_does_not_run():
    make = definitions()["mixture_of_experts"]
    pipe, x = make(jr.key(0)), jnp.ones((6, 4))  # tokens alike choose the same two
    ran = []

    def noted(i):
        def note(route):
            jax.debug.callback(lambda: ran.append(i))
            return route

        return note

    experts = pipe["experts"].items()
    seen = pipe.replace({f"experts.{i}": ep.chain(noted(i), e) for i, e in experts})
    route = eqx.filter_jit(pipe["route"])(x)
    y = eqx.filter_jit(seen)(x).block_until_ready()
    jax.effects_barrier()
    chosen = jnp.flatnonzero(jnp.any(route["weight"] > 0, axis=1))
    assert sorted(ran) == chosen.tolist() and len(ran) == 2
    np.testing.assert_allclose(y, eqx.filter_jit(pipe)(x), rtol=1e-5, atol=1e-6)
