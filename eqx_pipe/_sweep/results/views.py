"""A result as a dataset of xarray, a frame of pandas, text, or HTML for notebooks."""

import datetime
import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import jax.tree_util as jtu
import numpy as np

from ..._errors import optional
from ..._reduce import Extreme
from ..._spaces import POINT, Space, entry_columns, entry_names, flat_columns
from ..._tree import leaf_text, leaves_with_names
from ..._types import PyTree
from ..store import FAILED, MISSING, StoredArray, count_in, first_in, ranges_of
from .label import (
    as_text,
    attributes,
    coordinate_variables,
    free_names,
    names_of,
    output_dims,
    output_names,
    shapes_of,
    storable,
)
from .output_coords import KnownCoords, coords_of

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset

    from .result import SweepResult
else:  # imported where they are used
    DataFrame = Dataset = SweepResult = Any

ERRORS = "errors"
"""The attribute of a dataset with the error texts."""

_LISTED = 5
_CELL_CHARS = 120


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

    With `reduce=` over all points, the variables are the results of the reducers,
    without the dims of the space, and the attribute `points_reduced` is their number of
    points. Reductions keep the `output_coords` of the output that they reduce. Several
    levels of a `Quantile` are the dim `quantile`, the points of a `TopK` the dim
    `rank`, and the bins of a `Histogram` the dim `bin`, with the left edges; the index
    of an `ArgMin` or `ArgMax` without a point is -1.

    Names that the space already uses get the prefix `result.`: the name of an output if
    it, or one of its further dims, is also an axis or a dim (an array output `theta`
    next to an axis `theta.0`), and the name of a further dim of an axis.

    **Raises:** `ValueError` if two axes have values of the same name.

    Needs `pip install 'eqx_pipe[sweep]'`.
    """
    xarray = optional("SweepResult.to_xarray", "xarray")
    made = provenance(self)
    if self._errors:
        spans = {text: ranges_of(points) for text, points in self._errors.items()}
        made |= {ERRORS: json.dumps(spans)}
    attrs = attributes(self.space, made)
    if self.points is not None:
        attrs["points_reduced"] = self.points
        return xarray.Dataset(*_of_reduction(self.values, self.output_coords), attrs)
    outputs = self._outputs
    names = names_of(outputs, self.space, self.output_coords)
    dims, coordinates = self.space.dims, coordinate_variables(self.space, names)
    by_dims = self.status.reshape(tuple(dims.values()))
    coordinates[names.status] = (tuple(dims), by_dims, {})
    leaves = zip(names.outputs.items(), jtu.tree_leaves(outputs), strict=True)
    variables = {}
    for (name, own), leaf in leaves:
        if isinstance(leaf, StoredArray):
            variables[name] = _lazy((*dims, *own), leaf.grid(stored=True))
            continue
        leaf = storable(leaf)
        value = leaf.reshape((*dims.values(), *leaf.shape[1:]))
        variables[name] = ((*dims, *own), value)
    return xarray.Dataset(variables, coordinates, attrs)


def _of_reduction(values: PyTree, known: KnownCoords) -> tuple[dict, dict]:
    """Return the variables and coordinates of a reduction of all points."""

    def with_index(x: Any) -> Any:
        is_empty = isinstance(x, Extreme) and x.index is None
        return Extreme(-1, x.value) if is_empty else x

    found = jtu.tree_map(with_index, values, is_leaf=lambda x: isinstance(x, Extreme))
    leaves = [(path or "value", storable(x)) for path, x in leaves_with_names(found)]
    dims = output_dims([(path, x.shape) for path, x in leaves], known, set())
    pairs = zip(dims.items(), leaves, strict=True)
    variables = {name: (own, as_text(x)) for (name, own), (_, x) in pairs}
    coords = {dim: ((dim,), as_text(x)) for dim, x in coords_of(known).items()}
    return variables, coords


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

    With `reduce=` over all points, there is a row for each position on the dims of the
    results, which are columns too: results of the same dims share rows, and those
    without dims have their number in every row.

    **Raises:** `ValueError` if two columns of the axes have the same name.

    Needs `pip install 'eqx_pipe[sweep]'`.
    """
    pandas = optional("SweepResult.to_pandas", "pandas")
    if self.points is not None:
        return _frame_of(self.to_xarray())
    space, outputs, errors = self.space, self._outputs, self.errors
    columns = entry_columns(space.geometry, storable)
    taken = {*columns, *space.axes()}
    (column,) = free_names(["status"], taken, "sweep.")
    names = output_names(shapes_of(outputs), {*taken, column}, entry_names)
    for name, leaf in zip(names, jtu.tree_leaves(outputs), strict=True):
        columns |= flat_columns(name, storable(leaf))
    columns[column] = self.status
    if errors:
        texts = [errors.get(i) for i in range(len(self))]
        (column,) = free_names(["error"], columns, "sweep.")
        columns[column] = np.array(texts, object)
    return pandas.DataFrame(columns)


