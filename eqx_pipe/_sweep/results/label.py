"""Results with names: the variables, dims and coordinates of datasets and stores.

Datasets of xarray, frames of pandas, plots and stores use the same names, which
determine the layout of a store.
"""

import contextlib
import dataclasses
import functools as ft
import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int8, Int64

from ..._check import check_distinct
from ..._errors import describe_value, nearest, type_error, value_error
from ..._jaxprs import digest, text_of
from ..._reduce import Extreme, ReducerTree
from ..._spaces import (
    POINT,
    Axis,
    Geometry,
    Space,
    entry_names,
    flat_columns,
    raw_shape,
)
from ..._tree import as_data, leaves_with_names, struct_of
from ..._types import PyTree
from ..store import LONGEST, StoredArray, is_name

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset
else:  # imported where they are used
    DataFrame = Dataset = Any

OutputCoords: TypeAlias = Mapping[
    str, Mapping[str, Sequence[int | float | str] | Array | np.ndarray | None]
]
"""The dims of one value of each output, in order, with coordinates; keyed by path."""

KnownCoords: TypeAlias = dict[str, dict[str, np.ndarray | None]]
"""The same after checks, with NumPy arrays."""

ERRORS = "errors"
"""The attribute of a dataset with the error texts."""

_SHOWN = 3
"""The number of coordinates in the text that identifies the dims of an output."""


class CellPoints(eqx.Module):
    """The number of points in the reduction of each cell.

    `points` is the number of computed points, fewer than the cell has if a reducer
    stopped it; `failed` is the number of these that failed and are left out.
    """

    points: Int64[np.ndarray, " cells"]
    failed: Int64[np.ndarray, " cells"]


class CellValues(eqx.Module):
    """The outputs of a sweep that reduces some dims.

    They are the reductions of cells, and as `cells` their numbers of points.
    """

    values: PyTree
    cells: PyTree


def as_output_coords(function: str, output_coords: OutputCoords) -> KnownCoords:
    """Return `output_coords` after all checks that need no outputs."""
    known = {
        path: {
            dim: _as_coords(function, path, dim, values)
            for dim, values in _as_dict(function, dims).items()
        }
        for path, dims in _as_dict(function, output_coords).items()
    }
    shared = coords_of(known)
    for path, dims in known.items():
        for dim, coords in dims.items():
            if coords is not None and not np.array_equal(coords, shared[dim]):
                raise value_error(
                    function,
                    f"`output_coords[{path!r}]` has other values of {dim!r} than "
                    "another output.",
                    "Outputs that share a dim share its coordinates: rename one of "
                    "the dims.",
                )
    # A dim without coordinates may get them from another output.
    return {path: {dim: shared.get(dim) for dim in known[path]} for path in known}


def _as_dict(function: str, value: object) -> Mapping[str, Any]:
    if isinstance(value, Mapping) and all(isinstance(x, str) and x for x in value):
        return value
    raise type_error(
        function,
        f"`output_coords` has {describe_value(value)}.",
        "Give a dict from outputs to dicts from the names of their dims to "
        'coordinates: `{"curve": {"step": steps}}`.',
    )


def _as_coords(function: str, path: str, dim: str, values: object) -> np.ndarray | None:
    if values is None:
        return None
    coords = np.empty(()) if isinstance(values, Tracer) else np.asarray(values)
    if coords.ndim != 1 or coords.dtype.kind not in "biufcU":
        raise type_error(
            function,
            f"`output_coords[{path!r}][{dim!r}]` is {describe_value(values)}.",
            "Give a list or an array with a number or text for each position on the "
            "dim, or None for a name alone.",
        )
    return coords


def coords_of(known: KnownCoords) -> dict[str, np.ndarray]:
    """Return the coordinates of the dims that have coordinates."""
    shared: dict[str, np.ndarray] = {}
    for dims in known.values():
        for dim, coords in dims.items():
            if coords is not None:
                shared.setdefault(dim, coords)
    return shared


def dims_of(known: KnownCoords) -> set[str]:
    """Return the names of all named dims of outputs."""
    return {dim for dims in known.values() for dim in dims}


def coords_texts(known: KnownCoords) -> dict[str, str]:
    """Return a text that identifies the dims of each output."""
    return {
        path: "; ".join(
            f"{dim}: {_coords_text(coords)}" for dim, coords in dims.items()
        )
        for path, dims in known.items()
    }


