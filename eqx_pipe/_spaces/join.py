"""The points of several spaces one after the other, as one space."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int

from .._errors import describe_value, value_error
from .._tree import differences, is_key_array, on_device, path_name
from .._types import PyTree
from .axes import Values
from .axis import Axis, is_axis, value_of
from .geometry import Geometry
from .space import Space
from .static import Static


def joined(function: str, spaces: Sequence[Space]) -> Space:
    """The points of all `spaces` in order, each as it was.

    Parts of one grid give a part of it, whose points keep their keys. Anything else is
    written out as a table.
    """
    first = spaces[0]
    geometries = [space.geometry for space in spaces]  # worked out anew each time
    digits = [geometry.digits(np.arange(geometry.size)) for geometry in geometries]
    if all(_of_one_grid(first, space) for space in spaces[1:]):
        return first.part(rows=on_device(np.concatenate(digits)))
    known = _form(first, geometries[0])
    for k, (space, geometry) in enumerate(zip(spaces, geometries, strict=True)):
        _check_alike(function, k, known, _form(space, geometry))
    if not any(map(len, digits)):
        return first[:0]
    return first.with_axes(
        [
            _column(function, name, geometries, spaces, digits)
            for name in geometries[0].names
        ]
    )


def _of_one_grid(first: Space, other: Space) -> bool:
    whole = [(space.tree, space.key) for space in (first, other)]
    return first.mode == other.mode and bool(eqx.tree_equal(*whole))


_Form = tuple[list[tuple[Any, Any]], Any, list[str]]
"""The leaves of a space with their paths, its structure, and the names of its axes."""


def _form(space: Space, geometry: Geometry) -> _Form:
    leaves, structure = jtu.tree_flatten_with_path(space.tree, is_leaf=is_axis)
    return leaves, structure, list(geometry.names)


def _check_alike(function: str, k: int, first: _Form, other: _Form) -> None:
    """Raises unless two spaces have the same axes, and the same beside them."""
    if first[1] != other[1] or sorted(first[2]) != sorted(other[2]):
        raise value_error(
            function,
            f"the points of `results[{k}]` have another structure than those of "
            f"`results[0]`: axes {other[2]} against {first[2]}.",
            "Join results of spaces that have the same axes at the same places.",
        )
    for (path, mine), (_, theirs) in zip(first[0], other[0], strict=True):
        if not is_axis(mine) and not eqx.tree_equal(mine, theirs):
            raise value_error(
                function,
                f"`{path_name(path)}` is {describe_value(mine)} in the space of "
                f"`results[0]` and {describe_value(theirs)} in that of "
                f"`results[{k}]`.",
                "Make it an axis with one value in each of these spaces, so that "
                "points say which it was.",
            )


def _column(
    function: str,
    name: str,
    geometries: Sequence[Geometry],
    spaces: Sequence[Space],
    digits: Sequence[Int[np.ndarray, "_ _"]],
) -> PyTree[Axis]:
    """The values of an axis of several spaces at their points."""
    values, axes = [], [geometry.axes[name] for geometry in geometries]
    for axis, geometry, space, at in zip(axes, geometries, spaces, digits, strict=True):
        places = at[:, geometry.axis_dims[geometry.names.index(name)]]
        values.append(_values(name, axis, space, places))
    texts = {"label": "long_name", "unit": "units"}
    said = {word: axes[0].attrs.get(attr) for word, attr in texts.items()}
    if all(axis.is_static for axis in axes):
        return Static([x for some in values for x in some], **said)
    for k, other in enumerate(values[1:], 1):
        forms = [None if isinstance(v, list) else v for v in (values[0], other)]
        found = differences(*forms, free_axis=0)
        if found:
            raise value_error(
                function,
                f"the values of the axis `{name}` differ between `results[0]` and "
                f"`results[{k}]`: {'; '.join(found)}.",
                "Give them the same structure, shape and dtype.",
            )
    return jtu.tree_map(lambda *some: Values(_stacked(some), **said), *values)


def _stacked(some: tuple[Any, ...]) -> Any:
    """Arrays one behind the other; `jnp` would compile for each number of them."""
    if any(map(is_key_array, some)):
        return jnp.concatenate(some)
    return np.concatenate([np.asarray(each) for each in some])


def _values(name: str, axis: Axis, space: Space, places: np.ndarray) -> Any:
    """The values of an axis at some positions, in a list if they are Python values."""
    if axis.is_static:
        static: Any = axis
        return [static.value(int(k), None) for k in places]
    if type(axis) is Values and not is_key_array(axis.values):
        return np.asarray(axis.values)[places]
    key = space.axis_key(name)
    at = jnp.asarray(places, jnp.int32)
    return jax.vmap(lambda i: jtu.tree_map(jnp.asarray, value_of(name, axis, i, key)))(
        at
    )
