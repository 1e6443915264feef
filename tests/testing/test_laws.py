"""The laws of `eqx_pipe.testing` raise no false alarm on Equinox's own layers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from support.helpers import numbers

import eqx_pipe as ep
import eqx_pipe.testing as ept
from eqx_pipe.testing._laws.branches import Value, run_with_all_branches

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
        ept.check_stage(layer, x)
    ept.check_stage(layer, x, key=jr.key(7))


@pytest.mark.slow
def test_spectral_norm_raises_no_false_alarm():
    def make():
        return eqx.nn.SpectralNorm(eqx.nn.Linear(3, 4, key=KEY), "weight", key=KEY)

    ept.check_stage(*_with_input(make, normal(3)))


def _with_input(make, x):
    layer, state = eqx.nn.make_with_state(make)()
    return layer, x, state


class Attention(ep.Stage):
    """Self-attention: a layer of several inputs, wrapped for one."""

    layer: eqx.nn.MultiheadAttention

    def __call__(self, x, *, key=None):
        return self.layer(x, x, x, key=key)


@pytest.mark.slow
def test_attention_raises_no_false_alarm():
    layer = eqx.nn.MultiheadAttention(2, 4, key=KEY)
    ept.check_stage(Attention(layer), normal(3, 4))


class Recurrent(ep.Stage):
    """A cell under a scan."""

    cell: eqx.nn.GRUCell

    def __call__(self, xs, *, key=None):
        def step(h, x):
            return self.cell(x, h), None

        return jax.lax.scan(step, jnp.zeros(self.cell.hidden_size, xs.dtype), xs)[0]


@pytest.mark.slow
def test_a_scan_raises_no_false_alarm():
    ept.check_stage(Recurrent(eqx.nn.GRUCell(2, 3, key=KEY)), normal(4, 2))


def test_half_precision_on_the_way_raises_no_false_alarm():
    layer = ep.chain(eqx.nn.Linear(3, 4, key=KEY), jnp.tanh)
    ept.check_jit(ep.precision(layer, "bfloat16"), normal(3))
    ept.check_grad(
        ep.precision(eqx.nn.Dropout(0.5), "bfloat16"), normal(4), key=jr.key(1)
    )


def test_half_precision_on_the_way_hides_no_difference_that_is_larger():
    def other_when_traced(x):
        y = jnp.sin(x.astype(jnp.bfloat16)).astype(x.dtype)
        return y if isinstance(x, jax.core.Tracer) else 1.2 * y

    with pytest.raises(AssertionError, match="the law `jit`"):
        ept.check_jit(other_when_traced, normal(3))


def all_huge(x):
    return x.min() > 1000


@pytest.mark.parametrize(
    "stage",
    [
        ep.chain(eqx.nn.Dropout(0.5), ep.gated(jnp.sin, gates=(all_huge,))),
        ep.chain(lambda x: jax.nn.relu(x - 100), eqx.nn.Dropout(0.5)),
    ],
)
def test_a_gate_that_hides_a_draw_raises_no_false_alarm(stage):
    ept.check_key(stage, -jnp.ones(4), key=KEY)


def cancelled(x):
    return (x + -x) / 2


def negative_part(x):
    return jax.nn.relu(-jnp.abs(x))


def test_what_is_constant_before_a_draw_raises_no_false_alarm():
    ept.check_key(ep.chain(negative_part, eqx.nn.Dropout(0.5)), jnp.ones(4), key=KEY)


def test_what_is_constant_after_a_draw_is_found():
    stage = ep.chain(eqx.nn.Dropout(0.5), cancelled)
    with pytest.raises(AssertionError, match="all give the same output"):
        ept.check_key(stage, jnp.ones(4), key=KEY)


def test_a_branch_in_a_scan_plays_its_part():
    def fn(x):
        def step(c, _):
            c = jax.lax.cond(c > 100, lambda v: v * 7, jnp.zeros_like, c)
            return c, c

        return jax.lax.scan(step, x, None, 3)

    assert not any(map(jnp.any, fn(1.0)))
    found = run_with_all_branches(jax.make_jaxpr(fn)(1.0), [Value(1.0, True)])
    assert all(v.varies and jnp.all(v.array > 0) for v in found)
