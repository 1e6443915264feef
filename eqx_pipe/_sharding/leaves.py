"""Leaves that devices can hold."""

from typing import Any, TypeAlias, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._tree import is_key_array
from .._types import PyTree

Placeable: TypeAlias = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
"""An array, or what stands for one; numbers of Python pass through all functions."""

Tree = TypeVar("Tree")
"""A pytree that comes out as it went in, but for where its arrays live."""


def is_placeable(leaf: object) -> TypeGuard[Placeable]:
    """Whether a leaf is an array, of JAX or NumPy, that devices can hold."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUMm"
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def is_global(leaf: object) -> bool:
    """Whether an array lives on the devices of several processes already."""
    if isinstance(leaf, Tracer):  # inside `jit` an array is whole
        return True
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def draws_by_sharding(leaf: Any) -> bool:
    """Whether it is a key whose draws depend on how an array is split.

    XLA makes the numbers of the `rbg` kinds on each device by itself.
    """
    return is_key_array(leaf) and "rbg" in str(jr.key_impl(leaf))


def numpy_as_jax(tree: PyTree) -> PyTree:
    """NumPy arrays as arrays of JAX; numbers stay what they are."""
    return jtu.tree_map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, tree
    )
