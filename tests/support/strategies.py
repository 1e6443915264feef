"""Strategies of our own tests: shapes, single stages, graphs, axes, meshes."""

import math

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from jax.sharding import AxisType, Mesh

from eqx_pipe.testing import pipelines
from eqx_pipe.testing._strategies.spaces import draw_axis
from eqx_pipe.testing._strategies.validate import composite

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


@composite
def axes(draw, static=False):
    """Draw an axis of any kind."""
    return draw_axis(draw, draw(st.integers(1, 4)), True, static, None)


@composite
def meshes(draw, max_axes=2, explicit=True):
    """Draw a mesh over some of the devices; it shrinks to one device, automatic."""
    devices = jax.local_devices()
    sizes = [2**i for i in range(len(devices).bit_length()) if 2**i <= len(devices)]
    shapes = [(n,) for n in sizes]
    if max_axes > 1:
        pairs = [(a, b) for a in sizes for b in sizes]
        shapes += [pair for pair in pairs if math.prod(pair) <= len(devices)]
    shape = draw(st.sampled_from(shapes))
    kind = draw(st.sampled_from([AxisType.Auto] + [AxisType.Explicit] * explicit))
    chosen = np.array(devices[: math.prod(shape)]).reshape(shape)
    return Mesh(
        chosen, ("data", "model")[: len(shape)], axis_types=(kind,) * len(shape)
    )
