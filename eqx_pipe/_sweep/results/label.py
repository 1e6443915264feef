"""Names in the results of a sweep: variables, dims and coordinates.

Datasets, frames and stores use the same names, which determine the layout of a store.
"""

import dataclasses
import functools
import importlib.metadata
import itertools
import platform
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..._check import check_distinct
from ..._errors import value_error
from ..._spaces import (
    POINT,
    Axis,
    Geometry,
    Space,
    axis_columns,
    axis_values,
    point_columns,
    raw_shape,
)
from ..._tree import as_data, leaves_with_names
from ..._types import PyTree
from ..store import LONGEST, Chunks, StoredArray, StoreLayout, Variable, is_name
from .output_coords import KnownCoords, check_output_coords, coords_of, dims_of
from .schema import CellValues, schema_of


@dataclasses.dataclass(frozen=True)
class Names:
    """The names in a dataset, computed once for each.

    `geometry` is the geometry of the space. `outputs` has the variables of the output
    leaves, in order, with the dims of one value; `status` is the name of the variable
    with the status of points. `inner` has the dims of one value of each coordinate, and
    `coords` the coordinates of the dims of outputs.
    """

    geometry: Geometry
    outputs: dict[str, tuple[str, ...]]
    status: str
    inner: dict[str, tuple[str, ...]]
    coords: dict[str, np.ndarray]


def names_of(outputs: PyTree, space: Space, known: KnownCoords) -> Names:
    """Return the names in the dataset of a space, all distinct.

    `outputs` have a leading axis over the points, or are the structs of one output.
    Raises a `ValueError` if the `known` dims do not fit them, or if two have one path.
    """
    geometry = space.geometry
    inner = _coordinate_dims(geometry)
    taken = _names_in(geometry, inner)
    counts: Shapes = ()
    if isinstance(outputs, CellValues):
        outputs, counts = outputs.values, shapes_of(outputs.cells)
    shapes = shapes_of(outputs)
    if known:
        check_output_coords(known, dict(shapes), taken)
    (status,) = free_names(["status"], taken | dims_of(known), "sweep.")
    dims = output_dims(shapes, known, {*taken, status})
    # The numbers of points in cells come last, in case that an output has their name.
    dims |= output_dims(counts, {}, {*taken, status, *dims, *_all(dims)})
    return Names(geometry, dims, status, inner, coords_of(known))


def names_in(space: Space) -> set[str]:
    """Return the names of the dims and coordinates of a space, and of their dims."""
    geometry = space.geometry
    return _names_in(geometry, _coordinate_dims(geometry))


def _names_in(geometry: Geometry, inner: Mapping[str, tuple[str, ...]]) -> set[str]:
    return {*geometry.dims, *inner, *_all(inner)}


