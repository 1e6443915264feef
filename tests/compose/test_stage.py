"""Callables that are accepted as stages, and their calls."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from support.by_hand import child_key
from support.helpers import assert_agree

import eqx_pipe as ep


class Scale(ep.Stage):
    """A user's own stage."""

    factor: float

    def __call__(self, x, *, key=None):
        return self.factor * x


class Keyless(eqx.Module):
    """A module that does not take a key."""

    def __call__(self, x):
        return -x


class Total(eqx.nn.StatefulLayer):
    """Adds up what it sees; `quiet` makes it an ordinary layer."""

    index: eqx.nn.StateIndex
    quiet: bool = eqx.field(static=True)

    def __init__(self, quiet=False):
        self.index = eqx.nn.StateIndex(jnp.zeros((), jnp.float32))
        self.quiet = quiet

    def is_stateful(self):
        return not self.quiet

    def __call__(self, x, state=None, *, key=None):
        if self.quiet:
            return x
        total = state.get(self.index) + jnp.sum(x)
        return total, state.set(self.index, total)


def test_the_key_goes_to_functions_that_ask_for_it():
    key = jr.key(0)
    own = child_key(key, 0)
    assert ep.chain(jnp.negative)(1.0, key=key).item() == -1.0
    assert ep.chain(lambda x, key: key)(1.0, key=key) == own
    assert ep.chain(lambda x, *, key=None: key)(1.0) is None
    assert ep.chain(lambda x, **kw: kw)(1.0, key=key) == {}
    partial = ft.partial(lambda a, x, key: (a, key), 1)
    assert ep.chain(partial)(2.0, key=key) == (1, own)


def test_a_key_that_is_no_parameter_for_it_is_left_alone():
    """Check first parameters, which are inputs, and bound ones, which keep values."""
    key, other = jr.key(0), jr.key(1)
    assert ep.chain(lambda key: key)(1.0, key=key) == 1.0
    assert ep.chain(lambda x, *, key="default": key)(1.0) == "default"
    assert ep.chain(lambda x, *, key="default": key)(1.0, key=key) == child_key(key, 0)
    given = ft.partial(lambda x, key: key, key=other)
    assert ep.chain(given)(1.0, key=key) is other


class Residual(eqx.Module):
    """A module that hands all its keywords on."""

    layer: eqx.nn.Dropout

    def __call__(self, x, **kwargs):
        return x + self.layer(x, **kwargs)


def drawing(scale, x, key=None):
    return scale * jr.normal(key, x.shape)


DROPOUT = eqx.nn.Dropout(0.5)
KEYED = {
    "filter_jit": eqx.filter_jit(DROPOUT),
    "filter_checkpoint": eqx.filter_checkpoint(DROPOUT),
    "keywords": Residual(DROPOUT),
    "keywords, filter_jit": eqx.filter_jit(Residual(DROPOUT)),
    "keywords, filter_checkpoint": eqx.filter_checkpoint(Residual(DROPOUT)),
    "keywords, Partial": eqx.Partial(Residual(DROPOUT)),
    "Partial": eqx.Partial(drawing, 2.0),
}


@pytest.mark.parametrize("name", KEYED)
def test_a_wrapped_layer_gets_its_key(name):
    stage, x, key = KEYED[name], jnp.ones(8), jr.key(0)
    assert_agree(ep.chain(stage)(x, key=key), stage(x, key=child_key(key, 0)))
    with pytest.raises(ep.MissingKeyError, match="`0`"):
        ep.chain(stage)(x)


SILENT = eqx.nn.Dropout(0.0)


