"""The names of variables, dims and coordinates, and their values in files.

All formats share them, and they determine the layout of a store. The dims of outputs
may be named by the user (`output_coords`), together with their coordinates.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from .._check import check_distinct
from .._errors import describe_value, nearest, type_error, value_error
from .._jaxprs import digest, text_of
from .._reduce import ReducerTree
from .._spaces import POINT, Geometry, Space, raw_shape
from .._store import LONGEST, StoredArray, is_name
from .._tree import as_data, leaves_with_names
from .._types import PyTree

OutputCoords: TypeAlias = Mapping[
    str, Mapping[str, Sequence[int | float | str] | Array | np.ndarray | None]
]
"""The dims of one value of each output, in order, with coordinates; keyed by path."""


NamedDims: TypeAlias = dict[str, dict[str, np.ndarray | None]]
"""The same after checks: the dims of outputs that have names, with coordinates."""

Coordinates: TypeAlias = dict[str, tuple[Sequence[str], np.ndarray, Mapping[str, Any]]]
"""The dims, values and attributes of coordinates, by name."""


def as_output_coords(function: str, output_coords: OutputCoords) -> NamedDims:
    """Return `output_coords` after all checks that need no outputs."""
    named: NamedDims = {}
    shared: dict[str, np.ndarray] = {}
    for path, dims in _as_dict(function, output_coords).items():
        named[path] = {}
        for dim, values in _as_dict(function, dims).items():
            coords = named[path][dim] = _as_coords(function, path, dim, values)
            if coords is None or np.array_equal(shared.setdefault(dim, coords), coords):
                continue
            raise value_error(
                function,
                f"`output_coords[{path!r}]` has other values of {dim!r} than another "
                "output.",
                "Outputs that share a dim share its coordinates: rename one of the "
                "dims.",
            )
    # A dim without coordinates may get them from another output.
    return {path: {dim: shared.get(dim) for dim in named[path]} for path in named}


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


def coords_of(named: NamedDims) -> dict[str, np.ndarray]:
    """Return the coordinates of the dims that have coordinates."""
    shared: dict[str, np.ndarray] = {}
    for dims in named.values():
        for dim, coords in dims.items():
            if coords is not None:
                shared.setdefault(dim, coords)
    return shared


def dims_of(named: NamedDims) -> set[str]:
    """Return the names of all named dims of outputs."""
    return {dim for dims in named.values() for dim in dims}


def coords_texts(named: NamedDims) -> dict[str, str]:
    """Return a text that identifies the dims of each output."""

    def text(coords: np.ndarray | None) -> str:
        if coords is None:
            return "no values"
        first = coords[:3].tolist()
        return f"{len(coords)} values, {first}... #{digest(text_of(coords))[:8]}"

    return {
        path: "; ".join(f"{dim}: {text(coords)}" for dim, coords in dims.items())
        for path, dims in named.items()
    }


def check_output_coords(
    named: NamedDims,
    shapes: Mapping[str, tuple[int, ...]],
    taken: set[str],
    function: str = "sweep",
) -> None:
    """Raise a `ValueError` unless the names fit outputs of these shapes.

    `taken` are the names of the space, and `function` is the public function.
    """

    def misfit(path: str, wrong: str, cure: str) -> ValueError:
        wrong = f"`output_coords[{path!r}]` {wrong}."
        return value_error(function, wrong, f"{cure}.")

    lengths: dict[str, int] = {}
    for path, dims in named.items():
        if path not in shapes:
            arrays = [name for name, shape in shapes.items() if shape]
            wrong = f"`output_coords` names {path!r}."
            raise value_error(function, wrong, nearest(path, arrays))
        sizes = [None if coords is None else len(coords) for coords in dims.values()]
        shape = shapes[path]
        if len(sizes) != len(shape) or any(
            size not in (None, length)
            for size, length in zip(sizes, shape, strict=True)
        ):
            wrong = f"has dims of the sizes {sizes}, and the output the shape {shape}"
            cure = "Name all dims in order, each with a value for each position or None"
            raise misfit(path, wrong, cure)
        for dim, length in zip(dims, shape, strict=True):
            other = lengths.setdefault(dim, length)
            if dim in taken:
                wrong = f"has the dim {dim!r}, but the space has this name too"
                raise misfit(path, wrong, "Rename the dim of the output")
            if other != length:
                wrong = f"has a dim {dim!r} of {length}, and another output of {other}"
                raise misfit(path, wrong, "Rename one of the dims")


def reduced_coords(
    reducers: ReducerTree, results: PyTree, named: NamedDims, taken: set[str]
) -> NamedDims:
    """Return the names of the dims of reductions, by their paths.

    `named` names dims of outputs, which their reductions keep. The dims that a reducer
    adds lead. Their names get a prefix if they are `taken`, or are those of other
    coordinates.
    """
    reduced: NamedDims = {}
    taken = taken | dims_of(named)
    added: dict[str, np.ndarray | None] = {}
    for reducer_path, reducer, part in reducers.parts(results):
        for leaf_path, leaf in leaves_with_names(part):
            path = ".".join(filter(None, (reducer_path, leaf_path))) or "value"
            leading, output = reducer.dims_at(leaf_path, shape := _shape_of(leaf))
            kept = {} if output is None else named.get(output or "value", {})
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
            if dims or kept:
                reduced[path] = {**dims, **kept}
    return reduced


def names_of(
    outputs: PyTree, space: Space, named: NamedDims
) -> tuple[dict[str, tuple[str, ...]], str]:
    """Return the names of variables in the dataset of a space, all distinct.

    They are the outputs, in order, with the dims of one value, and the status of
    points. `outputs` are the shapes and dtypes of one output. Raises a `ValueError` if
    the `named` dims do not fit them, or if two have one path.
    """
    _, taken = _coordinate_dims(space.geometry)
    if named:
        check_output_coords(named, shapes_of(outputs), taken)
    taken |= dims_of(named)
    (status,) = taken.free(["status"], "sweep.")
    return output_dims(outputs, named, taken), status


def coordinates_of(space: Space, named: NamedDims) -> Coordinates:
    """Return dims, values and attributes of each axis, or leaf of its values.

    The coordinates of dims of outputs come last.
    """
    geometry, (inner, _) = space.geometry, _coordinate_dims(space.geometry)
    axes: Coordinates = {}
    for name, dim, value in _columns(geometry):
        # A pytree of values has several columns, named below their axis.
        owners = [x for x in geometry.axes if name == x or name.startswith(f"{x}.")]
        attrs = geometry.axes[max(owners, key=len)].attrs
        axes[name] = (dim, *inner[name]), as_text(storable(value)), attrs
    return axes | dim_variables(coords_of(named))


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


def _shape_of(leaf: object) -> tuple[int, ...]:
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
    outputs: PyTree, named: NamedDims, taken: TakenNames
) -> dict[str, tuple[str, ...]]:
    """Return the dims of each output by its name, which is then taken."""
    dims = {}
    for path, shape in shapes_of(outputs).items():
        unnamed = () if path in named else inner_dims(path, len(shape))
        name, *inner = taken.free([path, *unnamed])
        dims[name] = tuple(named[path]) if path in named else tuple(inner)
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
    counts = {name: len(shape) for name, shape in shapes.items()}.items()
    dims = {name: tuple(taken.free(inner_dims(name, n))) for name, n in counts}
    return dims, taken


def dim_variables(coords: Mapping[str, np.ndarray]) -> Coordinates:
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


def storable(leaf: object) -> np.ndarray:
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
