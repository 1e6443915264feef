"""init_sharded: models that are created in their shards."""

import functools as ft

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

KINDS = (AxisType.Auto, AxisType.Explicit)


@pytest.fixture(params=KINDS, ids=str)
def mesh(request):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(request.param,) * 2)


SPECS = {"**.weight": P("model")}


def test_init_sharded_is_init(mesh, getkey):
    def make(key):
        return {"mlp": eqx.nn.MLP(4, 8, 8, 1, key=key), "n": np.arange(8), "s": "x"}

    key = getkey()
    plain = make(key)
    model = ep.sharding.init_sharded(make, key, mesh, SPECS)
    assert model["s"] == "x" and model["mlp"].activation is plain["mlp"].activation
    assert model["mlp"].layers[0].weight.sharding.spec[0] == "model"
    assert model["mlp"].layers[0].bias.sharding.num_devices == 8
    for a, b in zip(*map(jtu.tree_leaves, (model, plain)), strict=True):
        same = np.allclose(a, b) if eqx.is_array_like(a) else a == b
        assert same
    rules = {"hidden": ("data", "model")}
    linear = ep.sharding.init_sharded(
        ft.partial(linear_of, 16), key, mesh, P("hidden"), rules
    )
    assert linear.weight.sharding.spec[0] == ("data", "model")


def linear_of(size, key):
    return eqx.nn.Linear(size, size, key=key)


def test_init_sharded_with_state(mesh, getkey):
    make = eqx.nn.make_with_state(
        lambda key: ep.batched(eqx.nn.BatchNorm(4, "b", mode="batch"), axis_name="b")
    )
    model, state = ep.sharding.init_sharded(make, getkey(), mesh, None)
    y, _ = eqx.filter_jit(model)(jnp.ones((8, 4)), state)
    assert y.shape == (8, 4)


def test_no_device_ever_holds_a_whole_parameter(getkey):
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))

    def make(key):
        linear = ft.partial(linear_of, 512)
        return ep.sharding.init_sharded(linear, key, mesh, P("model"))

    def arrays(key):
        return eqx.filter(make(key), eqx.is_array)

    # Called outside of `jit` it is the same program.
    memory = jax.jit(arrays).lower(getkey()).compile().memory_analysis()
    peak = memory.output_size_in_bytes + memory.temp_size_in_bytes
    whole = 512 * 512 * 4
    assert memory.output_size_in_bytes < 1.1 * whole / 8
    assert peak < 5 * whole / 8, (peak, whole)
    weight = make(getkey()).weight
    assert weight.addressable_shards[0].data.nbytes == whole // 8


def test_init_sharded_inside_transformations(mesh):
    def make(key):
        return eqx.nn.Linear(4, 8, key=key)

    def init(key):
        return ep.sharding.init_sharded(make, key, mesh, P("data")).weight

    keys = jr.split(jr.key(0), 3)
    assert np.allclose(jax.jit(init)(keys[0]), make(keys[0]).weight)
    assert np.allclose(jax.vmap(init)(keys), jax.vmap(lambda k: make(k).weight)(keys))
