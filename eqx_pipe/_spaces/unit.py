"""Maps between the unit cube and the points of a space; see `Space.from_unit`."""

from collections.abc import Sequence
from typing import Any, SupportsFloat, TypeAlias

import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, Shaped

from .._check import check_unmasked
from .._errors import describe_value, quoted, value_error
from .._tree import as_hashable
from .._types import Key
from .axis import Axis, Mapped
from .geometry import Geometry, as_numpy, values_at

Cube: TypeAlias = (
    Shaped[Array, "points axes"]
    | Shaped[np.ndarray, "points axes"]
    | Sequence[Sequence[SupportsFloat]]
)
"""Points of the unit cube."""


def axes_at(geometry: Geometry, u: Any, dim: str | None) -> list[Axis]:
    """Return the axes of a space at points of the unit cube, in the order written."""
    _check_untied(geometry, "Space.from_unit")
    check_unmasked("Space.from_unit", "u", u)
    array: Any = np.zeros(0)
    try:
        array = np.asarray(u, np.float64)
    # The error is raised below, as for arrays of other shapes. JAX's error for tracers
    # is a `TypeError`.
    except (TypeError, ValueError):
        pass
    width = len(geometry.names)
    if array.ndim != 2 or array.shape[1] != width:
        raise value_error(
            "Space.from_unit",
            f"`u` is {describe_value(u)}.",
            f"Give numbers of the shape (points, {width}), a column for each of "
            f"{quoted(geometry.names)}, outside of `jit`.",
        )
    outside = ~((array >= 0) & (array <= 1))
    if np.any(outside):
        row, column = (int(k) for k in np.argwhere(outside)[0])
        raise value_error(
            "Space.from_unit",
            f"`u[{row}, {column}]` is {array[row, column]}.",
            "Give numbers from 0 to 1.",
        )
    # An axis has at least one value: `Space.from_unit` removes this point again.
    array = array if len(array) else np.zeros((1, width))
    pairs = zip(geometry.axes.values(), array.T, strict=True)
    return [axis.from_unit(column, dim) for axis, column in pairs]


def unit_of(geometry: Geometry, points: Geometry) -> Float[np.ndarray, "points axes"]:
    """Return the coordinates of some points in the unit cube of a space."""
    _check_untied(geometry, "Space.to_unit")
    if points.names != geometry.names:
        raise value_error(
            "Space.to_unit",
            f"`points` has the axes {quoted(points.names)}, but the space has "
            f"{quoted(geometry.names)}.",
            "Give a space with the same axes, in the same order.",
        )
    digits = points.digits(np.arange(points.size))
    columns = []
    for (name, axis), dim in zip(geometry.axes.items(), points.axis_dims, strict=True):
        other = points.axes[name]
        while isinstance(axis, Mapped) and isinstance(other, Mapped):
            axis, other = axis.axis, other.axis
        # Convert each value once: on a grid most positions occur many times.
        few, back = np.unique(digits[:, dim], return_inverse=True)
        values = values_at(name, other, points.axis_key(name), few)
        if axis.is_range:
            u = axis.to_unit(np.asarray(values))
        else:
            hashable = _hashable(other.is_static, values)
            u = _middles(name, axis, geometry.axis_key(name), hashable)
        back = back.reshape(-1)
        columns.append(u[back])
        if np.isnan(u).any():
            i = int(np.argmax(np.isnan(columns[-1])))
            raise _no_value(name, axis, other, values, int(back[i]), i)
    return np.stack(columns, axis=1)


def _no_value(
    name: str, axis: Axis, other: Axis, values: Any, k: int, i: int
) -> ValueError:
    """Return the error for value `k` of an axis, at point `i`, that `axis` lacks."""
    if other.is_static:
        value = values[k]
    else:
        value = jtu.tree_map(lambda leaf: as_numpy(leaf)[k], values)
    cure = "one of its values, since they are categories"
    if axis.is_range:
        cure = "values from one end to the other"
    return value_error(
        "Space.to_unit",
        f"point {i} has {value} for `{name}`, outside of {axis!r}.",
        f"Give points that have {cure}.",
    )


def _middles(
    name: str, axis: Axis, key: Key | None, values: list[Any]
) -> Float[np.ndarray, " points"]:
    """Return the middle of the part of each value in the unit interval, or NaN."""
    choices = values_at(name, axis, key, np.arange(len(axis)))
    known: dict[Any, int] = {}
    for k, value in enumerate(_hashable(axis.is_static, choices)):
        known.setdefault(value, k)
    positions = np.array([known.get(value, np.nan) for value in values], float)
    # The middle, since rounding could move an end into the next part.
    return (positions + 0.5) / len(axis)


def _hashable(is_static: bool, values: Any) -> list[Any]:
    """Return values of an axis as keys of a dict."""
    if is_static:
        return [as_hashable(value) for value in values]
    columns = [as_numpy(leaf) for leaf in jtu.tree_leaves(values)]
    # Compare bits: arrays are not hashable, and NaN does not equal itself.
    return [tuple(x.tobytes() for x in row) for row in zip(*columns, strict=True)]


def _check_untied(geometry: Geometry, function: str) -> None:
    """Raise unless no two axes of a space share a dim."""
    for dim in set(geometry.axis_dims):
        pairs = zip(geometry.names, geometry.axis_dims, strict=True)
        names = [name for name, other in pairs if other == dim]
        if len(names) > 1:
            raise value_error(
                function,
                f"the axes {quoted(names)} vary together, but each axis of the unit "
                "cube varies by itself.",
                "Give each its own dim; compute a function of another axis in `fn`, or "
                "in one `Mapped` axis that returns both.",
            )
