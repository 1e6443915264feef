"""Dtypes that are promoted, and weak types."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .row import X, of_function, quiet

_TABLE = jnp.array([0.5, 1.0, 1.5], "float32")
_NUMPY = np.array([0.5, 1.0, 1.5])
_KEY = jr.key(0)


class Rotary(eqx.Module):
    """Angles of positions, computed in single precision."""

    cast: bool = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        angles = jnp.arange(3, dtype=jnp.float32)
        angles = angles.astype(x.dtype) if self.cast else angles
        return x * jnp.cos(angles)


class Norm(eqx.Module):
    """Computes in single precision, and may not go back."""

    back: bool = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        wide = (wide - wide.mean()) / jnp.sqrt(wide.var() + 1e-3)
        return wide.astype(x.dtype) if self.back else wide


class Decay(eqx.Module):
    """The rate is a number of NumPy: of optax's issue 1405."""

    rate: object = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        return x * self.rate


def _mean(x):
    return jnp.sum(x) / jnp.array(x.size, jnp.float32)


def _positions(dtype):
    return lambda x: x + jnp.arange(3, dtype=dtype or x.dtype)


def _noise(typed):
    def fn(x, *, key):
        return x + jr.normal(key, x.shape, x.dtype if typed else jnp.float32)

    return fn


def _plain_noise(x, *, key):
    return x + jr.normal(key, x.shape)


def _typed_noise(x, *, key):
    return x + jr.normal(key, x.shape, x.dtype)


def _mask(typed):
    def fn(x, *, key):
        kept = jr.bernoulli(key, 0.5, x.shape)
        mask = kept.astype(x.dtype if typed else jnp.float32)
        return x * mask

    return fn


def _scan(start):
    def fn(x):
        def step(c, v):
            return c * 0.5 + v.astype(c.dtype), None

        return jax.lax.scan(step, start(x), x)[0]

    return fn


def _sine(typed):
    def fn(x):
        dtype = x.dtype if typed else jnp.float32
        return x @ jnp.eye(3, dtype=dtype)

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
        "a table of NumPy",
        lambda x: x * _NUMPY,
        lambda x: x * _NUMPY.astype(x.dtype),
        X,
    ),
    of_function(
        "a step of Python numbers",
        lambda x: jnp.where(x > 0, 1.0, 0.0),
        lambda x: (x > 0).astype(x.dtype),
        X,
    ),
    of_function("noise of the default dtype", _plain_noise, _typed_noise, X, key=_KEY),
    of_function("noise of float32", _noise(False), _noise(True), X, key=_KEY),
    of_function("a mask of float32", _mask(False), _mask(True), X, key=_KEY),
    of_function("positions of float32", _positions("float32"), _positions(None), X),
    of_function("rotary angles", Rotary(False), Rotary(True), X),
    of_function("a norm that stays wide", Norm(False), Norm(True), X),
    of_function("a number of NumPy", quiet(Decay, np.float32(0.5)), Decay(0.5), X),
    of_function(
        "a 64-bit number of NumPy", quiet(Decay, np.float64(0.5)), Decay(0.5), X
    ),
    of_function(
        "a square root of NumPy",
        lambda x: x / np.sqrt(x.shape[0]),
        lambda x: x / float(np.sqrt(x.shape[0])),
        X,
    ),
    of_function("a mean by a count", _mean, jnp.mean, X),
    of_function(
        "a carry of float32",
        _scan(lambda x: jnp.zeros((), jnp.float32)),
        _scan(lambda x: jnp.zeros((), x.dtype)),
        X,
    ),
    of_function(
        "a carry of the default dtype",
        _scan(lambda x: jnp.zeros(())),
        _scan(lambda x: jnp.zeros((), x.dtype)),
        X,
    ),
    of_function("an identity matrix", _sine(False), _sine(True), X),
    of_function(
        "cast and not cast back",
        lambda x: jnp.sin(x.astype(jnp.float32)),
        jnp.sin,
        X,
    ),
    of_function(
        "one-hot vectors",
        lambda x: x + jax.nn.one_hot(1, 3),
        lambda x: x + jax.nn.one_hot(1, 3, dtype=x.dtype),
        X,
    ),
    of_function(
        "a grid",
        lambda x: x * jnp.linspace(0.0, 1.0, 3),
        lambda x: x * jnp.linspace(0.0, 1.0, 3, dtype=x.dtype),
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
    of_function(
        "something to pad with",
        lambda x: jnp.concatenate([x, jnp.zeros(1)]),
        lambda x: jnp.concatenate([x, jnp.zeros(1, x.dtype)]),
        X,
    ),
]
