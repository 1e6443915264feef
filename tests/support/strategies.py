"""Strategies of our own tests: shapes, single stages, graphs, axes, meshes."""

import math

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from jax.sharding import AxisType, Mesh

from eqx_pipe.testing import pipelines, spaces

VECTOR = jax.ShapeDtypeStruct((4,), jnp.float32)
# Few, as each compiles anew; examples shrink to the first.
_POOL = (
    jax.ShapeDtypeStruct((1,), jnp.float32),
    VECTOR,
    jax.ShapeDtypeStruct((), jnp.float32),
    jax.ShapeDtypeStruct((2, 3), jnp.float32),
    jax.ShapeDtypeStruct((3,), jnp.bfloat16),
    {"image": jax.ShapeDtypeStruct((2, 3), jnp.float32), "meta": (VECTOR,)},
)


def drawn(strategy, examples=3):
    """Return values of a strategy, the simplest first."""
    found = []

    @settings(max_examples=examples, database=None, derandomize=True)
    @given(strategy)
    def run(value):
        found.append(value)

    run()
    return found


def structs():
    """Draw a pytree of shapes and dtypes, from a small pool."""
    return st.sampled_from(_POOL)


def one_stage(struct, random=True):
    """Draw a stage without stages inside that keeps a struct."""
    return pipelines(struct, max_depth=0, random=random)


def axes(static=False):
    """Draw an axis of any kind."""
    drawn = spaces(max_axes=1, max_size=4, static=static)
    return drawn.map(lambda space: space.axes()["a"])


def meshes(max_axes=2, explicit=True):
    """Draw a mesh over some of the devices; it shrinks to one device, automatic."""
    devices = len(jax.local_devices())
    sizes = [2**i for i in range(devices.bit_length()) if 2**i <= devices]
    pairs = [(a, b) for a in sizes for b in sizes if a * b <= devices]
    shapes = [(n,) for n in sizes] + pairs * (max_axes > 1)
    kinds = [AxisType.Auto] + [AxisType.Explicit] * explicit
    return st.builds(_mesh, st.sampled_from(shapes), st.sampled_from(kinds))


def _mesh(shape, kind):
    chosen = np.array(jax.local_devices()[: math.prod(shape)]).reshape(shape)
    names = ("data", "model")[: len(shape)]
    return Mesh(chosen, names, axis_types=(kind,) * len(shape))
