"""Results as labelled tables: datasets of xarray and frames of pandas."""

import datetime
import json
from typing import TYPE_CHECKING, Any

import jax.tree_util as jtu
import numpy as np

from ..._errors import optional
from ..._spaces import entry_columns, entry_names, flat_columns
from ..store import StoredArray, ranges_of
from .label import (
    attributes,
    coordinate_variables,
    free_names,
    names_of,
    output_names,
    storable,
)

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset

    from .result import SweepResult
else:  # imported where they are used
    DataFrame = Dataset = SweepResult = Any


ERRORS = "errors"
"""The attribute of a dataset with the error texts."""


def to_xarray(self: SweepResult) -> Dataset:
    """Return the result as an `xarray.Dataset`.

    The dims are the dims of the space. Axes are coordinates on their dim; axes that
    vary together are coordinates on one dim. A bare output is the variable `value`;
    other outputs are named by their paths. The coordinate `status` is 1 for a point
    that has a value, 2 for a failed point, and 0 for a missing one. Array outputs have
    further dims, named by the variable and a number, or by `output_coords`. PRNG keys
    are stored as their raw data. The attributes record the function, the versions and
    the settings. If points failed, the attribute `errors` is JSON with the half-open
    ranges of points of each error text.

    Names that the space already uses get the prefix `result.`: the name of an output if
    it, or one of its further dims, is also an axis or a dim (an array output `theta`
    next to an axis `theta.0`), and the name of a further dim of an axis.

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


def to_pandas(self: SweepResult) -> DataFrame:
    """Return the result as a `pandas.DataFrame` with one row for each point.

    Columns are the axes and the outputs by their paths, and last `status`: 1 for a
    point that has a value, 2 for a failed point, 0 for a missing one. If points failed,
    the column `error` has the error text, and `None` at other points. Arrays have a
    column for each entry (`w.0`, `w.1`). The name of an output gets the prefix
    `result.` if it, or one of its columns, is also an axis or another column. To drop
    failed points, use `frame[frame["status"] == 1]`.

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


def provenance(result: SweepResult) -> dict[str, Any]:
    """Return the provenance of a result, as texts and numbers."""
    moment = datetime.datetime.fromtimestamp(result.started, datetime.UTC)
    made = {
        "function": result.function,
        "batch_size": result.batch_size,
        "devices": result.num_devices,
        "started": moment.isoformat(timespec="seconds"),
        **dict(result.made),
    }
    if not np.isnan(result.seconds):  # unknown for a store
        made["seconds"] = round(result.seconds, 6)
    if result.steps is not None:
        needed, executed = result.steps.sums
        made |= {"steps_needed": needed, "steps_executed": executed}
        made |= {"waste": round(result.steps.waste, 4)}
    return made
