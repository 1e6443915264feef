"""The points of a space as columns and data frames."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int

from .._errors import value_error
from .._tree import as_data, as_hashable, is_key_array, leaves_with_names, static_text
from .._types import Key, PyTree
from .axis import Axis, value_of
from .geometry import Geometry

_Column = TypeVar("_Column")


def values_at(
    name: str, axis: Axis, key: Key | None, positions: Int[np.ndarray, " points"]
) -> Any:
    """Return the values of an axis at some positions, along a leading axis.

    `key` is the axis's key. Values are NumPy arrays, or JAX arrays if they are keys or
    are computed by `value`; static values are a list.
    """
    if axis.is_static:
        static: Any = axis
        return [static.value(int(k), key) for k in positions]
    known = axis.known
    if known is not None:
        return (known if is_key_array(known) else np.asarray(known))[positions]
    at = jnp.asarray(positions, jnp.int32)
    return jax.vmap(lambda i: jtu.tree_map(jnp.asarray, value_of(name, axis, i, key)))(
        at
    )


def axis_structs(name: str, axis: Axis, key: Key | None) -> PyTree:
    """Return the shapes and dtypes of one value of an axis whose values are arrays."""
    known = axis.known
    if known is not None:
        return jax.ShapeDtypeStruct(known.shape[1:], known.dtype)
    position = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.eval_shape(lambda i: value_of(name, axis, i, key), position)


def axis_columns(geometry: Geometry) -> dict[str, tuple[int, ...]]:
    """Return the shape of one value in each column of a space, without computing any.

    Raises a `ValueError` if two columns have the same name.
    """

    def shapes() -> Iterator[tuple[str, str, tuple[int, ...]]]:
        for name, axis in geometry.axes.items():
            if axis.is_static:
                yield name, name, ()
                continue
            structs = axis_structs(name, axis, geometry.axis_key(name))
            for column, struct in _columns(name, structs):
                yield name, column, raw_shape(struct)

    return _distinct(shapes())


def axis_values(
    geometry: Geometry, name: str, positions: np.ndarray
) -> list[tuple[str, np.ndarray]]:
    """Return the columns of an axis at some positions; keys as their raw data.

    There is one column for each leaf of a value. Python values become numbers or texts.
    """
    axis, key = geometry.axes[name], geometry.axis_key(name)
    if axis.is_static:
        values = values_at(name, axis, key, np.arange(len(axis)))
        return [(name, static_column(values)[positions])]
    values = values_at(name, axis, key, positions)
    return [(column, as_numpy(leaf)) for column, leaf in _columns(name, values)]


def static_column(values: list[Any]) -> np.ndarray:
    """Return static values as a column: all numbers, or else distinct texts."""
    if all(isinstance(v, bool | np.bool_) for v in values):
        return np.array(values, bool)
    numbers = (int, float, np.integer, np.floating)
    if all(isinstance(v, numbers) and not isinstance(v, bool) for v in values):
        column = np.array(values)
        if column.dtype.kind in "iuf":
            return column
    texts = [static_text(v) for v in values]
    owners: dict[str, set[Any]] = {}
    for text, value in zip(texts, values, strict=True):
        owners.setdefault(text, set()).add(as_hashable(value))
    shared = {text for text, who in owners.items() if len(who) > 1}
    return np.array(
        [f"{t} ({i})" if t in shared else t for i, t in enumerate(texts)], np.str_
    )


def point_columns(geometry: Geometry) -> dict[str, np.ndarray]:
    """Return the value of each axis at every point, along a leading axis.

    Raises a `ValueError` if two columns have the same name.
    """
    digits = geometry.digits(np.arange(geometry.size))

    def values() -> Iterator[tuple[str, str, np.ndarray]]:
        for name, dim in zip(geometry.names, geometry.axis_dims, strict=True):
            # Compute each value once: on a grid most positions occur many times.
            few, back = np.unique(digits[:, dim], return_inverse=True)
            for column, value in axis_values(geometry, name, few):
                yield name, column, value[back]

    return _distinct(values())


def entry_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return the names of an array's entries: `name` for a scalar, or `name.0.1`."""
    return [".".join([name, *map(str, entry)]) for entry in np.ndindex(shape)]


def flat_columns(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    """Return one column for each entry of a value per point."""
    names = entry_names(name, value.shape[1:])
    return dict(zip(names, value.reshape(len(value), len(names)).T, strict=True))


def entry_columns(
    geometry: Geometry,
    convert: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> dict[str, np.ndarray]:
    """Return one column for each entry of the converted value of each axis.

    Raises a `ValueError` if two columns have the same name.
    """
    return _distinct(
        (name, entry, column)
        for name, value in point_columns(geometry).items()
        for entry, column in flat_columns(name, convert(value)).items()
    )


def as_numpy(leaf: Any) -> np.ndarray:
    """Return an array on the host; PRNG keys as their raw data."""
    return np.asarray(as_data(leaf))


def raw_shape(struct: Any) -> tuple[int, ...]:
    """Return the shape of a value on the host, where PRNG keys are their raw data."""
    if jnp.issubdtype(struct.dtype, jax.dtypes.prng_key):
        return jax.eval_shape(jax.random.key_data, struct).shape
    return struct.shape


def at_least_one(values: Any) -> tuple[Any, bool]:
    """Return values, or a placeholder if there are none, and whether it was needed.

    An axis has at least one value, so the axes of an empty table have one that is not
    used.
    """
    if len(values):
        return values, False
    if is_key_array(values):
        return jnp.empty((1, *values.shape[1:]), values.dtype), True
    values = np.asarray(values)
    return np.zeros((1, *values.shape[1:]), values.dtype), True


def _columns(name: str, values: Any) -> list[tuple[str, Any]]:
    """Return the leaves of values of an axis, with the names of their columns."""
    return [
        (f"{name}.{leaf}" if leaf else name, value)
        for leaf, value in leaves_with_names(values)
    ]


def _distinct(columns: Iterable[tuple[str, str, _Column]]) -> dict[str, _Column]:
    """Return columns by name, given the axis of each, its name and its content."""
    owners: dict[str, str] = {}
    distinct = {}
    for owner, name, column in columns:
        if name in distinct:
            raise value_error(
                "Space",
                f"`{name}` is the name of two columns, one of `{owners[name]}` and "
                f"one of `{owner}`.",
                "Rename one of these axes, or a part of its values: an entry of an "
                "array is named by the axis and its index, `x.0`, and a leaf of a "
                "pytree by its key.",
            )
        owners[name], distinct[name] = owner, column
    return distinct
