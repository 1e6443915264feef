"""pipelined: the stages of a repeat over devices are the stages in sequence."""

import collections

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep


class Block(eqx.Module):
    """A residual layer with normalisation, for which a zero input is no good."""

    linear: eqx.nn.Linear
    name: str = "block"
    act: object = jnp.tanh

    def __call__(self, x, *, key=None):
        y = jax.vmap(self.linear)(x)
        y = y / jnp.linalg.norm(y, axis=-1, keepdims=True)  # NaN at zero
        return x + self.act(y)


def block(key):
    linear = eqx.nn.Linear(4, 4, use_bias=False, key=key)
    return Block(linear)


def make(devices, kind=AxisType.Auto):
    return jax.make_mesh((devices,), ("stages",), axis_types=(kind,))


def loss(pipe, x):
    return jnp.sum(pipe(x) ** 2)


def assert_sequential(stack, pipe, x, given=None):
    run = eqx.filter_jit(eqx.filter_value_and_grad(loss))
    value, grads = run(stack, x)
    got, got_grads = run(pipe, x if given is None else given)
    assert np.allclose(got, value, rtol=1e-5)
    pairs = zip(*map(jtu.tree_leaves, (grads.stages, got_grads.stages)), strict=True)
    for a, b in pairs:
        assert np.allclose(a, b, rtol=1e-4, atol=1e-5)


# Fewer microbatches than devices, with two layers on each; and one device.
CASES = [(4, 8, 2), pytest.param(1, 2, 4, marks=pytest.mark.slow)]


@pytest.mark.parametrize("devices, n, count", CASES)
def test_it_is_the_sequence(devices, n, count, getkey):
    """The zeros in place of missing microbatches would give NaN in `Block`."""
    stack = ep.repeat(block, n, key=getkey(), remat=True, unroll=2)
    x = jr.normal(getkey(), (8, 4))
    assert_sequential(stack, ep.sharding.pipelined(stack, make(devices), count), x)


def test_two_axes_that_are_explicit(getkey):
    kinds = (AxisType.Explicit,) * 2
    mesh = jax.make_mesh((2, 4), ("data", "stages"), axis_types=kinds)
    stack = ep.repeat(block, 4, key=getkey())
    x = jr.normal(getkey(), (8, 4))
    pipe = ep.sharding.pipelined(stack, mesh, 4, axis_name="stages")
    assert_sequential(stack, pipe, x, ep.sharding.shard(x, mesh, P("data")))
    assert np.allclose(pipe(x), stack(x), atol=1e-5)  # outside jit, unplaced
    assert pipe.stages.linear.weight.sharding.spec == P("stages")
    assert pipe.stages.linear.weight.addressable_shards[0].data.nbytes == 64


def test_gradients_outside_jit_and_mesh_contexts(getkey, unchecked):
    kind = AxisType.Explicit
    mesh = jax.make_mesh((4,), ("stages",), axis_types=(kind,))
    stack, x = ep.repeat(block, 4, key=getkey()), jr.normal(getkey(), (8, 4))
    want = eqx.filter_jit(eqx.filter_grad(loss))(stack, x)
    pipe = ep.sharding.pipelined(stack, mesh, 4)
    outside = eqx.filter_grad(loss)(pipe, x)
    with jax.set_mesh(mesh):
        inside = eqx.filter_grad(loss)(ep.sharding.pipelined(stack, mesh, 4), x)
    for got in (outside, inside):
        for a, b in zip(*map(jtu.tree_leaves, (got, want)), strict=True):
            assert np.allclose(a, b, atol=1e-5)
    with jax.set_mesh(jax.make_mesh((8,), ("data",), axis_types=(kind,))):
        with pytest.raises(ValueError, match="context mesh .*'data': 8.*'stages': 4"):
            pipe(x)


def test_each_device_runs_its_layers_once_per_microbatch(getkey):
    count = 3  # with four devices, so each is idle at times
    calls = collections.Counter()

    class Counted(eqx.Module):
        weight: jax.Array

        def __call__(self, x, *, key=None):
            jax.debug.callback(
                lambda w: calls.update([round(float(w), 3)]), self.weight
            )
            return x * self.weight

    stack = ep.repeat(lambda k: Counted(jr.uniform(k)), 8, key=getkey())
    pipe = ep.sharding.pipelined(stack, make(4), count)
    eqx.filter_grad(loss)(pipe, jnp.ones((6, 2)))
    jax.effects_barrier()
    weights = [round(float(w), 3) for w in stack.stages.weight]
    assert calls == collections.Counter(dict.fromkeys(weights, count))


def test_keys_belong_to_microbatch_and_stage(getkey):
    def noisy(key):
        return lambda x, *, key: x + jr.normal(key, x.shape)

    stack = ep.repeat(noisy, 4, key=getkey())
    pipe, x, key = ep.sharding.pipelined(stack, make(2), 4), jnp.zeros((8, 3)), getkey()
    parts = [stack(x[:2], key=jr.fold_in(key, m)) for m in range(4)]
    assert np.allclose(pipe(x, key=key), jnp.concatenate(parts), atol=1e-5)
    with pytest.raises(ep.MissingKeyError) as error:
        pipe(x)
    assert error.value.path == "0"


def test_trees_vmap_and_describe(getkey):
    def swap(key):
        scale = jr.uniform(key)
        return Swap(scale)

    stack = ep.repeat(swap, 4, key=getkey())
    pipe = ep.sharding.pipelined(stack, make(2), 2)
    x = {"a": jnp.arange(4.0), "b": jnp.ones((4, 2)), "n": None, "s": "text"}
    got, want = pipe(x), stack(x)
    assert got["s"] == "text" and pipe.size == 4
    assert all(np.allclose(got[n], want[n]) for n in "ab")
    many = jnp.arange(24.0).reshape(3, 4, 2)
    stack = ep.repeat(lambda k: eqx.nn.Lambda(jnp.sin), 4, key=getkey())
    pipe = ep.sharding.pipelined(stack, make(4), 2)
    assert np.allclose(jax.vmap(lambda x: pipe(x))(many), stack(many), atol=1e-5)
    assert "pipelined" in repr(pipe)


class Swap(eqx.Module):
    scale: jax.Array

    def __call__(self, x, *, key=None):
        return x | {"a": x["a"] * self.scale + x["b"][:, 0], "b": x["b"] + 1}


def test_layers_are_computed_again_and_unrolled_as_in_the_repeat(getkey):
    stack = ep.repeat(block, 4, key=getkey(), remat=True, unroll=2)
    pipe, x = ep.sharding.pipelined(stack, make(2), 2), jr.normal(getkey(), (4, 4))
    text = str(jax.make_jaxpr(lambda x: pipe(x))(x))
    assert "unroll=2" in text and ("checkpoint" in text or "remat" in text)


@pytest.mark.parametrize("size", [0, 6])
def test_a_batch_that_does_not_split_into_microbatches_is_refused(size, getkey):
    pipe = ep.sharding.pipelined(ep.repeat(block, 2, key=getkey()), make(2), 4)
    with pytest.raises(ValueError, match=f"a batch of {size} does not split into 4"):
        pipe(jnp.ones((size, 4)))
