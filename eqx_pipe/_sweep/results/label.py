"""A sweep's result with names on it: as an xarray dataset, as a pandas data frame."""

import dataclasses
import functools
import importlib.metadata
import platform
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int8

from ..._errors import optional, value_error
from ..._spaces import (
    Axis,
    Geometry,
    Space,
    axis_columns,
    axis_key,
    axis_values,
    entry_columns,
    entry_names,
    flat_columns,
    point_columns,
    raw_shape,
)
from ..._tree import as_data
from ..._types import Key, PyTree
from ..store import LONGEST, StoredArray, is_name
from .cells import named_leaves
from .output_coords import KnownCoords, check_output_coords, coords_of, dims_of
from .schema import SCHEMA, schema_of

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset
else:  # imported where they are used
    DataFrame = Dataset = Any


def dataset(
    values: PyTree,
    space: Space,
    status: Int8[np.ndarray, " points"],
    made: Mapping[str, Any],
    known: KnownCoords,
) -> Dataset:
    """Values at the points of a space, and what made them, as an `xarray.Dataset`."""
    xarray = optional("SweepResult.to_xarray", "xarray")
    names = names_of(values, space, known)
    dims, coordinates = names.geometry.dims, coordinate_variables(space, names)
    by_dims = status.reshape(tuple(dims.values()))
    coordinates[names.status] = (tuple(dims), by_dims, {})
    variables = {}
    for (name, own), leaf in zip(
        names.outputs.items(), jtu.tree_leaves(values), strict=True
    ):
        if isinstance(leaf, StoredArray):
            variables[name] = _lazy((*dims, *own), leaf.grid())
            continue
        leaf = storable(leaf)
        value = leaf.reshape((*dims.values(), *leaf.shape[1:]))
        variables[name] = ((*dims, *own), value)
    attrs = attributes(values, space, names, made)
    return xarray.Dataset(variables, coordinates, attrs)


def _lazy(dims: tuple[str, ...], leaf: StoredArray) -> Any:
    """Return a variable of xarray that reads a store, chunks checked, when indexed."""
    from xarray import Variable
    from xarray.backends import BackendArray
    from xarray.core import indexing

    class Lazy(BackendArray):
        shape, dtype = leaf.shape, leaf.dtype

        def __getitem__(self, key: Any) -> Any:
            basic = indexing.IndexingSupport.BASIC
            read = leaf.__getitem__
            return indexing.explicit_indexing_adapter(key, leaf.shape, basic, read)

    return Variable(dims, indexing.LazilyIndexedArray(Lazy()))


def frame(
    values: PyTree,
    space: Space,
    status: Int8[np.ndarray, " points"],
    errors: Mapping[int, str],
) -> DataFrame:
    """Values at the points of a space as a `pandas.DataFrame`."""
    pandas = optional("SweepResult.to_pandas", "pandas")
    columns = entry_columns(space.geometry, space.key, storable)
    taken = {*columns, *space.axes()}
    column = free_name("status", taken)
    names = free_names(
        values, {*taken, column}, lambda name, _, shape: entry_names(name, shape)
    )
    for name, leaf in zip(names, jtu.tree_leaves(values), strict=True):
        columns |= flat_columns(name, storable(leaf))
    columns[column] = status
    if errors:
        texts = [errors.get(i) for i in range(len(status))]
        columns[free_name("error", columns)] = np.array(texts, object)
    return pandas.DataFrame(columns)


@dataclasses.dataclass(frozen=True)
class Names:
    """What is called how in a dataset, worked out once for each.

    `geometry` is that of the space; `outputs` are the variables of the output leaves,
    in order, with the dims of one value, and `status` is that of the points' status;
    `inner` has for each coordinate the dims of one value, and `coords` are those of
    dims of outputs.
    """

    geometry: Geometry
    outputs: dict[str, tuple[str, ...]]
    status: str
    inner: dict[str, tuple[str, ...]]
    coords: dict[str, np.ndarray]


