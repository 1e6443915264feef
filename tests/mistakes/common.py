"""Stages, keys and meshes that several tables use."""

import jax
import jax.numpy as jnp
import jax.random as jr
from equinox import nn
from jax.numpy import sin
from jax.sharding import AxisType

import eqx_pipe as ep


def ones(*shape, dtype="float32"):
    return jnp.ones(shape, dtype)


def key(seed=0):
    return jr.key(seed)


def linear(key):
    return nn.Linear(3, 3, key=key)


def stateful():
    return nn.make_with_state(nn.BatchNorm)(3, axis_name="batch", mode="batch")


class Counter(nn.StatefulLayer):
    """Counts what it sees in its state, for each example differently."""

    index: nn.StateIndex

    def __init__(self):
        self.index = nn.StateIndex(jnp.zeros(()))

    def __call__(self, x, state, *, key=None):
        return x, state.set(self.index, state.get(self.index) + jnp.sum(x))


def mesh(data=4, model=2):
    types = (AxisType.Auto,) * 2
    return jax.make_mesh((data, model), ("data", "model"), axis_types=types)


def block(key):
    return nn.Lambda(sin)


def stack(n, make=block):
    return ep.repeat(make, n, key=key())


def record(x):
    return {"loss": x, "at": jnp.stack([x, x])}
