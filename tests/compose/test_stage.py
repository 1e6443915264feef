"""What may be a stage, and how one is called."""

import functools as ft
import zlib

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
    """The first parameter is the input; one that has a value already keeps it."""
    key, other = jr.key(0), jr.key(1)
    assert ep.chain(lambda key: key)(1.0, key=key) == 1.0
    assert ep.chain(lambda x, *, key="default": key)(1.0) == "default"
    assert ep.chain(lambda x, *, key="default": key)(1.0, key=key) == child_key(key, 0)
    given = ft.partial(lambda x, key: key, key=other)
    assert ep.chain(given)(1.0, key=key) is other


@pytest.mark.parametrize("wrap", [eqx.filter_jit, eqx.filter_checkpoint])
def test_a_wrapped_layer_gets_its_key(wrap):
    layer, x, key = eqx.nn.Dropout(0.5), jnp.ones(8), jr.key(0)
    expected = layer(x, key=child_key(key, 0))
    assert_agree(ep.chain(wrap(layer))(x, key=key), expected)


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
        "checkpoint": (eqx.filter_checkpoint(Scale(2.0)), 2 * x),
        "lambda layer": (eqx.nn.Lambda(jnp.tanh), jnp.tanh(x)),
        "pool": (eqx.nn.Identity(), x),
        "method": (Scale(2.0).__call__, 2 * x),
        "sequential": (eqx.nn.Sequential([eqx.nn.Lambda(jnp.sin)]), jnp.sin(x)),
        "inference": (eqx.nn.Dropout(0.5, inference=True), x),
    }
    for name, (layer, expected) in layers.items():
        assert np.allclose(ep.chain(layer)(x), expected), name
        assert np.allclose(ep.chain(layer)(x, key=key), expected), name


@pytest.mark.slow
def test_layers_of_equinox_nest():
    key = jr.key(0)
    image = jr.normal(key, (1, 8, 8))
    pipe = ep.chain(
        ep.parallel(
            eqx.nn.Conv2d(1, 2, 3, padding=1, key=key),
            eqx.nn.Conv2d(1, 3, 5, padding=2, key=key),
            axis=0,
        ),
        eqx.nn.MaxPool2d(2, 2),
        jnp.ravel,
        eqx.nn.LayerNorm(5 * 4 * 4),
        eqx.nn.MLP(5 * 4 * 4, 6, 8, 1, key=key),
        lambda x: x.reshape(2, 3),
        lambda x: (x, x, x),
        lambda q: eqx.nn.MultiheadAttention(1, 3, key=key)(*q),
    )
    assert pipe(image).shape == (2, 3)
    assert eqx.filter_jit(pipe)(image).shape == (2, 3)
    grads = eqx.filter_grad(lambda p: jnp.sum(p(image) ** 2))(pipe)
    assert jnp.any(grads[0][0].weight != 0)


def test_a_stateful_layer_counts_only_while_it_says_so():
    loud, state = eqx.nn.make_with_state(lambda: ep.chain(Total(), jnp.sin))()
    assert loud.is_stateful()
    y, state = loud(jnp.ones(2), state)
    y, state = loud(jnp.ones(2), state)
    assert_agree(y, jnp.sin(jnp.asarray(4.0)))
    quiet, _ = eqx.nn.make_with_state(lambda: ep.chain(Total(quiet=True)))()
    assert not quiet.is_stateful()
    assert_agree(quiet(jnp.ones(2)), jnp.ones(2))


def test_batch_norm_trains_inside_a_pipeline():
    import optax

    pipe, state = eqx.nn.make_with_state(
        lambda: ep.chain(
            eqx.nn.Linear(2, 4, key=jr.key(0)),
            ep.parallel(
                eqx.nn.BatchNorm(4, axis_name="batch", mode="ema"),
                ep.chain(jnp.tanh, eqx.nn.Dropout(0.2)),
            ),
            eqx.nn.Linear(8, "scalar", key=jr.key(1)),
        )
    )()
    xs = jr.normal(jr.key(2), (32, 2))
    ys = jnp.sum(xs, axis=1)
    optimiser = optax.sgd(0.05)

    def loss(pipe, state, keys):
        call = jax.vmap(
            lambda x, k: pipe(x, state, key=k), out_axes=(0, None), axis_name="batch"
        )
        out, state = call(xs, keys)
        return jnp.mean((out - ys) ** 2), state

    @eqx.filter_jit
    def step(pipe, state, moments, key):
        grad = eqx.filter_value_and_grad(loss, has_aux=True)
        (value, state), grads = grad(pipe, state, jr.split(key, 32))
        updates, moments = optimiser.update(grads, moments)
        return eqx.apply_updates(pipe, updates), state, moments, value

    moments = optimiser.init(eqx.filter(pipe, eqx.is_inexact_array))
    losses = []
    for i in range(30):
        pipe, state, moments, value = step(pipe, state, moments, jr.key(i))
        losses.append(value)
    assert losses[-1] < 0.5 * losses[0]
    still = eqx.nn.inference_mode(pipe)
    y, after = still(xs[0], state)  # neither a key nor an axis is needed any more
    assert y.shape == () and eqx.tree_equal(after, state)


