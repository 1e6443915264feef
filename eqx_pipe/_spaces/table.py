"""A space as tables: its points as columns or a data frame, its axes as HTML."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._errors import optional, value_error
from .._html import table
from .._tree import as_data, leaves_with_names
from .._types import Key, PyTree
from .arrange import POINT
from .axes import Column, Geomspace, Linspace, Values
from .axis import Axis, value_of
from .geometry import Geometry
from .index import axis_key
from .static import static_column

_Column = TypeVar("_Column")


def axis_structs(name: str, axis: Axis, key: Key | None) -> PyTree:
    """The shapes and dtypes of one value of an axis whose values are arrays."""
    table = _table_of(axis)
    if table is not None:
        return jax.ShapeDtypeStruct(table.shape[1:], table.dtype)
    position = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.eval_shape(lambda i: value_of(name, axis, i, key), position)


def axis_columns(geometry: Geometry, key: Key | None) -> dict[str, tuple[int, ...]]:
    """The shape of one value in each column of a space, without computing any.

    `key` is that of the space.

    **Raises:** `ValueError` if two columns have the same name.
    """

    def shapes() -> Iterator[tuple[str, str, tuple[int, ...]]]:
        for name, axis in geometry.axes.items():
            if axis.is_static:
                yield name, name, ()
                continue
            structs = axis_structs(name, axis, axis_key(key, name))
            for column, struct in _columns(name, structs):
                yield name, column, raw_shape(struct)

    return _distinct(shapes())


def axis_values(
    name: str, axis: Axis, key: Key | None, positions: np.ndarray
) -> list[tuple[str, np.ndarray]]:
    """The columns of an axis at some positions; keys as their raw data.

    There is one for each leaf of a value. Python values are numbers or texts here.
    """
    if axis.is_static:
        static: Any = axis
        values = [static.value(i, key) for i in range(len(axis))]
        return [(name, static_column(values)[positions])]
    table = _table_of(axis)
    if table is not None:
        return [(name, as_numpy(table)[positions])]
    at = jnp.asarray(positions, jnp.int32)
    values = jax.vmap(lambda i: value_of(name, axis, i, key))(at)
    return [(column, as_numpy(leaf)) for column, leaf in _columns(name, values)]


def _positions(geometry: Geometry) -> list[np.ndarray]:
    """For each axis its position at every point of the space, in order."""
    digits = geometry.digits(np.arange(geometry.size))
    return [digits[:, dim] for dim in geometry.axis_dims]


def point_columns(geometry: Geometry, key: Key | None) -> dict[str, np.ndarray]:
    """The value of each axis at every point; the leading axis counts the points.

    **Raises:** `ValueError` if two columns have the same name.
    """

    def values() -> Iterator[tuple[str, str, np.ndarray]]:
        for (name, axis), position in zip(
            geometry.axes.items(), _positions(geometry), strict=True
        ):
            # Each value once: on a grid most positions come many times.
            few, back = np.unique(position, return_inverse=True)
            for column, value in axis_values(name, axis, axis_key(key, name), few):
                yield name, column, value[back]

    return _distinct(values())


def entry_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """The names of the entries of an array: `name` of a scalar, or `name.0.1`."""
    return [".".join([name, *map(str, entry)]) for entry in np.ndindex(shape)]


def flat_columns(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    """One column for each entry of a value per point."""
    names = entry_names(name, value.shape[1:])
    return dict(zip(names, value.reshape(len(value), len(names)).T, strict=True))


def entry_columns(
    geometry: Geometry,
    key: Key | None,
    convert: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> dict[str, np.ndarray]:
    """One column for each entry of the converted value of each axis at every point.

    **Raises:** `ValueError` if two columns have the same name.
    """
    return _distinct(
        (name, entry, column)
        for name, value in point_columns(geometry, key).items()
        for entry, column in flat_columns(name, convert(value)).items()
    )


def points_frame(geometry: Geometry, key: Key | None) -> Any:
    """The points of a space as a data frame."""
    size = geometry.size
    if size >= 2**31:
        raise value_error(
            "Space.to_pandas",
            f"the space has {size} points, and each is a row.",
            "At most 2**31 - 1 rows are made: take a slice, `space[a:b]`.",
        )
    pandas = optional("Space.to_pandas", "pandas")
    return pandas.DataFrame(entry_columns(geometry, key))


def as_numpy(leaf: Any) -> np.ndarray:
    """An array on the host; PRNG keys as their raw data."""
    return np.asarray(as_data(leaf))


def raw_shape(struct: Any) -> tuple[int, ...]:
    """The shape of a value on the host, where PRNG keys are their raw data."""
    if jnp.issubdtype(struct.dtype, jax.dtypes.prng_key):
        return jax.eval_shape(jax.random.key_data, struct).shape
    return struct.shape


def _table_of(axis: Axis) -> Array | None:
    """The values of an axis that looks them up in one table, in order.

    To trace and run a lookup takes a thousand times as long as to read the table, and
    gives the same bits. A subclass may have a `value` of its own.
    """
    if type(axis) in (Values, Column):
        return axis.values  # pyright: ignore[reportAttributeAccessIssue]
    if type(axis) in (Linspace, Geomspace):
        lookup = axis.lookup  # pyright: ignore[reportAttributeAccessIssue]
        return lookup.coarse if lookup.fine is None else None
    return None


def _columns(name: str, values: Any) -> list[tuple[str, Any]]:
    """The leaves of values of an axis, with the names of their columns."""
    return [
        (f"{name}.{leaf}" if leaf else name, value)
        for leaf, value in leaves_with_names(values)
    ]


def _distinct(columns: Iterable[tuple[str, str, _Column]]) -> dict[str, _Column]:
    """Columns by name, from whose they are, their name and what is in them.

    Raises a `ValueError` if two have the same name: none takes the place of another.
    """
    owners: dict[str, str] = {}
    found = {}
    for owner, name, column in columns:
        if name in found:
            raise value_error(
                "Space",
                f"`{name}` is the name of two columns, one of `{owners[name]}` and "
                f"one of `{owner}`.",
                "Rename one of these axes, or a part of its values: entries of arrays "
                "and leaves of pytrees are called by the axis and their place, `x.0`.",
            )
        owners[name], found[name] = owner, column
    return found


def axes_table(geometry: Geometry) -> str:
    """The axes of a space with their dims."""
    names, rows = list(geometry.grid_dims), []
    for (name, axis), k in zip(geometry.axes.items(), geometry.axis_dims, strict=True):
        dim = POINT if geometry.is_part else names[k]
        rows.append((name, dim, f"{len(axis):,}", repr(axis)))
    return table(("axis", "dim", "values", ""), rows)