def _all(dims: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    return itertools.chain(*dims.values())


Shapes: TypeAlias = Sequence[tuple[str, tuple[int, ...]]]
"""The path of each output, a bare one as `value`, and the shape of one value."""


def shapes_of(outputs: PyTree) -> Shapes:
    """Return the shapes of outputs along a leading axis, or of structs of one."""
    if isinstance(outputs, CellValues):
        return [*shapes_of(outputs.values), *shapes_of(outputs.cells)]
    return [
        (path or "value", _value_shape(x)) for path, x in leaves_with_names(outputs)
    ]


def output_dims(
    shapes: Shapes, known: KnownCoords, taken: set[str]
) -> dict[str, tuple[str, ...]]:
    """Return the dims of outputs by their names; raise if two have the same path."""
    # Reducers may return what reads alike for outputs that do not.
    check_distinct("sweep", "outputs", [path for path, _ in shapes])

    def dims(path: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        return () if path in known else inner_dims(path, len(shape))

    names = output_names(shapes, taken | dims_of(known), dims)
    return {
        name: tuple(known[path]) if path in known else inner_dims(name, len(shape))
        for name, (path, shape) in zip(names, shapes, strict=True)
    }


def output_names(
    shapes: Shapes,
    taken: set[str],
    parts: Callable[[str, tuple[int, ...]], Iterable[str]],
) -> list[str]:
    """Return the names of outputs in order, with the prefix `result.` for taken names.

    `parts(path, shape)` returns the names of the dims or columns of an output; they
    begin with its path, and no two leaves share one.
    """
    names = []
    for path, shape in shapes:
        together = free_names([path, *parts(path, shape)], taken, "result.")
        names.append(together[0])
        taken = taken.union(together)
    return names


def free_names(names: Iterable[str], taken: Container[str], prefix: str) -> list[str]:
    """Return the names, all with the prefix if one of them is taken."""
    names = list(names)
    while any(name in taken for name in names):
        names = [prefix + name for name in names]
    return names


def _coordinate_dims(geometry: Geometry) -> dict[str, tuple[str, ...]]:
    """Return the names of the dims of one value of each coordinate, all distinct."""
    shapes = axis_columns(geometry)
    taken = {*geometry.dims, *shapes}
    found = {}
    for name, shape in shapes.items():
        found[name] = tuple(free_names(inner_dims(name, len(shape)), taken, "result."))
        taken |= set(found[name])
    return found


def coordinate_variables(
    space: Space, names: Names
) -> dict[str, tuple[Any, np.ndarray, Any]]:
    """Return dims, values and attributes of each axis, or of each leaf of its values.

    The coordinates of dims of outputs come last.
    """
    geometry = names.geometry
    found = {
        name: (
            (dim, *names.inner[name]),
            as_text(storable(value)),
            _attrs(geometry.axes, name),
        )
        for name, dim, value in _columns(geometry)
    }
    own = {dim: ((dim,), as_text(x), {}) for dim, x in names.coords.items()}
    return {**found, **own}


def _columns(geometry: Geometry) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield name, dim and values of each coordinate; for a part, of its points."""
    if geometry.is_part:
        for name, value in point_columns(geometry).items():
            yield name, POINT, value
        return
    dims = list(geometry.dims)
    axes = zip(geometry.axes.items(), geometry.axis_dims, strict=True)
    for (name, axis), dim in axes:
        positions = np.arange(len(axis))
        for column, value in axis_values(geometry, name, positions):
            yield column, dims[dim], value


def _attrs(axes: Mapping[str, Axis], column: str) -> dict[str, str]:
    """Return the attributes of the axis that a column belongs to."""
    owners = [n for n in axes if column == n or column.startswith(f"{n}.")]
    return axes[max(owners, key=len)].attrs


def _value_shape(leaf: Any) -> tuple[int, ...]:
    """Return the shape of one value as it is stored: PRNG keys are their raw data."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return raw_shape(leaf)
    return raw_shape(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype))


def inner_dims(name: str, count: int) -> tuple[str, ...]:
    """Return the names of the dims of one value of a variable."""
    return tuple(f"{name}.{k}" for k in range(count))


def storable(leaf: Any) -> np.ndarray:
    """Return an array of a dtype that xarray, NetCDF and pandas support."""
    leaf = leaf[...] if isinstance(leaf, StoredArray) else leaf
    array = np.asarray(as_data(leaf))
    if array.dtype.kind in "biufcUO" and array.dtype != np.float16:
        return array
    exact = jnp.issubdtype(array.dtype, jnp.integer)
    # Files do not support small dtypes such as int4, float16 and bfloat16.
    return array.astype(np.int8 if exact else np.float32)


def as_text(array: np.ndarray) -> np.ndarray:
    """Return texts as objects: Zarr 3 has no stable format for fixed-length texts."""
    return array.astype(object) if array.dtype.kind == "U" else array


def attributes(space: Space, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a dataset: provenance and versions."""
    texts = {"space": repr(space), "space_mode": space.mode, "points": space.size}
    return {**texts, **versions(), **made}


def versions() -> dict[str, str]:
    """Return the versions of the packages that a sweep uses."""
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
    """Raise a `ValueError` for a name that an array in a file cannot have."""
    wrong = next((name for name in names if not is_name(name)), None)
    if wrong is not None:
        raise value_error(
            function,
            f"`{ascii(wrong)[1:-1]}` cannot be the name of an array in a file.",
            "Rename the axis or the output: such names have no slash, backslash "
            f"or control character, at most {LONGEST} bytes, no dot in front, and "
            "are not `zarr.json`.",
        )


def layout_of(
    function: str,
    outputs: PyTree,
    row: Sequence[Any],
    space: Space,
    known: KnownCoords,
    chunks: Chunks,
    made: Mapping[str, Any],
    record: Mapping[str, Any],
) -> StoreLayout:
    """Return the layout of a store of outputs, whose leaves have `row` at a point.

    `known` are the dims of outputs, `made` is their provenance, and `record` identifies
    the sweep. Raises a `ValueError` for names that a file cannot have.
    """
    names = names_of(outputs, space, known)
    variables = []
    for (name, dims), leaf in zip(names.outputs.items(), row, strict=True):
        kept = storable(np.empty((0, *leaf.shape), leaf.dtype))
        variables.append(Variable(name, kept.dtype, kept.shape[1:], dims))
    coordinates = coordinate_variables(space, names)
    inner = [dim for dims in names.outputs.values() for dim in dims]
    check_names(function, [*space.dims, *coordinates, *names.outputs, *inner])
    return StoreLayout(
        dims=tuple(space.dims),
        chunks=chunks,
        coordinates=coordinates,
        variables=variables,
        status=names.status,
        attributes=attributes(space, made),
        record={
            **record,
            "schema": schema_of(outputs, list(names.outputs), space, known),
        },
    )
