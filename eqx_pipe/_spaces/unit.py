"""Between the unit interval and an axis, so that proposers of numbers drive any space.

`Linspace` and `Geomspace` are the whole stretch between their ends. The values of any
other axis are categories: the interval is cut into equal parts, one for each in order.
"""

from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from .._errors import describe_value, type_error, value_error
from .._tree import as_hashable, is_key_array, on_device
from .._types import Key, PyTree
from .axes import Geomspace, Linspace, Listed, Values
from .axis import Axis, Named, NamedAxis, Position
from .geometry import Geometry
from .mapped import Mapped
from .static import Static
from .table import axis_values

Cube: TypeAlias = (
    Shaped[Array, "points axes"]
    | Shaped[np.ndarray, "points axes"]
    | Sequence[Sequence[SupportsFloat]]
)
"""Points of the unit cube."""

Make = Callable[[Shaped[Array, "points ..."], Named], Axis]
"""What makes an axis of values, with their label and unit."""


class _Chosen(NamedAxis):
    """The values of an axis at some positions."""

    axis: Axis
    positions: Int[Array, " points"]
    dim: str | None = eqx.field(static=True)

    @property
    def needs_key(self) -> bool:
        return self.axis.needs_key

    def __len__(self) -> int:
        return self.positions.shape[0]

    def value(self, i: Position, key: Key | None) -> PyTree:
        return self.axis.value(self.positions[i], key)

    def __repr__(self) -> str:
        return f"{len(self)} of {self.axis!r}"


def at_shares(
    axis: Axis, shares: Float[np.ndarray, " points"], make: Make, dim: str | None
) -> Axis:
    """The axis at some shares of the way, from 0 to 1.

    `make` makes the axes of numbers, and others get the `dim`.
    """
    named = axis.named if isinstance(axis, NamedAxis) else Named("Space")
    if isinstance(axis, Mapped):
        inner = at_shares(axis.axis, shares, make, dim)
        return Mapped(axis.fn, inner, **_texts(named))
    if isinstance(axis, Linspace | Geomspace):
        return make(axis.between(shares), named)
    positions = _positions(shares, len(axis))
    if isinstance(axis, Static):
        values = [axis.choices.values[k] for k in positions]
        return Static(values, dim=dim, **_texts(named))
    if isinstance(axis, Listed) and not is_key_array(axis.values):
        return make(on_device(np.asarray(axis.values)[positions]), named)
    chosen = on_device(positions.astype(np.int32))
    if isinstance(axis, Listed):
        return make(axis.values[chosen], named)
    return _Chosen(named=named, axis=axis, positions=chosen, dim=dim)


def _texts(named: Named) -> dict[str, str]:
    """A label and a unit as arguments of an axis."""
    words = {"long_name": "label", "units": "unit"}
    return {words[name]: text for name, text in named.attrs.items()}


def _positions(shares: np.ndarray, n: int) -> Int[np.ndarray, " points"]:
    # A share of 1 belongs to the last value, and has no part of its own behind it.
    return np.minimum((shares * n).astype(np.int64), n - 1)


def axes_at(geometry: Geometry, shares: Any) -> list[Axis]:
    """The axes of a space at points of the unit cube, in the order written."""
    check_untied(geometry, "Space.from_unit")
    array: Any = np.zeros(0)
    try:
        array = np.asarray(shares, np.float64)
    # Refused below, together with arrays of other shapes.
    except (TypeError, ValueError, jax.errors.TracerArrayConversionError):
        pass
    width = len(geometry.names)
    if array.ndim != 2 or array.shape[1] != width:
        raise value_error(
            "Space.from_unit",
            f"`u` is {describe_value(shares)}.",
            f"Give numbers of the shape (points, {width}), a column for each of "
            f"{', '.join(f'`{name}`' for name in geometry.names)}, outside of `jit`.",
        )
    outside = ~((array >= 0) & (array <= 1))
    if np.any(outside):
        row, column = (int(k) for k in np.argwhere(outside)[0])
        raise value_error(
            "Space.from_unit",
            f"`u[{row}, {column}]` is {array[row, column]}.",
            "Give numbers from 0 to 1.",
        )

    def make(values: Array, named: Named) -> Axis:
        return Values(values, **_texts(named))

    # An axis has at least one value: `Space.from_unit` takes this point away again.
    if not len(array):
        array = np.zeros((1, width))
    axes = geometry.axes.values()
    return [
        at_shares(axis, column, make, None)
        for axis, column in zip(axes, array.T, strict=True)
    ]


