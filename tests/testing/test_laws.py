"""The laws of `eqx_pipe.testing` raise no false alarm on Equinox's own layers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from support.helpers import numbers

import eqx_pipe as ep
import eqx_pipe.testing as ept

KEY = jr.key(0)


def normal(*shape):
    return numbers(jax.ShapeDtypeStruct(shape, jnp.float32))


QUICK = [
    (lambda nn: nn.PReLU(), jnp.zeros(4)),
]
SLOW = [
    (lambda nn: nn.Linear(3, 4, key=KEY), normal(3)),
    (lambda nn: nn.Dropout(0.5), jnp.zeros(5)),
    (lambda nn: nn.Conv2d(1, 2, 2, key=KEY), normal(1, 4, 4)),
    (lambda nn: nn.Embedding(5, 3, key=KEY), jnp.array(2)),
    (lambda nn: nn.LayerNorm(4), jnp.zeros(4)),
    (lambda nn: nn.MaxPool1d(2), normal(2, 6)),
    (lambda nn: nn.RotaryPositionalEmbedding(4), normal(5, 4)),
    (lambda nn: nn.WeightNorm(nn.Linear(3, 4, key=KEY)), normal(3)),
]


@pytest.mark.parametrize(
    ("build", "x"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_layers_of_equinox_raise_no_false_alarm(build, x):
    layer = build(eqx.nn)
    try:
        eqx.filter_eval_shape(layer, x)
    except RuntimeError:  # dropout wants a key
        pass
    else:
        ept.check_function(layer, x)
    ept.check_function(layer, x, key=jr.key(7))


@pytest.mark.slow
def test_spectral_norm_raises_no_false_alarm():
    def make():
        return eqx.nn.SpectralNorm(eqx.nn.Linear(3, 4, key=KEY), "weight", key=KEY)

    layer, state = eqx.nn.make_with_state(make)()
    # It takes its singular vectors as constants, on purpose: the first derivative is
    # right all the same, the second is not.
    ept.check_function(layer, normal(3), state=state, skip=("derivative",))


def test_half_precision_on_the_way_raises_no_false_alarm():
    layer = ep.chain(eqx.nn.Linear(3, 4, key=KEY), jnp.tanh)
    ept.check_function(ep.precision(layer, "bfloat16"), normal(3), skip=("dtype",))
    dropout = ep.precision(eqx.nn.Dropout(0.5), "bfloat16")
    ept.check_function(dropout, normal(4), key=jr.key(1), skip=("dtype",))


def test_half_precision_on_the_way_hides_no_difference_that_is_larger():
    def other_when_traced(x):
        y = jnp.sin(x.astype(jnp.bfloat16)).astype(x.dtype)
        return y if isinstance(x, jax.core.Tracer) else 1.2 * y

    with pytest.raises(AssertionError, match="- `jit`"):
        ept.check_function(other_when_traced, normal(3))