@hp.given(st.text(min_size=1, max_size=8).filter(lambda name: "." not in name))
def test_a_named_child_draws_from_the_checksum_of_its_name(name):
    key, x = jr.key(5), jnp.zeros(2)
    pipe = ep.parallel({name: lambda x, key: jr.key_data(key)}, merge="tuple")
    expected = jr.fold_in(key, np.uint32(zlib.crc32(name.encode())))
    assert_agree(pipe(x, key=key), (jr.key_data(expected),))


def test_no_key_is_used_twice():
    drawn = []

    def see(x, key):
        drawn.append(tuple(jr.key_data(key).tolist()))
        return x

    inner = ep.parallel({"a": see, "b": see}, merge="sum")
    pipe = ep.chain(
        see,
        ep.parallel(see, see, merge=lambda ys, key: see(ys[0], key)),
        ep.weighted(see, see, weights=lambda x, key: see(jnp.ones(2), key)),
        ep.at((), see),
        inner,
        ep.graph({"a": see, "b": see}, {"a": [], "b": ["a"]}, "b"),
        ep.chain(a=see, b=ep.chain(see)),
    )
    pipe(jnp.zeros(2), key=jr.key(0))
    assert len(drawn) == len(set(drawn)) == 14


@pytest.mark.parametrize("make", [jr.key, jr.PRNGKey])
def test_both_kinds_of_key_are_taken(make):
    pipe = ep.chain(eqx.nn.Dropout(0.5))
    x, key = jnp.ones(8), make(0)
    expected = eqx.nn.Dropout(0.5)(x, key=child_key(key, 0))
    assert_agree(pipe(x, key=key), expected)
    assert_agree(eqx.filter_jit(pipe)(x, key=key), expected)


def test_a_missing_key_is_found_through_a_foreign_module():
    pipe = ep.chain(
        eqx.nn.Identity(),
        eqx.nn.Sequential([ep.chain(a=eqx.nn.Dropout(0.5)), eqx.nn.Identity()]),
    )
    with pytest.raises(ep.MissingKeyError) as caught:
        pipe(jnp.ones(2))
    assert isinstance(caught.value, ValueError)
    assert caught.value.path == "1.a"
    assert "`1.a`" in str(caught.value)


def test_another_failure_without_a_key_is_not_blamed_on_the_key():
    with pytest.raises(TypeError, match="dot_general|matmul"):
        ep.chain(eqx.nn.Linear(2, 2, key=jr.key(0)))(jnp.ones(3))

    def broken(x, key):
        raise ZeroDivisionError("always")

    with pytest.raises(ZeroDivisionError):
        ep.chain(broken)(jnp.ones(2))
    with pytest.raises(KeyError, match="lost"):
        ep.chain(lambda x: {}["lost"])(jnp.ones(2))


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
    keyed = eqx.filter_vmap(lambda k: eqx.nn.Linear(3, 3, key=k))
    ensemble = ep.chain(keyed(jr.split(jr.key(0), 5)))
    ys = eqx.filter_vmap(lambda p, x: p(x), in_axes=(eqx.if_array(0), None))(
        ensemble, x
    )
    assert ys.shape == (5, 3)
    with jax.disable_jit():
        assert_agree(pipe(x), y)
    with jax.checking_leaks():
        assert_agree(eqx.filter_jit(pipe)(x), y)


def test_bfloat16_stays_bfloat16():
    half = eqx.nn.Linear(3, 3, key=jr.key(0), dtype=jnp.bfloat16)
    pipe = ep.chain(
        half,
        ep.parallel(half, jnp.tanh, merge="mean"),
        ep.weighted(half, jnp.tanh, normalize="softmax"),
        ep.at((), ep.parallel(jnp.sin, jnp.cos, merge="max")),
    )
    assert pipe(jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16


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
