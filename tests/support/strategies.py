"""Strategies of our own tests: shapes, single stages, graphs, axes, meshes."""

import functools as ft
import math

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from hypothesis import given, settings
from jax.sharding import AxisType, Mesh

import eqx_pipe as ep

from .pipelines import pipelines

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


def keys():
    """Draw a PRNG key; it shrinks to seed 0."""
    return st.integers(0, 2**32 - 1).map(jr.key)


def structs():
    """Draw a pytree of shapes and dtypes, from a small pool."""
    return st.sampled_from(_POOL)


def one_stage(struct, random=True):
    """Draw a stage without stages inside that keeps a struct."""
    return pipelines(struct, max_depth=0, random=random)


def _negative(x):
    return jax.tree.map(jnp.negative, x)


def _larger(*trees):
    return jax.tree.map(lambda *v: ft.reduce(jnp.maximum, v), *trees)


def _merge(trees):
    return _larger(*trees)


def _positive(x):
    return jnp.sum(jnp.real(jax.tree.leaves(x)[0]).astype(jnp.float32)) > 0.0317


def _index(x):
    return _positive(x).astype(jnp.int32)


def _always(x):
    return True


def _twice(x):
    return jax.tree.map(lambda v: jnp.stack([v, -v]), x)


def _first(xs):
    return jax.tree.map(lambda v: v[0], xs)


def _cell(carry, x):
    return _larger(carry, x), x


@ft.cache
def _others():
    """Return combinators that `pipelines` does not draw, of functions of any struct."""
    same, gates = eqx.nn.Identity(), (_positive, _always)
    edges = {"a": [], "b": ["a", "input"]}
    return st.sampled_from(
        [
            ep.graph({"a": _negative, "b": _larger}, edges, "b"),
            ep.gated(_negative, same, gates=gates, merge=_merge),
            ep.switch(_index, _negative, same),
            ep.ensemble([_negative, _negative], merge="max"),
            ep.frozen(_negative),
            ep.at((), _negative),
            ep.chain(_twice, ep.scan(_cell, _first, returns="carry")),
        ]
    )


def nestings(struct, **options):
    """Draw a pipeline of any combinators that keeps a struct."""
    return pipelines(struct, stages=[_others()], **options)


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


_NAMES = ("a", "b", "c")

_KINDS = {
    "values": lambda v, dim: ep.Values(np.asarray(v, np.float32), dim=dim),
    "linspace": lambda v, dim: ep.Linspace(v[0], v[-1], len(v), dim=dim),
    "geomspace": lambda v, dim: ep.Geomspace(1, 2.0 ** np.sign(v[0]), len(v), dim=dim),
    "arrays": lambda v, dim: ep.Values(np.stack([v, v], -1).astype(np.int32), dim=dim),
    "mapped": lambda v, dim: ep.Mapped(
        _square, ep.Linspace(v[0], v[-1], len(v), dim=dim)
    ),
    "random": lambda v, dim: ep.Random(jr.normal, len(v), dim=dim),
    "static": lambda v, dim: ep.Static([f"choice {i}" for i in range(len(v))], dim=dim),
}


def _axis(draw, size, static, dim):
    """Draw an axis of any kind."""
    numbers = st.integers(-8, 8).map(lambda i: i / 4)
    kind = draw(st.sampled_from([k for k in _KINDS if static or k != "static"]))
    # Every kind uses the same draws, so all shrink to the first kind.
    return _KINDS[kind](draw(st.lists(numbers, min_size=size, max_size=size)), dim)


def _square(value):
    return value * value


@st.composite
def spaces(draw, max_axes=3, max_size=3, static=False):
    """Draw a `Space`: a product or zip, with shared dims, joint designs and slices."""
    count = draw(st.integers(1, min(max_axes, len(_NAMES))))
    mode = draw(st.sampled_from(["product", "zip"]))
    size = draw(st.integers(1, max_size))
    # Both modes use the same draws, so both shrink to the first mode.
    shared = draw(st.booleans()) and mode == "product" and count > 1
    has_design = draw(st.booleans()) and mode == "product" and count < max_axes
    tree = {}
    for i, name in enumerate(_NAMES[:count]):
        dim = "both" if shared and i < 2 else None
        length = draw(st.integers(1, max_size))
        length = size if mode == "zip" or dim else length
        tree[name] = _axis(draw, length, static, dim)
    if draw(st.booleans()):
        tree["fixed"] = "text"
    if has_design:
        box = {"u": ep.Uniform(0.0, 1.0), "v": ep.Uniform(-1.0, 1.0)}
        tree["design"] = ep.sobol(box, max_size, dim="design").tree
    space = ep.Space(tree, mode=mode, key=jr.key(draw(st.integers(0, 3))))
    if space.size > 1 and draw(st.booleans()):
        return space[draw(st.integers(0, space.size - 1)) :]
    return space
