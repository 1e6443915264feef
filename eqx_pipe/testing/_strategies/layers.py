"""The layers of drawn pipelines: single ones, and those that join several parts.

No join drops its inputs, so every drawn stage affects the output.
"""

import functools as ft
import operator
from collections.abc import Callable

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int

from ... import Stage, chain
from ..._stage import identity
from ..._types import Key, PyTree, StageLike
from .arrays import arrays


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


def leaves(struct: PyTree, random: bool) -> list[st.SearchStrategy]:
    """Return strategies of stages that keep a struct, the simplest first."""
    found: list[st.SearchStrategy] = [st.just(identity)]
    if is_inexact(struct):
        affine = st.builds(Affine, arrays(struct, elements=_scales), arrays(struct))
        found += [st.just(squash), affine, *_layers(struct)]
        if random:
            single = isinstance(struct, jax.ShapeDtypeStruct)
            found += [st.just(add_noise), *[st.just(eqx.nn.Dropout(0.5))] * single]
    return found


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


# Unequal shares, as the mean of `x` and `-x` would hide the input.
SHARE = 0.62


class Joining(eqx.Module):
    """A stage of several inputs, made of a stage that takes a tuple."""

    stage: StageLike

    def __call__(self, *trees: PyTree, key: Key | None = None) -> PyTree:
        return chain(self.stage)(trees, key=key)


class Weigh(Stage):
    """A gate: weights that depend on the input."""

    size: int = eqx.field(static=True)

    def __call__(self, x: PyTree, *, key: Key | None = None) -> Array:
        first = jax.nn.sigmoid(_first_number(x))
        return (jnp.arange(1.0, self.size + 1) + first) / self.size


class Cell(eqx.Module):
    """A cell that carries a mean of its inputs, and returns a mean with its input."""

    stage: StageLike

    def __call__(self, carry: PyTree, x: PyTree, *, key: Key | None = None) -> PyTree:
        y = mean((carry, chain(self.stage)(x, key=key)))
        return y, y


def mean(parts: tuple[PyTree, ...] | dict[str, PyTree]) -> PyTree:
    """Return a mean in which later parts have smaller shares."""
    trees = parts.values() if isinstance(parts, dict) else parts

    def mix(*leaves: Array) -> Array:
        shares = [v * SHARE**i for i, v in enumerate(leaves)]
        return ft.reduce(operator.add, shares) / len(leaves)

    return jtu.tree_map(mix, *trees)


def mean_of_stack(tree: PyTree) -> PyTree:
    """Return the mean of two stacked parts."""
    return mean(tuple(jtu.tree_map(lambda v, i=i: v[i], tree) for i in range(2)))


def mean_of_outputs(both: tuple[PyTree, dict[str, PyTree]]) -> PyTree:
    """Return the mean of an output and of a recorded output inside."""
    return mean((both[0], both[1]["one"]))


def largest(trees: tuple[PyTree, ...]) -> PyTree:
    """Return the element-wise maximum."""
    return jtu.tree_map(lambda *v: ft.reduce(jnp.maximum, v), *trees)


def join_of(struct: PyTree) -> Callable[[tuple[PyTree, ...]], PyTree]:
    """Return a join that returns the dtypes of a struct."""
    return mean if is_inexact(struct) else largest


def less(tree: PyTree) -> PyTree:
    """Scale down each number."""
    return jtu.tree_map(lambda v: v * SHARE, tree)


def named(x: PyTree) -> dict[str, PyTree]:
    """Return a mapping of two inputs made of one input."""
    return {"x": x, "by": x}


def second_as_first(both: tuple[PyTree, PyTree]) -> PyTree:
    """Return the second of two pytrees, in the dtypes of the first."""
    return jtu.tree_map(lambda a, b: b.astype(a.dtype), *both)


def twice(x: PyTree) -> PyTree:
    """Return a batch of two."""
    return jtu.tree_map(lambda v: jnp.stack([v, -v]), x)


def _first_number(x: PyTree) -> Float[Array, ""]:
    # A sum, which is 0 for an array without elements.
    first = jnp.sum(jnp.real(jtu.tree_leaves(x)[0]).ravel()[:1])
    return first.astype(jnp.float32)  # for strict dtype promotion


def positive(x: PyTree) -> Bool[Array, ""]:
    """Return a predicate of the first number."""
    # Not compared with zero, where rounding could change the result.
    return _first_number(x) > 0.0317


def always(x: PyTree) -> bool:
    """Return a constant predicate."""
    return True


def selector(x: PyTree) -> Int[Array, ""]:
    """Return the index of one of two branches."""
    return positive(x).astype(jnp.int32)


def first(xs: PyTree) -> PyTree:
    """Return the first entry of a sequence."""
    return jtu.tree_map(lambda v: v[0], xs)


def scale_of_one(pipe: PyTree) -> PyTree:
    """Return a parameter of the stage `one`."""
    return pipe["one"].scale


def scale_of_two(pipe: PyTree) -> PyTree:
    """Return the parameter of the stage `two` to tie to it."""
    return pipe["two"].scale