def names_of(outputs: PyTree, space: Space, known: KnownCoords) -> Names:
    """The names in the dataset of a space; no name is two things.

    `outputs` have a leading axis over the points, or are the structs of one output.
    Raises a `ValueError` if the dims that are `known` are not theirs.
    """
    geometry = space.geometry
    inner = _coordinate_dims(geometry, space.key)
    taken = {*geometry.dims, *inner}.union(*inner.values())
    shapes = [(path or "value", _value_shape(x)) for path, x in named_leaves(outputs)]
    check_output_coords(known, dict(shapes), taken)
    taken |= dims_of(known)
    status = free_name("status", taken)

    def dims(name: str, path: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        return () if path in known else inner_dims(name, len(shape))

    names = free_names(outputs, {*taken, status}, dims)
    own = {
        name: tuple(known[path]) if path in known else inner_dims(name, len(shape))
        for name, (path, shape) in zip(names, shapes, strict=True)
    }
    return Names(geometry, own, status, inner, coords_of(known))


def free_name(name: str, taken: Container[str]) -> str:
    """A name for what a sweep says of points, which is not among those taken."""
    while name in taken:
        name = f"sweep.{name}"
    return name


def coordinate_variables(
    space: Space, names: Names
) -> dict[str, tuple[Any, np.ndarray, Any]]:
    """Dims, values and attributes of each axis, or leaf of an axis with several.

    Those of dims of outputs come last.
    """
    geometry, key = names.geometry, space.key
    if geometry.is_part:
        columns = {
            name: ("point", v) for name, v in point_columns(geometry, key).items()
        }
    else:
        columns = {}
        dims = list(geometry.dims)
        for (name, axis), dim in zip(
            geometry.axes.items(), geometry.axis_dims, strict=True
        ):
            own, positions = axis_key(key, name), np.arange(len(axis))
            for column, value in axis_values(name, axis, own, positions):
                columns[column] = (dims[dim], value)
    found = {
        name: (
            (dim, *names.inner[name]),
            _text(storable(value)),
            _attrs(geometry.axes, name),
        )
        for name, (dim, value) in columns.items()
    }
    own = {dim: ((dim,), _text(x), {}) for dim, x in names.coords.items()}
    return {**found, **own}


def _attrs(axes: Mapping[str, Axis], column: str) -> dict[str, str]:
    """The attributes of the axis that a column is one of, or is."""
    owners = [n for n in axes if column == n or column.startswith(f"{n}.")]
    return axes[max(owners, key=len)].attrs


def _coordinate_dims(geometry: Geometry, key: Key | None) -> dict[str, tuple[str, ...]]:
    """The names of the dims of one value of each coordinate, each name once."""
    shapes = axis_columns(geometry, key)
    taken = {*geometry.dims, *shapes}
    found = {}
    for name, shape in shapes.items():
        dims = inner_dims(name, len(shape))
        while not taken.isdisjoint(dims):
            dims = tuple(f"result.{dim}" for dim in dims)
        found[name] = dims
        taken |= set(dims)
    return found


def free_names(
    outputs: PyTree,
    taken: set[str],
    parts: Callable[[str, str, tuple[int, ...]], Iterable[str]],
) -> list[str]:
    """The names of the output leaves in order, with `result.` before what is taken.

    `parts(name, path, shape)` are the names that come with one, of its dims or its
    columns; they are not in `taken` either, nor shared by two leaves.
    """
    names = []
    for path, leaf in named_leaves(outputs):
        name, shape = path or "value", _value_shape(leaf)
        path = name
        while not taken.isdisjoint(together := {name, *parts(name, path, shape)}):
            name = f"result.{name}"
        names.append(name)
        taken = taken | together
    return names


def _value_shape(leaf: Any) -> tuple[int, ...]:
    """The shape of one value as it is stored: PRNG keys are their raw data."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return raw_shape(leaf)
    return raw_shape(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype))


def inner_dims(name: str, count: int) -> tuple[str, ...]:
    """The names of the dims of one value of a variable."""
    return tuple(f"{name}.{k}" for k in range(count))


def storable(leaf: Any) -> np.ndarray:
    """An array of a dtype that xarray, NetCDF and pandas know."""
    leaf = leaf[...] if isinstance(leaf, StoredArray) else leaf
    array = np.asarray(as_data(leaf))
    if array.dtype.kind in "biufcU" and array.dtype != np.float16:
        return array
    exact = jnp.issubdtype(array.dtype, jnp.integer)
    # Of numbers that files do not know: int4 and the like, float16 and bfloat16.
    return array.astype(np.int8 if exact else np.float32)


def storable_dtype(dtype: Any) -> np.dtype:
    """The dtype in which an array of some dtype is stored."""
    return storable(np.empty(0, dtype)).dtype


def _text(array: np.ndarray) -> np.ndarray:
    """Zarr 3 has no settled format for texts of a fixed length."""
    return array.astype(object) if array.dtype.kind == "U" else array


def attributes(
    outputs: PyTree, space: Space, names: Names, made: Mapping[str, Any]
) -> dict[str, Any]:
    """What `made` a result, and on what, as plain text and numbers."""
    return {
        "space": repr(space),
        "mode": space.mode,
        "points": names.geometry.size,
        **versions(),
        **made,
        SCHEMA: schema_of(outputs, list(names.outputs), names.status, space),
    }


def versions() -> dict[str, str]:
    """What a sweep runs on."""
    return {
        "platform": jax.default_backend(),
        "eqx_pipe": _installed("eqx_pipe"),
        "jax": jax.__version__,
        "equinox": _installed("equinox"),
        "python": platform.python_version(),
    }


@functools.cache  # it reads and parses a file
def _installed(package: str) -> str:
    return importlib.metadata.version(package)


def check_names(function: str, names: Iterable[str]) -> None:
    """Raise a `ValueError` for what cannot be the name of an array in a file."""
    wrong = next((name for name in names if not is_name(name)), None)
    if wrong is not None:
        raise value_error(
            function,
            f"`{ascii(wrong)[1:-1]}` cannot be the name of an array in a file.",
            "Rename the axis or the output: such names have no slash, backslash "
            f"or control character, at most {LONGEST} bytes, no dot in front, and "
            "are not `zarr.json`.",
        )