def _coords_text(coords: np.ndarray | None) -> str:
    if coords is None:
        return "no values"
    first = ", ".join(map(repr, coords[:_SHOWN].tolist()))
    more = ", ..." if len(coords) > _SHOWN else ""
    return f"{first}{more} ({len(coords)}) #{digest(text_of(coords))[:8]}"


def check_output_coords(
    known: KnownCoords, shapes: Mapping[str, tuple[int, ...]], taken: set[str]
) -> None:
    """Raise a `ValueError` unless the names fit outputs of these shapes.

    `taken` are the names of the space.
    """
    lengths: dict[str, int] = {}
    for path, dims in known.items():
        if path not in shapes:
            arrays = [name for name, shape in shapes.items() if shape]
            wrong = f"`output_coords` names {path!r}."
            raise value_error("sweep", wrong, nearest(path, arrays))
        shape = shapes[path]
        if len(dims) != len(shape):
            names = ", ".join(dims)
            raise _misfit(
                path,
                f"names {len(dims)} dims ({names}), but the output has {len(shape)}, "
                f"with the shape {shape}",
                "Name all in order; None in the place of values gives only a name",
            )
        for (dim, coords), length in zip(dims.items(), shape, strict=True):
            other = lengths.setdefault(dim, length)
            if dim in taken:
                wrong = f"has the dim {dim!r}, but the space has this name too"
                raise _misfit(path, wrong, "Rename the dim of the output")
            if coords is not None and len(coords) != length:
                wrong = (
                    f"has {len(coords)} values of {dim!r}, which has the size {length}"
                )
                raise _misfit(path, wrong, "Give a value for each position")
            if other != length:
                wrong = f"has a dim {dim!r} of {length}, and another output of {other}"
                raise _misfit(path, wrong, "Rename one of the dims")


def _misfit(path: str, wrong: str, cure: str) -> ValueError:
    return value_error("sweep", f"`output_coords[{path!r}]` {wrong}.", f"{cure}.")


def check_reduced_coords(
    known: KnownCoords, outputs: PyTree, results: Callable[[], PyTree], taken: set[str]
) -> None:
    """Raise a `ValueError` unless the names fit outputs that are reduced.

    They may also name dims of `results()`, the reductions of no points.
    """
    shapes = shapes_of(outputs)
    if any(len(dims) != len(shapes.get(path, ())) for path, dims in known.items()):
        # The `finish` of a user's reducer may need points.
        with contextlib.suppress(Exception):
            for path, shape in shapes_of(results()).items():
                if path not in shapes or len(shape) == len(known.get(path, ())):
                    shapes[path] = shape
    check_output_coords(known, shapes, taken)


def reduced_coords(
    reducers: ReducerTree, results: PyTree, known: KnownCoords, taken: set[str]
) -> KnownCoords:
    """Return the names of the dims of reductions, by their paths.

    `known` names dims of outputs, which their reductions keep, or of `results`. The
    dims that a reducer adds lead. Their names get a prefix if they are `taken`, or are
    those of other coordinates.
    """
    named: KnownCoords = {}
    taken = taken | dims_of(known)
    added: dict[str, np.ndarray | None] = {}
    for reducer_path, reducer, part in reducers.parts(results):
        for leaf_path, leaf in leaves_with_names(part):
            path = ".".join(filter(None, (reducer_path, leaf_path))) or "value"
            shape = _shape_of(leaf)
            leading, output = reducer.dims_at(leaf_path, shape)
            kept = {} if output is None else known.get(output or "value", {})
            if leading and not kept:
                rest = range(len(leading), len(shape))
                leading = {**leading, **{f"{path}.{k}": None for k in rest}}
            dims: dict[str, np.ndarray | None] = {}
            for dim, coords in leading.items():
                while dim in taken or not np.array_equal(
                    added.get(dim, coords), coords
                ):
                    dim = f"{reducer_path or 'result'}.{dim}"
                added[dim] = dims[dim] = coords
            choices = [{**dims, **kept}, known.get(path, {})]
            for choice in choices if kept else reversed(choices):
                if choice and _fits(choice, shape):
                    named.setdefault(path, choice)
    return named


