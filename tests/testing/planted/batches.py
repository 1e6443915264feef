"""Batches that are no loops: rules of `vmap`, callbacks, parameters in batches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .row import X, Y, of_function, with_jvp, with_vmap


def _double(x):
    return x * 2


def _scale(x, w):
    return x * w


class Layer(eqx.Module):
    """A layer whose product has a rule of its own."""

    w: jax.Array
    product: object = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        return self.product(x, self.w)


def _aligned(size, batched, values):
    return [
        v if b else jnp.broadcast_to(v, (size, *v.shape))
        for v, b in zip(values, batched, strict=True)
    ]


def _right(size, batched, *values):
    x, w = _aligned(size, batched, values)
    return x * w, True


right = with_vmap(_scale, _right)


def _first_of(size, batched, x, w):
    return x * (w[:1] if batched[1] else w), True


def _only_first_argument(size, batched, x, w):
    x, w = _aligned(size, batched, (x, w))
    return (x * w if batched[0] else x * w[:1]), True


def _normalised(x):
    return x / jnp.sum(x)


def _callback(fn, method="expand_dims"):
    """`_normalised`, computed on the host; its derivative is not."""

    def call(x):
        struct = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(fn, struct, x, vmap_method=method)

    def rule(x, t):
        return call(x[0]), jax.jvp(_normalised, x, t)[1]

    return with_jvp(call, rule)


def _in_numpy(v):
    return np.asarray(v) / np.asarray(v).sum()


def _in_numpy_by_rows(v):
    return np.asarray(v) / np.asarray(v).sum(axis=-1, keepdims=True)


def _slope(rule):
    """Return a sine whose derivative has a rule of `vmap`."""
    cosine = with_vmap(jnp.cos, rule)
    return with_jvp(jnp.sin, lambda x, t: (jnp.sin(x[0]), cosine(x[0]) * t[0]))


ROWS = [
    of_function(
        "lanes that are mixed",
        with_vmap(_double, lambda size, b, x: (x * 2 - x.mean(0), True)),
        with_vmap(_double, lambda size, b, x: (x * 2, True)),
        X,
    ),
    of_function(
        "a batch of the second argument alone",
        with_vmap(_scale, _only_first_argument),
        right,
        X,
        Y,
    ),
    of_function(
        "a batch of parameters",
        Layer(Y, with_vmap(_scale, _first_of)),
        Layer(Y, right),
        X,
    ),
    of_function(
        "a callback that sums over the batch",
        _callback(_in_numpy),
        _callback(_in_numpy_by_rows),
        X,
    ),
    of_function(
        "a callback without a way to batch",
        _callback(_in_numpy_by_rows, None),
        _callback(_in_numpy_by_rows, "sequential"),
        X,
    ),
    of_function(
        "a derivative whose batch is wrong",
        _slope(lambda size, b, x: (jnp.cos(x[::-1]), True)),
        _slope(lambda size, b, x: (jnp.cos(x), True)),
        X,
    ),
]
