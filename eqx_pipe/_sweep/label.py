"""A sweep's result with names on it: as an xarray dataset, as a pandas data frame."""

import datetime
import importlib.metadata
import platform
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .._spaces.space import Space
from .._spaces.table import axis_values, flat_columns, import_pandas, point_columns
from .._tree import leaves_with_names

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
    dims = result.space.dims
    coordinates = coordinate_variables(result.space)
    # 0 is for points that a store does not have yet.
    status = np.where(result.ok, 1, 2).astype(np.int8).reshape(tuple(dims.values()))
    name = "status" if "status" not in {*dims, *coordinates} else "sweep.status"
    coordinates[name] = (tuple(dims), status)
    taken = {*dims, *coordinates}
    variables = {}
    for name, leaf in output_columns(result.values, taken).items():
        value = leaf.reshape((*dims.values(), *leaf.shape[1:]))
        variables[name] = ((*dims, *inner_dims(name, leaf.ndim - 1)), value)
    return xarray.Dataset(variables, coordinates, attributes(result))


def frame(result: SweepResult) -> Any:
    """The result as a `pandas.DataFrame`."""
    pandas = import_pandas("SweepResult.to_pandas")
    columns: dict[str, np.ndarray] = {}
    for name, value in point_columns(result.space).items():
        columns |= flat_columns(name, storable(value))
    outputs = output_columns(result.values, {*columns, *result.space.axes()})
    for name, value in outputs.items():
        columns |= flat_columns(name, value)
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
            values = axis_values(axis, space.axis_key(name), np.arange(len(axis)))
            for leaf, value in values.items():
                columns[f"{name}.{leaf}" if leaf else name] = (names[dim], value)
    return {
        name: ((dim, *inner_dims(name, value.ndim - 1)), storable(value))
        for name, (dim, value) in columns.items()
    }


def output_columns(values: Any, taken: set[str]) -> dict[str, np.ndarray]:
    """The output leaves by name, none of them in `taken`."""
    columns = {}
    for path, leaf in leaves_with_names(values):
        name = path or "value"
        columns[f"result.{name}" if name in taken else name] = storable(leaf)
    return columns


def inner_dims(name: str, count: int) -> tuple[str, ...]:
    """The names of the dims of one value of a variable."""
    return tuple(f"{name}.{k}" for k in range(count))


def storable(leaf: Any) -> np.ndarray:
    """An array of a dtype that xarray, NetCDF and pandas know."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    if array.dtype.kind in "biufcU":
        return array
    exact = jnp.issubdtype(array.dtype, jnp.integer)
    return array.astype(np.int8 if exact else np.float32)


def attributes(result: SweepResult) -> dict[str, Any]:
    """What made a result, as plain text and numbers."""
    made = datetime.datetime.fromtimestamp(result.started, datetime.UTC)
    return {
        "space": repr(result.space),
        "mode": result.space.mode,
        "points": result.space.size,
        "batch_size": result.batch_size,
        "devices": result.num_devices,
        "platform": jax.default_backend(),
        "started": made.isoformat(timespec="seconds"),
        "seconds": round(result.seconds, 6),
        "eqx_pipe": importlib.metadata.version("eqx_pipe"),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