def _frame_of(data: Dataset) -> DataFrame:
    """Return a reduction as a frame: a row for each position on the dims of outputs."""
    from pandas import DataFrame, concat

    groups: dict[tuple[Any, ...], list[Any]] = {}
    for name, variable in data.data_vars.items():
        groups.setdefault(variable.dims, []).append(name)
    numbers = {name: data[name].item() for name in groups.pop((), [])}
    frames = [data[names].to_dataframe().reset_index() for names in groups.values()]
    frame = concat(frames, ignore_index=True) if frames else DataFrame(index=[0])
    return frame.assign(**numbers)


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


def text(result: SweepResult) -> str:
    """Return a summary: sizes, outputs, failed points and the run."""
    outputs = [(name, _leaf(result, leaf)) for name, leaf in _outputs(result)]
    width = max((len(name) for name, _ in outputs), default=0)
    rows = [f"{name:<{width}}  {text}" for name, text in outputs]
    lines = [*_reduced(result), *rows, *_problems(result), _run(result)]
    return "\n  ".join([_title(result), *lines])


def html(result: SweepResult) -> str:
    """Return the summary as HTML, with the axes."""
    outputs = [(name, _leaf(result, leaf)) for name, leaf in _outputs(result)]
    return "".join(
        [
            f"<div><b>{escape(_title(result))}</b></div>",
            _lines(_reduced(result)),
            _table(("axis", "dim", "values", ""), _axes(result.space)),
            _table(("output", ""), outputs),
            _lines([*_problems(result), _run(result)]),
        ]
    )


def _title(result: SweepResult) -> str:
    dims = ", ".join(f"{name}: {n:,}" for name, n in result.space.dims.items())
    return f"SweepResult({len(result):,} points; {dims})"


def _outputs(result: SweepResult) -> list[tuple[str, Any]]:
    return [(name or "value", x) for name, x in leaves_with_names(result.values)]


def _axes(space: Space) -> list[tuple[str, str, str, str]]:
    """Return the axes with their dims."""
    geometry = space.geometry
    names = list(geometry.grid_dims)
    dims = [POINT if geometry.is_part else names[k] for k in geometry.axis_dims]
    axes = zip(geometry.axes.items(), dims, strict=True)
    return [(name, dim, f"{len(axis):,}", repr(axis)) for (name, axis), dim in axes]


def _reduced(result: SweepResult) -> list[str]:
    """Return a line with the number of points in a reduction, if there is one."""
    cells = result.cells
    if cells is not None and cells.points.size:
        few, many = cells.points.min(), cells.points.max()
        count = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        failed = int(cells.failed.sum())
        lost = f", of which {failed:,} in all failed" if failed else ""
        return [f"each reduced over {count} points{lost}"]
    if result.points is None:
        return []
    early = ", stopped" if result._reached < len(result) else ""
    return [f"reduced over {result.points:,} points{early}"]


def _problems(result: SweepResult) -> list[str]:
    """Return the numbers of failed and missing points, and the first of each."""
    lines = []
    for word, status in (("failed", FAILED), ("missing", MISSING)):
        count = count_in(result._gaps, status)
        if count:
            listed = [str(i) for i in first_in(result._gaps, status, _LISTED)]
            some = ", ".join(listed + ["..."] * (count > _LISTED))
            lines.append(f"{count:,} points {word}: {some}")
    return lines


def _leaf(result: SweepResult, leaf: Any) -> str:
    """Return the type of an array, or its value if it is a single reduced number."""
    number = result.points is not None and np.ndim(leaf) == 0
    if number and hasattr(leaf, "dtype") and leaf.dtype.kind in "biufc":
        return f"{leaf_text(leaf)}  {leaf.item():.6g}"
    return leaf_text(leaf)


def _run(result: SweepResult) -> str:
    """Return a line on how a result was computed, as far as known."""
    devices = f"{result.num_devices} device" + "s" * (result.num_devices != 1)
    took = "" if np.isnan(result.seconds) else f"{result.seconds:.3g} s, "
    waste = result.waste
    steps = "" if waste is None else f", {waste:.3g} steps for each one needed"
    return f"{took}batch size {result.batch_size}, {devices}{steps}"


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"<div>{escape(text)}</div>" for text in texts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table of texts, each shortened to a readable length."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return f'<table style="margin:.3em 0 .8em">{"".join(lines)}</table>'


def _row(tag: str, texts: Sequence[str]) -> str:
    limit = _CELL_CHARS
    short = [x if len(x) <= limit else f"{x[: limit - 3]}..." for x in texts]
    # Notebooks align cells to the right by default.
    cells = (f'<{tag} style="text-align:left">{escape(x)}</{tag}>' for x in short)
    return f"<tr>{''.join(cells)}</tr>"
