"""Single stages for drawn pipelines."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu

from ..._errors import describe_value
from ..._stage import Stage, identity
from ..._types import Key, PyTree
from .arrays import arrays
from .validate import invalid

Own: TypeAlias = st.SearchStrategy | Callable[[PyTree], Any]
"""A user's strategy of stages, or a function from a struct to one or to `None`."""


class Affine(Stage):
    """A scale and a shift for each number."""

    scale: PyTree
    shift: PyTree

    def __call__(self, x: PyTree, *, key: Key | None = None) -> PyTree:
        return jtu.tree_map(lambda a, b, v: a * v + b, self.scale, self.shift, x)


def squash(x: PyTree) -> PyTree:
    """Return the hyperbolic tangent of each leaf."""
    return jtu.tree_map(jnp.tanh, x)


def add_noise(x: PyTree, *, key: Key) -> PyTree:
    """Add normal draws to each leaf."""
    leaves, structure = jtu.tree_flatten(x)
    keys = jr.split(key, len(leaves))
    drawn = [
        v + jr.normal(k, v.shape, jnp.result_type(v))
        for k, v in zip(keys, leaves, strict=True)
    ]
    return jtu.tree_unflatten(structure, drawn)


def is_inexact(struct: PyTree) -> bool:
    """Return whether all leaves hold real or complex numbers."""
    return all(jnp.issubdtype(v.dtype, jnp.inexact) for v in jtu.tree_leaves(struct))


# Not zero, which would hide all earlier stages.
_scales = st.integers(-4, 3).map(lambda i: (i + (i >= 0)) / 4)


def leaves(struct: PyTree, random: bool, own: Sequence[Own]) -> list[st.SearchStrategy]:
    """Return strategies of stages that keep a struct, the simplest first."""
    found: list[st.SearchStrategy] = [st.just(identity)]
    if is_inexact(struct):
        affine = st.builds(Affine, arrays(struct, elements=_scales), arrays(struct))
        found += [st.just(squash), affine, *_layers(struct)]
        if random:
            single = isinstance(struct, jax.ShapeDtypeStruct)
            found += [st.just(add_noise), *[st.just(eqx.nn.Dropout(0.5))] * single]
    return found + [made for one in own if (made := _made(one, struct)) is not None]


def _layers(struct: PyTree) -> list[st.SearchStrategy]:
    """Return layers of `equinox.nn` that take a vector."""
    if not isinstance(struct, jax.ShapeDtypeStruct) or len(struct.shape) != 1:
        return []
    (size,) = struct.shape

    def linear(seed: int) -> eqx.nn.Linear:
        return eqx.nn.Linear(size, size, key=jr.key(seed), dtype=struct.dtype)

    # LayerNorm of a single number is always zero; its parameters are float32.
    norm = struct.dtype == jnp.float32 and size > 1
    return [st.integers(0, 3).map(linear)] + [st.just(eqx.nn.LayerNorm(size))] * norm


def _made(own: Own, struct: PyTree) -> st.SearchStrategy | None:
    made = own if isinstance(own, st.SearchStrategy) else own(struct)
    if made is None or isinstance(made, st.SearchStrategy):
        return made
    raise invalid(
        "pipelines",
        f"a function in `stages` returned {describe_value(made)}.",
        "Return a strategy of stages, or None if there are none for the struct.",
    )
