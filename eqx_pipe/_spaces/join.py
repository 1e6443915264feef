"""The points of several spaces, concatenated to one space."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int

from .._errors import describe_value, value_error
from .._tree import differences, is_key_array, on_device
from .._types import PyTree
from .axis import Axis, is_axis
from .columns import values_at
from .geometry import Geometry
from .space import Space
from .values import LoadedValues, Static, Values


def joined(function: str, spaces: Sequence[Space]) -> Space:
    """Return the points of all `spaces` in order, as one space.

    Parts of one grid become a part of it, whose points keep their keys. Other spaces
    become a table.
    """
    first = spaces[0]
    geometries = [space.geometry for space in spaces]  # each access computes it
    digits = [geometry.digits(np.arange(geometry.size)) for geometry in geometries]
    if all(_of_one_grid(first, space) for space in spaces[1:]):
        return first._with(span=None, rows=on_device(np.concatenate(digits)))
    for k, space in enumerate(spaces[1:], 1):
        _check_alike(function, k, first.tree, space.tree)
    if not any(map(len, digits)):
        return first[:0]
    names = geometries[0].names
    columns = [_column(function, name, geometries, spaces, digits) for name in names]
    return first.with_axes(columns)


def _of_one_grid(first: Space, other: Space) -> bool:
    whole = [(space.tree, space.key) for space in (first, other)]
    return first.mode == other.mode and bool(eqx.tree_equal(*whole))


def _check_alike(function: str, k: int, first: PyTree, other: PyTree) -> None:
    """Raise unless two spaces have the same axes and the same other leaves."""
    constants = [
        jtu.tree_map(lambda x: None if is_axis(x) else x, tree, is_leaf=is_axis)
        for tree in (first, other)
    ]
    if not eqx.tree_equal(*constants):
        raise value_error(
            function,
            f"beside the axes the spaces differ: `results[0]` has "
            f"{describe_value(constants[0])}, `results[{k}]` has "
            f"{describe_value(constants[1])}.",
            "Join results of spaces with the same axes at the same places, and make "
            "the values that differ axes with one value in each.",
        )


def _column(
    function: str,
    name: str,
    geometries: Sequence[Geometry],
    spaces: Sequence[Space],
    digits: Sequence[Int[np.ndarray, "_ _"]],
) -> PyTree[Axis]:
    """Return an axis with the values of one axis at the points of several spaces."""
    values, axes = [], [geometry.axes[name] for geometry in geometries]
    for axis, geometry, space, at in zip(axes, geometries, spaces, digits, strict=True):
        places = at[:, geometry.axis_dims[geometry.names.index(name)]]
        values.append(values_at(name, axis, space.axis_key(name), places))
    texts = axes[0].texts
    if all(axis.is_static for axis in axes):
        return Static([x for some in values for x in some], **texts)
    for k, (axis, other) in enumerate(zip(axes[1:], values[1:], strict=True), 1):
        forms = [
            None if a.is_static else v for a, v in ((axes[0], values[0]), (axis, other))
        ]
        found = differences(*forms, free_axis=0)
        if found:
            raise value_error(
                function,
                f"the values of the axis `{name}` differ between `results[0]` and "
                f"`results[{k}]`: {'; '.join(found)}.",
                "Give them the same structure, shape and dtype.",
            )
    is_log = all(axis.is_log for axis in axes)
    # Values from files keep 64 bits.
    is_loaded = any(isinstance(axis, LoadedValues) for axis in axes)
    kind = LoadedValues if is_loaded else Values
    return jtu.tree_map(
        lambda *some: kind(_stacked(some), is_log=is_log, **texts), *values
    )


def _stacked(some: tuple[Any, ...]) -> Any:
    """Join arrays; `jnp` would compile a program for each number of them."""
    if any(map(is_key_array, some)):
        return jnp.concatenate(some)
    return np.concatenate([np.asarray(each) for each in some])
