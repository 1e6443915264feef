"""Functions and spaces that tests of sweeps share, and how values are compared."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.sharding import AxisType

import eqx_pipe as ep


def make_mesh(n):
    if len(jax.devices()) < n:
        pytest.skip(f"needs {n} devices")  # on a GPU there may be one
    shape, names = ((n,), ("x",)) if n != 8 else ((4, 2), ("x", "y"))
    kind = AxisType.Auto if n == 2 else AxisType.Explicit
    devices = jax.devices()[:n]
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names), devices=devices)


def number(point):
    """Everything in a point as one number."""
    leaves = [
        jr.uniform(leaf, (2,))
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else leaf.astype(jnp.float32)
        for leaf in jtu.tree_leaves(point)
        if eqx.is_array(leaf)
    ]
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in leaves)


WEIGHT = jnp.linspace(-1, 1, 6).reshape(2, 3)


@jax.jit
def _inner(x):
    return x @ WEIGHT


def closed_form(point):
    x = number(point)
    return {"sum": x, "many": (_inner(jnp.stack([x, 2 * x])), 3), "none": None}


def loop(point):
    """As many steps as the point says."""
    x = number(point)
    steps = jnp.abs(x * 5).astype(jnp.int32)
    return jax.lax.while_loop(
        lambda c: c[0] < steps, lambda c: (c[0] + 1, jnp.cos(c[1] + x)), (0, x)
    )


def scan(point):
    x = number(point)
    return jax.lax.scan(lambda c, t: (jnp.tanh(c * t + x), c), x, jnp.arange(3.0))


def noise(point, key):
    return jr.normal(key, (2,)) + number(point), jr.fold_in(key, 7), jnp.zeros((0,))


def whole(point, *, key=None):
    return (number(point) > 0, jnp.int8(number(point) * 3), jnp.bfloat16(1))


def definition(fn, space, key):
    with jax.disable_jit():
        return ep.sweep(fn, space, key=key)


def as_arrays(values):
    """Return the leaves in memory, keys as their numbers."""
    leaves = map(_read, jtu.tree_leaves(values))
    return [np.asarray(jr.key_data(x) if _is_key(x) else x) for x in leaves]


def _read(x):
    """Read an array of a store, which knows only its shape until it is indexed."""
    lazy = hasattr(x, "shape") and not isinstance(x, np.ndarray | jax.Array)
    return x[...] if lazy else x


def _is_key(x):
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def close(a, b):
    """Raise unless two pytrees of values agree: floats to rounding, others bit for bit.

    For results of different programs, which XLA may round differently.
    """
    assert jtu.tree_structure(a) == jtu.tree_structure(b)
    for x, y in zip(as_arrays(a), as_arrays(b), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if x.dtype == jnp.bfloat16:
            x, y = x.astype(np.float32), y.astype(np.float32)
            np.testing.assert_allclose(x, y, rtol=float(jnp.finfo(jnp.bfloat16).eps))
        elif x.dtype.kind in "fc":
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)
        else:
            assert np.array_equal(x, y)


def same(a, b):
    """Raise unless two pytrees of values are equal bit for bit, read or in memory."""
    assert jtu.tree_structure(a) == jtu.tree_structure(b)
    bits = [[(x.dtype, x.shape, x.tobytes()) for x in as_arrays(v)] for v in (a, b)]
    assert bits[0] == bits[1]


FUNCTIONS = st.sampled_from([closed_form, loop, scan, noise, whole])
