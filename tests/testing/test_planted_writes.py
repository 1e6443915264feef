"""Stages that write into something when they are first called, and some that do not."""

import dataclasses
import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept

X = jnp.array([1.0, -2.0, 3.0])
LAST, SEEN = {}, []


def check_pure(stage, x):
    ept.check_function(stage, x, only=("pure",))


def noted(last, x):
    """Write a shape into a container."""
    last["shape"] = x.shape
    return jnp.sin(x)


class Remembers:
    def __init__(self):
        self.cache = {}

    def __call__(self, x):
        self.cache["last"] = x
        return jnp.sin(x)


class Shares(Remembers):
    cache = {}

    def __init__(self):
        pass


class Layered(eqx.Module):
    def __call__(self, x, *, key=None):
        return helper(x)


def helper(x):
    return noted(LAST, x)


def by_a_helper(x):
    return helper(x)


def in_an_inner_function(x):
    return jax.tree.map(lambda v: SEEN.append(v.shape) or jnp.sin(v), x)


def into_a_closure():
    last = {}
    return lambda x: noted(last, x)


WRITES = {
    "a dict of its own": Remembers,
    "a dict of its class": Shares,
    "a global of a function that a module calls": Layered,
    "a global list, in a lambda": lambda: in_an_inner_function,
    "an argument of a partial": lambda: ft.partial(noted, {}),
    "under jit": lambda: jax.jit(into_a_closure()),
    "inside a pipeline": lambda: ep.chain(jnp.tanh, ep.parallel(jnp.sin, Remembers())),
}


@pytest.fixture(autouse=True)
def clean():
    for container in (LAST, SEEN, Shares.cache):
        container.clear()


@pytest.mark.parametrize("name", WRITES)
def test_a_write_by_the_first_call_is_caught(name):
    with pytest.raises(AssertionError) as caught:
        check_pure(WRITES[name](), X)
    assert "- `pure`" in str(caught.value) and "a call changed" in str(caught.value)


def test_the_message_says_what_was_changed_and_what_to_do():
    with pytest.raises(AssertionError) as caught:
        check_pure(ep.chain(jnp.sin, Remembers()), X)
    text = str(caught.value)
    assert "stage: `1` (Remembers)" in text and "a call changed `fn.cache" in text
    assert "State" in text and "functools.cache" in text
    with pytest.raises(AssertionError, match=r"`fn.helper.LAST"):
        check_pure(by_a_helper, X)


@ft.cache
def window(size):
    return np.hanning(size)


def memoised(x):
    return x * jnp.asarray(window(x.size), x.dtype)


@dataclasses.dataclass
class Lazy:
    scale: float

    @ft.cached_property
    def table(self):
        return np.full(3, self.scale, np.float32)

    def __call__(self, x):
        return x * self.table


class Full(eqx.Module):
    """All that a class may hold beside what it remembers."""

    scale: jax.Array

    @classmethod
    def make(cls):
        return cls(X)

    @staticmethod
    def shift(x):
        return x + 1

    @property
    def half(self):
        return self.scale / 2

    @eqx.filter_jit
    def again(self, x):
        return x * self.half

    def __call__(self, x, *, key=None):
        return self.again(self.shift(x))


NETWORK = eqx.nn.MLP(3, 3, 4, 1, key=jr.key(0))


def calls_a_network(x):
    return NETWORK(x)


def with_itself(x):
    return x if x.ndim else with_itself(x[None])[0]


@pytest.mark.parametrize(
    "stage",
    [
        memoised,
        Lazy(2.0),
        Full.make(),
        Full.make().__call__,
        Full.make().again,
        jax.jit(memoised),
        eqx.filter_jit(memoised),
        calls_a_network,
        with_itself,
        ep.batched(lambda x: jnp.interp(x, jnp.arange(3.0), X)),
        ep.chain(np.tanh),
    ],
)
def test_a_memo_is_no_hidden_state(stage):
    check_pure(stage, X)