def test_whatever_has_the_convention_of_a_layer_is_a_stage():
    x, key = jnp.arange(4.0), jr.key(0)

    def doubled(x, *, key=None):
        return 2 * x

    layers = {
        "module": (Keyless(), -x),
        "stage": (Scale(3.0), 3 * x),
        "function": (lambda x: x + 1, x + 1),
        "jax": (jnp.sin, jnp.sin(x)),
        "partial": (ft.partial(jnp.add, 1.0), 1 + x),
        "jit": (jax.jit(jnp.cos), jnp.cos(x)),
        "filter_jit": (eqx.filter_jit(lambda x: x * 2), 2 * x),
        "filter_jit of a layer": (eqx.filter_jit(Scale(2.0)), 2 * x),
        "vmap": (jax.vmap(lambda v: v * 2), 2 * x),
        "vmap with a key": (jax.vmap(doubled), 2 * x),
        "jit of vmap": (jax.jit(jax.vmap(doubled)), 2 * x),
        "filter_jit of vmap": (eqx.filter_jit(jax.vmap(doubled)), 2 * x),
        "filter_vmap of a layer": (eqx.filter_vmap(Scale(2.0)), 2 * x),
        "filter_vmap of keywords": (eqx.filter_vmap(Residual(SILENT)), 2 * x),
        "checkpoint": (eqx.filter_checkpoint(Scale(2.0)), 2 * x),
        "checkpoint of a function": (eqx.filter_checkpoint(lambda x: 2 * x), 2 * x),
        "Partial": (eqx.Partial(lambda x: 2 * x), 2 * x),
        "Partial with a key": (eqx.Partial(lambda x, key: x, key=None), x),
        "lambda layer": (eqx.nn.Lambda(jnp.tanh), jnp.tanh(x)),
        "pool": (eqx.nn.Identity(), x),
        "method": (Scale(2.0).__call__, 2 * x),
        "sequential": (eqx.nn.Sequential([eqx.nn.Lambda(jnp.sin)]), jnp.sin(x)),
        "inference": (eqx.nn.Dropout(0.5, inference=True), x),
    }
    for name, (layer, expected) in layers.items():
        assert np.allclose(ep.chain(layer)(x), expected), name
        assert np.allclose(ep.chain(layer)(x, key=key), expected), name


def test_a_stateful_layer_counts_only_while_it_says_so():
    loud, state = eqx.nn.make_with_state(lambda: ep.chain(Total(), jnp.sin))()
    assert loud.is_stateful()
    y, state = loud(jnp.ones(2), state)
    y, state = loud(jnp.ones(2), state)
    assert_agree(y, jnp.sin(jnp.asarray(4.0)))
    quiet, _ = eqx.nn.make_with_state(lambda: ep.chain(Total(quiet=True)))()
    assert not quiet.is_stateful()
    assert_agree(quiet(jnp.ones(2)), jnp.ones(2))


def test_pipelines_work_inside_and_under_transformations():
    pipe = ep.chain(
        eqx.nn.Linear(3, 3, key=jr.key(0)), ep.weighted(jnp.sin, jnp.tanh), Scale(2.0)
    )
    x = jnp.arange(3.0)
    y = pipe(x)
    assert_agree(jax.checkpoint(lambda x: pipe(x))(x), y)
    assert_agree(ep.chain(eqx.filter_checkpoint(pipe))(x), y)
    assert_agree(jax.lax.scan(lambda c, _: (pipe(c), None), x, length=2)[0], pipe(y))
    assert_agree(eqx.filter_vmap(pipe)(jnp.stack([x, x]))[1], y)
    with jax.disable_jit():
        assert_agree(pipe(x), y)
    with jax.checking_leaks():
        assert_agree(eqx.filter_jit(pipe)(x), y)


@pytest.mark.parametrize("make", [jr.key, jr.PRNGKey])
def test_both_kinds_of_key_are_taken(make):
    x, key = jnp.ones(8), make(0)
    expected = eqx.nn.Dropout(0.5)(x, key=child_key(key, "a"))
    assert_agree(eqx.filter_jit(ep.chain(a=eqx.nn.Dropout(0.5)))(x, key=key), expected)


def test_a_failure_at_run_time_is_no_missing_key():
    class Runtime(eqx.Module):
        def __call__(self, x, *, key=None):
            return eqx.error_if(x, x.sum() > 0, "bad value here")

    with pytest.raises(Exception, match="bad value here") as caught:
        ep.chain(Runtime())(jnp.ones(3))
    assert not isinstance(caught.value, ep.MissingKeyError)


def test_a_pair_without_a_state_is_refused():
    class Forgetful(Total):
        def __call__(self, x, state, *, key=None):
            return x, x

    pipe, state = eqx.nn.make_with_state(lambda: ep.chain(Forgetful()))()
    with pytest.raises(TypeError, match=r"Return `\(y, state\)`"):
        pipe(jnp.ones(3), state)


def test_pipelines_are_values():
    linear = eqx.nn.Linear(3, 3, key=jr.key(0))

    def make():
        return ep.chain(a=linear, b=ep.parallel({"c": jnp.sin}, merge="sum"))

    assert eqx.tree_equal(make(), make())
    assert jtu.tree_structure(make()) == jtu.tree_structure(make())
    assert not eqx.tree_equal(make(), ep.chain(b=linear, a=make()[1]))
    with pytest.raises(AttributeError):
        make().names = None
    assert len(jtu.tree_leaves(eqx.filter(make(), eqx.is_array))) == 2
