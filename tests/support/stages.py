"""Small stages that several test files share."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqx_pipe as ep


def draw(x, *, key):
    return jr.normal(key, x.shape)


class Count(eqx.nn.StatefulLayer):
    """Counts its calls and returns the count."""

    index: eqx.nn.StateIndex

    def __init__(self):
        self.index = eqx.nn.StateIndex(jnp.zeros((), jnp.float32))

    def __call__(self, x, state, *, key=None):
        count = state.get(self.index) + 1
        return x + count, state.set(self.index, count)


SIZE = 3


class Counter(eqx.nn.StatefulLayer):
    """Adds a running count, kept in the state, to its input."""

    count: eqx.nn.StateIndex
    step: jax.Array

    def __init__(self, key):
        self.step = jr.uniform(key, ())
        self.count = eqx.nn.StateIndex(jnp.zeros((), jnp.float32))

    def __call__(self, x, state, *, key=None):
        count = state.get(self.count) + self.step
        return x + count, state.set(self.count, count)


def make_linear(key):
    return ep.chain(eqx.nn.Linear(SIZE, SIZE, key=key), jnp.tanh)
