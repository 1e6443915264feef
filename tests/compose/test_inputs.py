"""The number of inputs of a stage is checked when it is built."""

import functools as ft
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.helpers import filled

import eqx_pipe as ep

KEY = jr.key(0)


class Jitted(eqx.Module):
    @eqx.filter_jit
    def __call__(self, x, *, key=None):
        return x


class Pair(eqx.Module):
    @eqx.filter_jit
    def __call__(self, x, y, *, key=None):
        return x


GRU = filled(lambda key: eqx.nn.GRUCell(3, 3, key=key), KEY)
ATTENTION = filled(lambda key: eqx.nn.MultiheadAttention(1, 3, key=key), KEY)


def keyword_only(x, *, scale):
    return scale * x


def with_key(x, *, key):
    return x


def unpacks(f):
    """Return a function of one tuple that has the signature of `f`."""

    @ft.wraps(f)
    def call(x):
        return f(*x)

    return call


SEVERAL = {
    "lambda": lambda a, b: a,
    "none": lambda: 1,
    "keyword": keyword_only,
    "numpy ufunc": np.add,
    "jax ufunc": jnp.add,
    "jitted": jnp.matmul,
    "lax": jax.lax.add,
    "builtin": operator.add,
    "vmap": jax.vmap(lambda a, b: a),
    "jit": jax.jit(lambda a, b: a),
    "partial": ft.partial(lambda a, b, c: a, 1),
    "filter_jit": eqx.filter_jit(lambda a, b: a),
    "attention": ATTENTION,
    "gru": GRU,
    "lstm": eqx.nn.LSTMCell(3, 3, key=KEY),
    "with a key": lambda a, b, key: a,
    "jitted method": Pair(),
    "frozen": ep.frozen(lambda a, b: a),
    "frozen layer": ep.frozen(GRU),
}
SINGLE = {
    "key": lambda x, key: x,
    "key only": with_key,
    "key is the input": lambda key: key,
    "any": lambda *args: args,
    "default": lambda x, y=2: x,
    "no signature": max,
    "ufunc": np.sin,
    "where": jnp.where,
    "partial": ft.partial(lambda a, b: a, 1),
    "Partial": eqx.Partial(lambda a, b: a, 1),
    "unpacks": unpacks(lambda a, b: a),
    "state": eqx.nn.BatchNorm(3, "batch", mode="batch"),
    "relu": jax.nn.relu,
    "pool": eqx.nn.MaxPool1d(2),
    "filter_vmap": eqx.filter_vmap(lambda x: x),
    "jitted method": Jitted(),
    "frozen": ep.frozen(max),
    "frozen state": ep.frozen(eqx.nn.BatchNorm(3, "batch", mode="batch")),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_chain_refuses_what_does_not_take_one(name):
    with pytest.raises(TypeError, match=r"`stages\[0\]` gets one input, but it.*"):
        ep.chain(SEVERAL[name])


@pytest.mark.parametrize("name", SINGLE)
def test_a_chain_accepts_what_can_take_one(name):
    assert len(ep.chain(SINGLE[name])) == 1
