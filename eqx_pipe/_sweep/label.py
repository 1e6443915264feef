"""A sweep's result with names on it: as an xarray dataset, as a pandas data frame."""

import datetime
import importlib.metadata
import platform
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import message
from .._spaces.space import Space
from .._spaces.table import (
    axis_columns,
    axis_values,
    flat_columns,
    import_pandas,
    point_columns,
)
from .._store.layout import RECORD
from .._store.lazy import Stored, stored_in
from .._tree import leaves_with_names
from .form import FORM, form_of

if TYPE_CHECKING:
    from .result import SweepResult
else:
    SweepResult = Any


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
        data = xarray.open_zarr(store.path)
        # A copy of the data would not be a store.
        del data.attrs[RECORD]
        return data
    dims = result.space.dims
    names, status = variable_names(result.values, result.space)
    coordinates = coordinate_variables(result.space)
    at = result.status.reshape(tuple(dims.values()))
    coordinates[status] = (tuple(dims), at)
    variables = {}
    for name, leaf in zip(names, jtu.tree_leaves(result.values), strict=True):
        leaf = storable(leaf)
        value = leaf.reshape((*dims.values(), *leaf.shape[1:]))
        variables[name] = ((*dims, *inner_dims(name, leaf.ndim - 1)), value)
    return xarray.Dataset(variables, coordinates, attributes(result))


def frame(result: SweepResult) -> Any:
    """The result as a `pandas.DataFrame`."""
    pandas = import_pandas("SweepResult.to_pandas")
    columns: dict[str, np.ndarray] = {}
    for name, value in point_columns(result.space).items():
        columns |= flat_columns(name, storable(value))
    taken = {*columns, *result.space.axes()}
    names = free_names(result.values, taken)
    for name, leaf in zip(names, jtu.tree_leaves(result.values), strict=True):
        columns |= flat_columns(name, storable(leaf))
    return pandas.DataFrame(columns)


def coordinate_variables(space: Space) -> dict[str, tuple[Any, np.ndarray]]:
    """Dims and values of each axis, and of each leaf of an axis with several."""
    if space.window is not None:
        columns = {name: ("point", v) for name, v in point_columns(space).items()}
    else:
        columns = {}
        names = list(space.dims)
        for (name, axis), dim in zip(
            space.axes().items(), space.axis_dims(), strict=True
        ):
            key, positions = space.axis_key(name), np.arange(len(axis))
            values = axis_values(name, axis, key, positions)
            for leaf, value in values.items():
                columns[f"{name}.{leaf}" if leaf else name] = (names[dim], value)
    return {
        name: ((dim, *inner_dims(name, value.ndim - 1)), _text(storable(value)))
        for name, (dim, value) in columns.items()
    }


def variable_names(outputs: Any, space: Space) -> tuple[list[str], str]:
    """The names of the output leaves in order, and that of the points' status."""
    taken = {*space.dims, *axis_columns(space)}
    status = "status" if "status" not in taken else "sweep.status"
    return free_names(outputs, {*taken, status}), status


def free_names(outputs: Any, taken: set[str]) -> list[str]:
    """The names of the output leaves in order, none of them in `taken`."""
    names = []
    for path, _ in leaves_with_names(outputs):
        name = path or "value"
        while name in taken:
            name = f"result.{name}"
        names.append(name)
        taken = {*taken, name}
    return names


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
    wrong = [name for name in names if "/" in name or name.strip(".") == ""]
    if wrong:
        raise ValueError(
            message(
                function,
                f"`{wrong[0]}` cannot be the name of an array in a file.",
                "Rename the axis or the output: such names have no slash and are not "
                "made of dots alone.",
            )
        )
