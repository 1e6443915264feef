"""Dtypes that are promoted, and weak types."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .row import X, of_function, quiet

_TABLE = jnp.array([0.5, 1.0, 1.5], "float32")
_KEY = jr.key(0)


class Decay(eqx.Module):
    """The rate is a number of NumPy: of optax's issue 1405."""

    rate: object = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        return x * self.rate


def _plain_noise(x, *, key):
    return x + jr.normal(key, x.shape)


def _typed_noise(x, *, key):
    return x + jr.normal(key, x.shape, x.dtype)


def _scan(start):
    def fn(x):
        def step(c, v):
            return c * 0.5 + v.astype(c.dtype), None

        return jax.lax.scan(step, start(x), x)[0]

    return fn


def _callback(x):
    struct = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    out = jax.pure_callback(
        lambda v: np.asarray(v, np.float32), struct, x, vmap_method="sequential"
    )
    return x + out


ROWS = [
    of_function(
        "a table", lambda x: x * _TABLE, lambda x: x * _TABLE.astype(x.dtype), X
    ),
    of_function(
        "a step of Python numbers",
        lambda x: jnp.where(x > 0, 1.0, 0.0),
        lambda x: (x > 0).astype(x.dtype),
        X,
    ),
    of_function("noise of the default dtype", _plain_noise, _typed_noise, X, key=_KEY),
    of_function(
        "a 64-bit number of NumPy", quiet(Decay, np.float64(0.5)), Decay(0.5), X
    ),
    of_function(
        "a carry of the default dtype",
        _scan(lambda x: jnp.zeros(())),
        _scan(lambda x: jnp.zeros((), x.dtype)),
        X,
    ),
    of_function(
        "cast and not cast back",
        lambda x: jnp.sin(x.astype(jnp.float32)),
        jnp.sin,
        X,
    ),
    # Of jaxopt's issue 451: a state of another weak type compiles again.
    of_function(
        "a weak state",
        lambda x: {"x": x, "size": jnp.asarray(1.0)},
        lambda x: {"x": x, "size": jnp.ones((), x.dtype)},
        X,
    ),
    of_function("a callback of float32", _callback, lambda x: x + x, X),
]
