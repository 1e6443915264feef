"""A sweep's result with names on it: as an xarray dataset, as a pandas data frame."""

import datetime
import importlib.metadata
import platform
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ..._errors import message
from ..._spaces.space import Space
from ..._spaces.table import (
    axis_columns,
    axis_values,
    entry_columns,
    entry_names,
    flat_columns,
    import_pandas,
    point_columns,
)
from ..._store.layout import RECORD
from ..._store.lazy import Stored, stored_in
from ..._tree import leaves_with_names
from .form import FORM, form_of

if TYPE_CHECKING:
    from .result import SweepResult
else:
    SweepResult = Any

_LONGEST = 200
"""Bytes of a name: file systems allow 255, some of which others need."""


def dataset(result: SweepResult) -> Any:
    """The result as an `xarray.Dataset`."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError(
            "`eqx_pipe.SweepResult.to_xarray` needs xarray. Install it by "
            "`pip install 'eqx_pipe[sweep]'`."
        ) from error
    store = stored_in(jtu.tree_leaves(result.values))
    if store is not None:
        # A unit such as "days" is no request for times.
        data = xarray.open_zarr(store.path, decode_times=False, decode_timedelta=False)
        # A copy of the data would not be a store.
        del data.attrs[RECORD]
        return data
    dims = result.space.dims
    names, status = variable_names(result.values, result.space)
    coordinates = coordinate_variables(result.space)
    at = result.status.reshape(tuple(dims.values()))
    coordinates[status] = (tuple(dims), at, {})
    variables = {}
    for name, leaf in zip(names, jtu.tree_leaves(result.values), strict=True):
        leaf = storable(leaf)
        value = leaf.reshape((*dims.values(), *leaf.shape[1:]))
        variables[name] = ((*dims, *inner_dims(name, leaf.ndim - 1)), value)
    return xarray.Dataset(variables, coordinates, attributes(result))


def frame(result: SweepResult) -> Any:
    """The result as a `pandas.DataFrame`."""
    pandas = import_pandas("SweepResult.to_pandas")
    columns = entry_columns(result.space, storable)
    taken = {*columns, *result.space.axes()}
    names = free_names(result.values, taken, entry_names)
    for name, leaf in zip(names, jtu.tree_leaves(result.values), strict=True):
        columns |= flat_columns(name, storable(leaf))
    return pandas.DataFrame(columns)


def coordinate_variables(space: Space) -> dict[str, tuple[Any, np.ndarray, Any]]:
    """Dims, values and attributes of each axis, or leaf of an axis with several."""
    if space.window is not None:
        columns = {name: ("point", v) for name, v in point_columns(space).items()}
    else:
        columns = {}
        names = list(space.dims)
        for (name, axis), dim in zip(
            space.axes().items(), space.axis_dims(), strict=True
        ):
            key, positions = space.axis_key(name), np.arange(len(axis))
            for column, value in axis_values(name, axis, key, positions):
                columns[column] = (names[dim], value)
    inner = coordinate_dims(space)
    return {
        name: ((dim, *inner[name]), _text(storable(value)), _attrs(space, name))
        for name, (dim, value) in columns.items()
    }


def _attrs(space: Space, column: str) -> dict[str, str]:
    """The attributes of the axis that a column is one of, or is."""
    axes = space.axes()
    owners = [n for n in axes if column == n or column.startswith(f"{n}.")]
    return axes[max(owners, key=len)].attrs


def coordinate_dims(space: Space) -> dict[str, tuple[str, ...]]:
    """The names of the dims of one value of each coordinate, each name once."""
    shapes = axis_columns(space)
    taken = {*space.dims, *shapes}
    found = {}
    for name, shape in shapes.items():
        dims = inner_dims(name, len(shape))
        while not taken.isdisjoint(dims):
            dims = tuple(f"result.{dim}" for dim in dims)
        found[name] = dims
        taken |= set(dims)
    return found


def variable_names(outputs: Any, space: Space) -> tuple[list[str], str]:
    """The names of the output leaves in order, and that of the points' status.

    `outputs` have a leading axis over the points, or are the structs of one output.
    """
    inner = coordinate_dims(space)
    taken = {*space.dims, *inner}.union(*inner.values())
    status = "status"
    while status in taken:
        status = f"sweep.{status}"

    def dims(name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        return inner_dims(name, len(shape))

    return free_names(outputs, {*taken, status}, dims), status


def free_names(
    outputs: Any,
    taken: set[str],
    parts: Callable[[str, tuple[int, ...]], Iterable[str]],
) -> list[str]:
    """The names of the output leaves in order, with `result.` before what is taken.

    `parts(name, shape)` are the names that come with one, of its dims or its columns;
    they are not in `taken` either, nor shared by two leaves.
    """
    names = []
    for path, leaf in leaves_with_names(outputs):
        name, shape = path or "value", _value_shape(leaf)
        while not taken.isdisjoint(together := {name, *parts(name, shape)}):
            name = f"result.{name}"
        names.append(name)
        taken = taken | together
    return names


def _value_shape(leaf: Any) -> tuple[int, ...]:
    """The shape of one value as it is stored: PRNG keys are their raw data."""
    is_one = isinstance(leaf, jax.ShapeDtypeStruct)
    shape = leaf.shape if is_one else leaf.shape[1:]
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        key = jax.ShapeDtypeStruct(shape, leaf.dtype)
        return jax.eval_shape(jax.random.key_data, key).shape
    return shape


def inner_dims(name: str, count: int) -> tuple[str, ...]:
    """The names of the dims of one value of a variable."""
    return tuple(f"{name}.{k}" for k in range(count))


def storable(leaf: Any) -> np.ndarray:
    """An array of a dtype that xarray, NetCDF and pandas know."""
    leaf = leaf[...] if isinstance(leaf, Stored) else leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    if array.dtype.kind in "biufcU" and array.dtype != np.float16:
        return array
    exact = jnp.issubdtype(array.dtype, jnp.integer)
    return array.astype(np.int8 if exact else np.float32)


def _text(array: np.ndarray) -> np.ndarray:
    """Zarr 3 has no settled format for texts of a fixed length."""
    return array.astype(object) if array.dtype.kind == "U" else array


def attributes(result: SweepResult) -> dict[str, Any]:
    """What made a result, as plain text and numbers."""
    names, status = variable_names(result.values, result.space)
    return {
        "function": result.function,
        "space": repr(result.space),
        "mode": result.space.mode,
        "points": result.space.size,
        "batch_size": result.batch_size,
        "devices": result.num_devices,
        "started": _date(result.started),
        "seconds": round(result.seconds, 6),
        **versions(),
        **dict(result.made),
        FORM: form_of(result.values, names, status, result.space),
    }


def versions() -> dict[str, str]:
    """What a sweep runs on."""
    return {
        "platform": jax.default_backend(),
        "eqx_pipe": importlib.metadata.version("eqx_pipe"),
        "jax": jax.__version__,
        "equinox": importlib.metadata.version("equinox"),
        "python": platform.python_version(),
    }


def _date(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="seconds")


def check_names(function: str, names: Iterable[str]) -> None:
    """Raises a `ValueError` for what cannot be the name of an array in a file."""
    wrong = [
        name
        for name in names
        if "/" in name
        or not name.strip(".")
        or name == "zarr.json"
        or len(name.encode()) > _LONGEST
    ]
    if wrong:
        raise ValueError(
            message(
                function,
                f"`{wrong[0]}` cannot be the name of an array in a file.",
                "Rename the axis or the output: such names have no slash, at most "
                f"{_LONGEST} bytes, and are neither `zarr.json` nor dots alone.",
            )
        )