def _fits(dims: Mapping[str, np.ndarray | None], shape: tuple[int, ...]) -> bool:
    """Return whether an output of this shape has these dims."""
    return len(dims) == len(shape) and all(
        coords is None or len(coords) == length
        for coords, length in zip(dims.values(), shape, strict=True)
    )


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

    def coordinates(self) -> dict[str, tuple[Any, np.ndarray, Any]]:
        """Return dims, values and attributes of each axis, or leaf of its values.

        The coordinates of dims of outputs come last.
        """
        variables = {
            name: (
                (dim, *self.inner[name]),
                as_text(storable(value)),
                _attrs(self.geometry.axes, name),
            )
            for name, dim, value in _columns(self.geometry)
        }
        return variables | dim_variables(self.coords)


def names_of(outputs: PyTree, space: Space, known: KnownCoords) -> Names:
    """Return the names in the dataset of a space, all distinct.

    `outputs` are the shapes and dtypes of one output. Raises a `ValueError` if the
    `known` dims do not fit them, or if two have one path.
    """
    geometry = space.geometry
    inner, taken = _coordinate_dims(geometry)
    values, *counts = _parts(outputs)
    if known:
        check_output_coords(known, shapes_of(values), taken)
    taken |= dims_of(known)
    (status,) = taken.free(["status"], "sweep.")
    dims = output_dims(values, known, taken)
    for part in counts:
        dims |= output_dims(part, {}, taken)
    return Names(geometry, dims, status, inner, coords_of(known))


def _parts(outputs: PyTree) -> list[PyTree]:
    """Return the outputs, and the numbers of points in cells, if there are any.

    These come last, in case that an output has their name.
    """
    if isinstance(outputs, CellValues):
        return [outputs.values, outputs.cells]
    return [outputs]


def names_in(space: Space) -> set[str]:
    """Return the names of the dims and coordinates of a space, and of their dims."""
    return _coordinate_dims(space.geometry)[1]


def shapes_of(outputs: PyTree) -> dict[str, tuple[int, ...]]:
    """Return the shape of each output, given arrays or structs, by its path.

    A bare output is called `value`. Raises a `ValueError` if two have the same path,
    as reductions may that are called like a part of others.
    """
    leaves = [(path or "value", leaf) for path, leaf in leaves_with_names(outputs)]
    check_distinct("sweep", "outputs", [path for path, _ in leaves])
    return {path: _shape_of(leaf) for path, leaf in leaves}


def _shape_of(leaf: Any) -> tuple[int, ...]:
    """Return the shape of a value as it is stored: PRNG keys are their raw data."""
    is_struct = isinstance(leaf, jax.ShapeDtypeStruct)
    return raw_shape(leaf) if is_struct else np.shape(as_data(leaf))


class TakenNames(set[str]):
    """The names that are in use."""

    def free(self, names: Iterable[str], prefix: str = "result.") -> list[str]:
        """Return names, all with the prefix if one of them is taken, and take them."""
        names = list(names)
        while not self.isdisjoint(names):
            names = [prefix + name for name in names]
        self.update(names)
        return names


def output_dims(
    outputs: PyTree, known: KnownCoords, taken: TakenNames
) -> dict[str, tuple[str, ...]]:
    """Return the dims of each output by its name, which is then taken."""
    dims = {}
    for path, shape in shapes_of(outputs).items():
        unnamed = () if path in known else inner_dims(path, len(shape))
        name, *inner = taken.free([path, *unnamed])
        dims[name] = tuple(known[path]) if path in known else tuple(inner)
    return dims


def inner_dims(name: str, count: int) -> tuple[str, ...]:
    """Return the names of the dims of one value of a variable."""
    return tuple(f"{name}.{k}" for k in range(count))


def _coordinate_dims(
    geometry: Geometry,
) -> tuple[dict[str, tuple[str, ...]], TakenNames]:
    """Return the names of the dims of one value of each coordinate, and all names."""
    shapes = geometry.column_shapes()
    taken = TakenNames({*geometry.dims, *shapes})
    dims = {
        name: tuple(taken.free(inner_dims(name, len(shape))))
        for name, shape in shapes.items()
    }
    return dims, taken


def dim_variables(
    coords: Mapping[str, np.ndarray],
) -> dict[str, tuple[Any, np.ndarray, Any]]:
    """Return dims, values and attributes of the coordinates of dims of outputs."""
    return {dim: ((dim,), as_text(values), {}) for dim, values in coords.items()}


