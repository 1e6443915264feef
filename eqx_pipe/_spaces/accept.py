"""What is accepted where a space is, and made one."""

from typing import Any, TypeAlias

import jax
import jax.tree_util as jtu

from .._errors import value_error
from .._tree import is_key_array
from .._types import PyTree
from .arrange import no_axis, written_order
from .axis import Axis, is_axis
from .geometry import axis_name
from .space import Space

SpaceLike: TypeAlias = Space | Axis | PyTree
"""Whatever is accepted where a space is: also a bare axis, or a pytree with axes."""


def as_space(function: str, space: SpaceLike) -> Space:
    """`space` itself, or the product space of a bare pytree, ready to be compiled."""
    if not isinstance(space, Space):
        if not written_order(space):
            raise no_axis(function, "space", space)
        space = Space(space)
    # An array of 64 bits that was made while those were on would be cut to 32 bits by a
    # compiled program, or fail inside JAX.
    if not all(map(_fits, jtu.tree_leaves(space.tree))):
        parts = jtu.tree_flatten_with_path(space.tree, is_leaf=is_axis)[0]
        path, leaf = next(
            (path, leaf)
            for path, part in parts
            for leaf in jtu.tree_leaves(part)
            if not _fits(leaf)
        )
        raise value_error(
            function,
            f"`{axis_name(path)}` in the space is of {leaf.dtype}, made "
            "while 64 bits were on, and they are off now.",
            "Switch `jax_enable_x64` on before this call too, or off "
            "before the space is made.",
        )
    return space


def _fits(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array) or is_key_array(leaf):
        return True
    return jax.dtypes.canonicalize_dtype(leaf.dtype) == leaf.dtype
