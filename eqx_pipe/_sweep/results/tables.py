"""Results as tables with names: datasets of xarray and frames of pandas."""

import json
from typing import TYPE_CHECKING, Any

import jax.tree_util as jtu
import numpy as np

from ..._errors import optional
from ..._spaces import entry_columns, entry_names, flat_columns
from ..store import StoredArray, ranges_of
from .label import (
    ERRORS,
    attributes,
    coordinate_variables,
    free_names,
    names_of,
    output_names,
    provenance,
    storable,
)

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset

    from .result import SweepResult
else:  # imported where they are used
    DataFrame = Dataset = SweepResult = Any


def to_xarray(self: SweepResult) -> Dataset:
    """Return the result as an `xarray.Dataset`.

    The dims are those of the space. Axes are coordinates on their dim; those that
    vary together are coordinates on one dim. A bare output is the variable
    `value`, other outputs are named by their paths. The coordinate `status` says
    for each point whether it has a value (1) or failed (2). Arrays have further
    dims, named by the variable and a number, or as `output_coords` says. PRNG
    keys are stored as their raw data. The attributes say what made it. If points
    failed, the attribute `errors` says why, as JSON: for each text the ranges of
    points, from each to the one behind.

    Names that the space has already get `result.` in front: that of an output if
    it, or one of its further dims, is also an axis or a dim (an output `theta` of
    arrays beside the axis `theta.0`); and that of a further dim of an axis.

    **Raises:** `ValueError` if two axes have values of the same name.

    Needs `pip install 'eqx_pipe[sweep]'`.
    """
    xarray = optional("SweepResult.to_xarray", "xarray")
    self._check_all_values("to_xarray")
    made, outputs = provenance(self), self._outputs
    if self._errors:
        spans = {text: ranges_of(points) for text, points in self._errors.items()}
        made |= {ERRORS: json.dumps(spans)}
    names = names_of(outputs, self.space, self.output_coords)
    dims, coordinates = self.space.dims, coordinate_variables(self.space, names)
    by_dims = self.status.reshape(tuple(dims.values()))
    coordinates[names.status] = (tuple(dims), by_dims, {})
    leaves = zip(names.outputs.items(), jtu.tree_leaves(outputs), strict=True)
    variables = {}
    for (name, own), leaf in leaves:
        if isinstance(leaf, StoredArray):
            variables[name] = _lazy((*dims, *own), leaf.grid())
            continue
        leaf = storable(leaf)
        value = leaf.reshape((*dims.values(), *leaf.shape[1:]))
        variables[name] = ((*dims, *own), value)
    attrs = attributes(outputs, self.space, names, made)
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


def to_pandas(self: SweepResult) -> DataFrame:
    """Return the result as a `pandas.DataFrame` with one row for each point.

    Columns are the axes and the outputs by their paths, and last `status`: whether
    the point has a value (1), failed (2) or was not computed yet (0). If points
    failed, the column `error` says why, with `None` for the others. Arrays have a
    column for each entry (`w.0`, `w.1`). An output has `result.` before its name if
    that, or one of its columns, would be the name of an axis or of another column.
    To leave out what failed: `frame[frame["status"] == 1]`.

    **Raises:** `ValueError` if two columns of the axes have the same name.

    Needs `pip install 'eqx_pipe[sweep]'`.
    """
    pandas = optional("SweepResult.to_pandas", "pandas")
    self._check_all_values("to_pandas")
    space, outputs, errors = self.space, self._outputs, self.errors
    columns = entry_columns(space.geometry, space.key, storable)
    taken = {*columns, *space.axes()}
    (column,) = free_names(["status"], taken, "sweep.")
    names = output_names(outputs, {*taken, column}, entry_names)
    for name, leaf in zip(names, jtu.tree_leaves(outputs), strict=True):
        columns |= flat_columns(name, storable(leaf))
    columns[column] = self.status
    if errors:
        texts = [errors.get(i) for i in range(len(self))]
        (column,) = free_names(["error"], columns, "sweep.")
        columns[column] = np.array(texts, object)
    return pandas.DataFrame(columns)