def shares_of(
    geometry: Geometry,
    axis_key: Callable[[str], Key | None],
    points: Geometry,
    points_key: Callable[[str], Key | None],
) -> Float[np.ndarray, "points axes"]:
    """Where in the unit cube of a space some points are."""
    check_untied(geometry, "Space.to_unit")
    if points.names != geometry.names:
        raise value_error(
            "Space.to_unit",
            f"`points` has the axes {list(points.names)}, and the space "
            f"{list(geometry.names)}.",
            "Give a space with the same axes, in the same order.",
        )
    digits = points.digits(np.arange(points.size))
    columns = []
    for (name, axis), dim in zip(geometry.axes.items(), points.axis_dims, strict=True):
        # Each value once: on a grid most positions come many times.
        few, back = np.unique(digits[:, dim], return_inverse=True)
        given = points.axes[name], points_key(name), few
        columns.append(_shares(name, axis, axis_key(name), *given)[back.reshape(-1)])
    return np.stack(columns, axis=1)


def _shares(
    name: str,
    axis: Axis,
    key: Key | None,
    given: Axis,
    given_key: Key | None,
    positions: Int[np.ndarray, " points"],
) -> Float[np.ndarray, " points"]:
    """Where between 0 and 1 the values of a given axis at some positions are."""
    if isinstance(axis, Mapped) and isinstance(given, Mapped):
        return _shares(name, axis.axis, key, given.axis, given_key, positions)
    if isinstance(axis, Linspace | Geomspace):
        ((_, values),) = axis_values(name, given, given_key, positions)
        return axis.shares(values)
    if isinstance(axis, Mapped) and isinstance(axis.axis, Linspace | Geomspace):
        raise type_error(
            "Space.to_unit",
            f"`{name}` is a function of a {type(axis.axis).__name__}, and only the "
            "values of that function are given.",
            "Give points that were made by `space.from_unit`, which know what the "
            "function was called with.",
        )
    known = {
        value: k
        for k, value in enumerate(_listed(name, axis, key, np.arange(len(axis))))
    }
    found = np.empty(len(positions))
    for i, value in enumerate(_listed(name, given, given_key, positions)):
        if value not in known:
            raise value_error(
                "Space.to_unit",
                f"the value of `{name}` at point {i} is none of the {len(axis)} that "
                f"{axis!r} has.",
                "Its values are categories: give points that have one of them.",
            )
        # The middle of its part: at an end rounding would make it a neighbour.
        found[i] = (known[value] + 0.5) / len(axis)
    return found


def _listed(
    name: str, axis: Axis, key: Key | None, positions: Int[np.ndarray, " points"]
) -> Sequence[Any]:
    """The values of an axis at some positions, as what may be looked up."""
    if axis.is_static:
        static: Any = axis
        return [as_hashable(static.value(int(k), key)) for k in positions]
    columns = [column for _, column in axis_values(name, axis, key, positions)]
    # By their bits: arrays cannot be looked up, and a NaN is not equal to itself.
    return [tuple(x.tobytes() for x in row) for row in zip(*columns, strict=True)]


def check_untied(geometry: Geometry, function: str) -> None:
    """Raises unless every axis of a space has a dim of its own."""
    names: dict[int, str] = {}
    for name, dim in zip(geometry.names, geometry.axis_dims, strict=True):
        if dim in names:
            raise value_error(
                function,
                f"the axes `{names[dim]}` and `{name}` vary together, and in the unit "
                "cube each axis is by itself.",
                "Give each its own dim; what is a function of another axis is computed "
                "by `fn`, or by one `Mapped` axis that gives both.",
            )
        names[dim] = name
