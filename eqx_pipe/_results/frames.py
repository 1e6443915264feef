"""Results as datasets of xarray and frames of pandas."""

import functools as ft
from collections.abc import Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int8

from .._reduce import Extreme
from .._spaces import Space, entry_names, flat_columns
from .._store import StoredArray
from .._tree import struct_of
from .._types import DataFrame, Dataset, PyTree
from .names import (
    NamedDims,
    TakenNames,
    as_text,
    coordinates_of,
    coords_of,
    dim_variables,
    dims_of,
    names_of,
    output_dims,
    shapes_of,
    storable,
)


def dataset_of(
    values: PyTree,
    space: Space,
    named: NamedDims,
    status: Int8[np.ndarray, " points"],
    attrs: Mapping[str, Any],
) -> Dataset:
    """Return the dataset of values at the points of a space."""
    from xarray import Dataset

    structs = jtu.tree_map(ft.partial(struct_of, drop=1), values)
    (outputs, name_of_status), dims = names_of(structs, space, named), space.dims
    lengths, leaves = tuple(dims.values()), jtu.tree_leaves(values)
    variables = {}
    for (name, inner), leaf in zip(outputs.items(), leaves, strict=True):
        if isinstance(leaf, StoredArray):
            variables[name] = _lazy((*dims, *inner), leaf.grid(stored=True))
        else:
            array = storable(leaf)
            variables[name] = (*dims, *inner), array.reshape(lengths + array.shape[1:])
    coordinates = coordinates_of(space, named)
    coordinates[name_of_status] = tuple(dims), status.reshape(lengths), {}
    return Dataset(variables, coordinates, attrs)


def frame_of(
    values: PyTree,
    space: Space,
    status: Int8[np.ndarray, " points"],
    errors: Mapping[int, str],
) -> DataFrame:
    """Return the frame of values at the points of a space, a row for each."""
    from pandas import DataFrame

    columns = space.geometry.entry_columns(storable)
    taken = TakenNames({*columns, *space.axes()})
    (column,) = taken.free(["status"], "sweep.")
    structs = jtu.tree_map(ft.partial(struct_of, drop=1), values)
    shapes, leaves = shapes_of(structs).items(), jtu.tree_leaves(values)
    for (path, shape), leaf in zip(shapes, leaves, strict=True):
        name = taken.free([path, *entry_names(path, shape)])[0]
        columns |= flat_columns(name, storable(leaf))
    columns[column] = status
    if errors:
        texts = [errors.get(i) for i in range(len(status))]
        (column,) = TakenNames(columns).free(["error"], "sweep.")
        columns[column] = np.array(texts, object)
    return DataFrame(columns)


def reduction_dataset(
    results: PyTree, named: NamedDims, attrs: Mapping[str, Any]
) -> Dataset:
    """Return a dataset of a reduction of all points, which has no dims of the space."""
    from xarray import Dataset

    def with_index(x: Any) -> Any:
        is_empty = isinstance(x, Extreme) and x.index is None
        return Extreme(-1, x.value) if is_empty else x

    results = jtu.tree_map(with_index, results, is_leaf=lambda x: type(x) is Extreme)
    names = output_dims(results, named, TakenNames(dims_of(named))).items()
    leaves = jtu.tree_leaves(results)
    pairs = zip(names, leaves, strict=True)
    variables = {name: (dims, as_text(storable(x))) for (name, dims), x in pairs}
    return Dataset(variables, dim_variables(coords_of(named)), attrs)


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
