"""What `repeat` refuses, what it warns of, and what only looks wrong."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.stages import SIZE, make_linear

import eqx_pipe as ep


def make_closure(key):
    weight = jr.normal(key, (SIZE,))

    def multiply(x):
        return x * weight

    return lambda x, bias=weight: multiply(x) + bias


class NoTree:
    """Callable, but neither a function nor a pytree."""

    def __init__(self, n):
        self.n = n

    def __call__(self, x):
        return x * self.n


@pytest.mark.parametrize(
    ("make", "x", "lines"),
    [
        (lambda key: eqx.nn.Linear(3, 4, key=key), jnp.ones(3), ["float32[3]"]),
        (lambda key: jnp.isnan, {"a": 1}, ["`.a`"]),
        (lambda key: lambda t: t["a"], {"a": 1.0}, ["`.a` is only in the first"]),
        (lambda key: lambda t: (t, t), jnp.ones(2), ["only in the second"]),
        (lambda key: lambda x: x.astype(jnp.int32), jnp.ones(2), ["int32[2]"]),
    ],
)
def test_a_stage_must_return_what_it_takes(make, x, lines):
    if isinstance(x, dict) and make(None) is jnp.isnan:
        make = lambda key: lambda t: {"a": t["a"] > 0}  # noqa: E731
    pipe = ep.chain(deep=ep.repeat(make, 2, key=jr.key(0)))
    with pytest.raises(ep.StructureError, match="use `chain`") as caught:
        pipe(x)
    assert "`deep`" in str(caught.value)
    assert all(line in str(caught.value) for line in lines)


@pytest.mark.filterwarnings("ignore:\nPossibly assigning")
def test_arrays_hidden_in_a_jitted_function_are_refused():
    def make(key):
        weight = jr.normal(key, ())
        return jax.jit(lambda x: x * weight)

    with pytest.raises(ValueError, match="equinox.Module"):
        ep.repeat(make, 2, key=jr.key(0))


def test_what_no_key_touches_may_be_anything():
    x = jnp.ones(2)
    assert jnp.all(ep.repeat(lambda key: NoTree(2), 3, key=jr.key(0))(x) == 8)
    assert jnp.all(
        ep.repeat(lambda key: jax.jit(jnp.negative), 2, key=jr.key(0))(x) == 1
    )
    raw = ep.repeat(make_linear, 2, key=jr.PRNGKey(0))
    assert raw(jnp.ones(SIZE)).shape == (SIZE,)


@pytest.mark.parametrize(
    "make",
    [
        make_closure,
        lambda key: ep.chain(jnp.tanh, make_closure(key)),
        lambda key: jax.jit(make_closure(key)),
        lambda key: ft.partial(jnp.add, jr.normal(key, (SIZE,))),
    ],
)
def test_a_function_that_hides_arrays_is_refused(make):
    with pytest.raises(ValueError, match="Return an `equinox.Module`"):
        ep.repeat(make, 2, key=jr.key(0))


def test_a_function_may_close_over_what_all_stages_share():
    shared = jnp.arange(SIZE, dtype=jnp.float32)
    pipe = ep.repeat(lambda key: lambda x: x + shared, 3, key=jr.key(0))
    np.testing.assert_allclose(pipe(jnp.zeros(SIZE)), 3 * shared)
