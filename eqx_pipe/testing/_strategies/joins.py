"""What drawn pipelines are put together with: merges, gates, cells.

None of them loses what comes before it, so that what is drawn there reaches the output.
"""

import functools as ft
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Float, Int

from ... import Stage, chain
from ..._types import Key, PyTree, StageLike


class Joining(eqx.Module):
    """A stage of several inputs, made of one that takes a tuple."""

    stage: StageLike

    def __call__(self, *trees: PyTree, key: Key | None = None) -> PyTree:
        return chain(self.stage)(trees, key=key)


# Unequal, as the mean of `x` and `-x` would hide all that comes before.
SHARE = 0.62


def mean(parts: tuple[PyTree, ...] | dict[str, PyTree]) -> PyTree:
    trees = parts.values() if isinstance(parts, dict) else parts

    def mix(*leaves: Array) -> Array:
        shares = [v * SHARE**i for i, v in enumerate(leaves)]
        return ft.reduce(operator.add, shares) / len(leaves)

    return jtu.tree_map(mix, *trees)


def less(tree: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: v * SHARE, tree)


def largest(trees: tuple[PyTree, ...]) -> PyTree:
    return jtu.tree_map(lambda *v: ft.reduce(jnp.maximum, v), *trees)


def mean_of_stack(tree: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: (v[0] + SHARE * v[1]) / 2, tree)


def mean_of_halves(tree: PyTree) -> PyTree:
    def mix(leaf: Array) -> Array:
        first, second = jnp.split(leaf, 2)
        return (first + SHARE * second) / 2

    return jtu.tree_map(mix, tree)


def mean_of_outputs(both: tuple[PyTree, dict[str, PyTree]]) -> PyTree:
    y, values = both
    return mean((y, values["one"]))


def named(x: PyTree) -> dict[str, PyTree]:
    return {"x": x, "by": x}


def second_as_first(both: tuple[PyTree, PyTree]) -> PyTree:
    """The second of two pytrees, in the dtypes of the first."""
    return jtu.tree_map(lambda a, b: b.astype(a.dtype), *both)


class Weigh(Stage):
    """A gate: weights that depend on the input."""

    size: int = eqx.field(static=True)

    def __call__(self, x: PyTree, *, key: Key | None = None) -> Array:
        first = jax.nn.sigmoid(first_number(x))
        return (jnp.arange(1.0, self.size + 1) + first) / self.size


def first_number(x: PyTree) -> Float[Array, ""]:
    first = jnp.real(jtu.tree_leaves(x)[0]).ravel()[0]
    return first.astype(jnp.float32)  # for strict promotion of dtypes


def twice(x: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: jnp.stack([v, -v]), x)


def positive(x: PyTree) -> Bool[Array, ""]:
    # Not compared with zero: roundings would fall on either side of it.
    return first_number(x) > 0.0317


def always(x: PyTree) -> bool:
    return True


def selector(x: PyTree) -> Int[Array, ""]:
    return positive(x).astype(jnp.int32)


class Cell(eqx.Module):
    """A cell that carries the mean of what it saw, and gives that and its input."""

    stage: StageLike

    def __call__(self, carry: PyTree, x: PyTree, *, key: Key | None = None) -> PyTree:
        y = mean((carry, chain(self.stage)(x, key=key)))
        return y, y


def first(xs: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: v[0], xs)


def scale_of_one(pipe: PyTree) -> PyTree:
    return pipe["one"].scale


def scale_of_two(pipe: PyTree) -> PyTree:
    return pipe["two"].scale
