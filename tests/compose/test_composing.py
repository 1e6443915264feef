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


@pytest.fixture(autouse=True)
def default_settings():
    """JAX as its users have it, not as strict as in the other tests."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@eqx.filter_jit
def _run(model, inputs):
    """Return the output of a model, and the gradient of a sum over it."""

    @eqx.filter_value_and_grad(has_aux=True)
    def total(model):
        y = model(inputs)
        return jnp.sum(jnp.sin(y)), y

    (_, y), slope = total(model)
    return y, [v for v in jtu.tree_leaves(slope) if eqx.is_inexact_array(v)]


def _length(slopes):
    """Return the norm of all gradients, however parameters are stacked."""
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
    """Return output, updated state and gradient of a model with state."""
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
