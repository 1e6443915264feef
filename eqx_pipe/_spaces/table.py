"""Points as columns: coordinates of axes, and a data frame of a space."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._tree import is_key_array, leaves_with_names
from .axis import Axis
from .space import Space
from .static import static_column
from .value import value_of


def axis_structs(name: str, axis: Axis, key: Any) -> Any:
    """The shapes and dtypes of one value of an axis whose values are arrays."""
    position = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.eval_shape(lambda i: value_of(name, axis, i, key), position)


def axis_columns(space: Space) -> list[str]:
    """The names of the columns of a space, without computing them."""
    names = []
    for name, axis in space.axes().items():
        structs = ""
        if not axis.is_static:
            structs = axis_structs(name, axis, space.axis_key(name))
        names += [
            f"{name}.{leaf}" if leaf else name for leaf, _ in leaves_with_names(structs)
        ]
    return names


def axis_values(
    name: str, axis: Axis, key: Any, positions: np.ndarray
) -> dict[str, np.ndarray]:
    """The values of an axis at some positions, leaf by leaf; keys as their raw data.

    An axis of plain arrays has one leaf, named `""`; so has an axis of Python values,
    which are numbers or texts here.
    """
    if axis.is_static:
        static: Any = axis
        values = [static.value(i, key) for i in range(len(axis))]
        return {"": static_column(values)[positions]}
    at = jnp.asarray(positions, jnp.int32)
    values = jax.vmap(lambda i: value_of(name, axis, i, key))(at)
    return {leaf: as_numpy(value) for leaf, value in leaves_with_names(values)}


def positions_of(space: Space) -> dict[str, np.ndarray]:
    """For each axis its position at every point of the space, in order."""
    start, step, count = space.window or (0, 1, space.size)
    columns = []
    # Python integers, since the whole grid may be larger than any integer of NumPy.
    if space.grid_size < 2**62:
        flat = start + step * np.arange(count, dtype=np.int64)
    else:
        flat = np.array([start + step * i for i in range(count)], object)
    for n in reversed(space.grid_dims.values()):
        columns.append((flat % n).astype(np.int32))
        flat = flat // n
    columns = columns[::-1]
    names = space.axes()
    return {
        name: columns[dim] for name, dim in zip(names, space.axis_dims(), strict=True)
    }


def point_columns(space: Space) -> dict[str, np.ndarray]:
    """The value of each axis at every point; the leading axis counts the points."""
    columns = {}
    for (name, axis), position in zip(
        space.axes().items(), positions_of(space).values(), strict=True
    ):
        distinct, back = np.unique(position, return_inverse=True)
        values = axis_values(name, axis, space.axis_key(name), distinct)
        for leaf, value in values.items():
            columns[f"{name}.{leaf}" if leaf else name] = value[back]
    return columns


def flat_columns(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    """One column for each entry of a value per point: `name`, or `name.0.1`."""
    if value.ndim == 1:
        return {name: value}
    return {
        ".".join([name, *map(str, entry)]): value[(slice(None), *entry)]
        for entry in np.ndindex(value.shape[1:])
    }


def points_frame(space: Space) -> Any:
    """The points of a space as a data frame."""
    pandas = import_pandas("Space.to_pandas")
    columns: dict[str, np.ndarray] = {}
    for name, value in point_columns(space).items():
        columns |= flat_columns(name, value)
    return pandas.DataFrame(columns)


def import_pandas(function: str) -> Any:
    """The module pandas, or an error that says how to install it."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            f"`eqx_pipe.{function}` needs pandas. Install it by "
            "`pip install 'eqx_pipe[sweep]'`."
        ) from error
    return pandas


def as_numpy(leaf: Any) -> np.ndarray:
    """An array on the host; PRNG keys as their raw data."""
    return np.asarray(jax.random.key_data(leaf) if is_key_array(leaf) else leaf)