def _columns(geometry: Geometry) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield name, dim and values of each coordinate; for a part, of its points."""
    if geometry.is_part:
        for name, value in geometry.columns().items():
            yield name, POINT, value
        return
    dims = list(geometry.dims)
    axes = zip(geometry.axes.items(), geometry.axis_dims, strict=True)
    for (name, axis), dim in axes:
        positions = np.arange(len(axis))
        for column, value in geometry.axis_values(name, positions):
            yield column, dims[dim], value


def _attrs(axes: Mapping[str, Axis], column: str) -> dict[str, str]:
    """Return the attributes of the axis that a column belongs to."""
    owners = [n for n in axes if column == n or column.startswith(f"{n}.")]
    return axes[max(owners, key=len)].attrs


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


@ft.cache  # it reads and parses a file
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


def dataset_of(
    outputs: PyTree,
    space: Space,
    known: KnownCoords,
    status: Int8[np.ndarray, " points"],
    attrs: Mapping[str, Any],
) -> Dataset:
    """Return a dataset over the dims of a space; see `SweepResult.to_xarray`."""
    from xarray import Dataset

    leaves = jtu.tree_leaves(outputs)
    structs = jtu.tree_map(ft.partial(struct_of, drop=1), outputs)
    names, dims = names_of(structs, space, known), space.dims
    lengths = tuple(dims.values())
    variables = {}
    for (name, inner), leaf in zip(names.outputs.items(), leaves, strict=True):
        if isinstance(leaf, StoredArray):
            variables[name] = _lazy((*dims, *inner), leaf.grid(stored=True))
        else:
            values = storable(leaf)
            values = values.reshape((*lengths, *values.shape[1:]))
            variables[name] = (*dims, *inner), values
    coordinates = names.coordinates()
    coordinates[names.status] = tuple(dims), status.reshape(lengths), {}
    return Dataset(variables, coordinates, attrs)


def _lazy(dims: tuple[str, ...], leaf: StoredArray) -> Any:
    """Return a variable of xarray that reads and checks chunks when it is indexed."""
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


def reduction_dataset(
    results: PyTree, known: KnownCoords, attrs: Mapping[str, Any]
) -> Dataset:
    """Return a dataset of a reduction of all points, which has no dims of the space."""
    from xarray import Dataset

    def with_index(x: Any) -> Any:
        is_empty = isinstance(x, Extreme) and x.index is None
        return Extreme(-1, x.value) if is_empty else x

    results = jtu.tree_map(with_index, results, is_leaf=lambda x: type(x) is Extreme)
    names = output_dims(results, known, TakenNames(dims_of(known))).items()
    leaves = jtu.tree_leaves(results)
    variables = {
        name: (dims, as_text(storable(leaf)))
        for (name, dims), leaf in zip(names, leaves, strict=True)
    }
    return Dataset(variables, dim_variables(coords_of(known)), attrs)


def frame_of(
    outputs: PyTree,
    space: Space,
    status: Int8[np.ndarray, " points"],
    errors: Mapping[int, str],
) -> DataFrame:
    """Return a frame with a row for each point; see `SweepResult.to_pandas`."""
    from pandas import DataFrame

    columns = space.geometry.entry_columns(storable)
    taken = TakenNames({*columns, *space.axes()})
    (column,) = taken.free(["status"], "sweep.")
    for part in _parts(outputs):
        shapes = shapes_of(jtu.tree_map(ft.partial(struct_of, drop=1), part))
        for (path, shape), leaf in zip(
            shapes.items(), jtu.tree_leaves(part), strict=True
        ):
            name = taken.free([path, *entry_names(path, shape)])[0]
            columns |= flat_columns(name, storable(leaf))
    columns[column] = status
    if errors:
        texts = [errors.get(i) for i in range(len(status))]
        (column,) = TakenNames(columns).free(["error"], "sweep.")
        columns[column] = np.array(texts, object)
    return DataFrame(columns)


def reduction_frame(data: Dataset) -> DataFrame:
    """Return a frame with a row for each position on the dims of a reduction."""
    from pandas import DataFrame, concat

    groups: dict[tuple[Any, ...], list[Any]] = {}
    for name, variable in data.data_vars.items():
        groups.setdefault(variable.dims, []).append(name)
    numbers = {name: data[name].item() for name in groups.pop((), [])}
    frames = [data[names].to_dataframe().reset_index() for names in groups.values()]
    frame = concat(frames, ignore_index=True) if frames else DataFrame(index=[0])
    return frame.assign(**numbers)
