"""The models of the page "Composing" beside the same in plain Equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from page_models import definitions
from plain_models import MODELS


@pytest.fixture(autouse=True)
def default_settings():
    """JAX as its users have it, not as strict as in the other tests."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _total(model, inputs):
    y = model(inputs)
    return jnp.sum(jnp.sin(y)), y


_run = eqx.filter_jit(eqx.filter_value_and_grad(_total, has_aux=True))


def norm(gradient):
    """The length of a gradient: the same, however parameters are stacked."""
    leaves = [v for v in jtu.tree_leaves(gradient) if eqx.is_inexact_array(v)]
    return np.sqrt(sum(float(jnp.sum(v**2)) for v in leaves))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_plain_equinox_does(name):
    plain, inputs = MODELS[name]
    (_, ours), our_slope = _run(definitions()[name](jr.key(0)), inputs())
    (_, theirs), their_slope = _run(plain(jr.key(0)), inputs())
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert norm(their_slope) > 0
    np.testing.assert_allclose(norm(our_slope), norm(their_slope), rtol=1e-4)


def test_blocks_of_a_repeat_read_the_mask():
    import eqx_pipe as ep

    make = definitions()["transformer_block"]
    inputs = MODELS["transformer_block"][1]()
    pipe = ep.repeat(make, 2, key=jr.key(0), over="x")
    y = inputs["x"]
    for i in range(2):
        y = make(jr.fold_in(jr.key(0), i))({**inputs, "x": y})
    np.testing.assert_allclose(pipe(inputs), y, rtol=1e-5, atol=1e-6)
