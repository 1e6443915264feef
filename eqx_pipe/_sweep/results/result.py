"""`SweepResult`: the values of a sweep, their provenance, and selected points."""

import dataclasses
import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool, Int, Int8, Int64, UInt32

from ..._check import check_choice
from ..._errors import (
    describe_value,
    message,
    nearest,
    optional,
    structure_error,
    type_error,
    value_error,
)
from ..._reduce import Over, as_over
from ..._spaces import Indices, Space, as_index, cells_of, indices, is_several, joined
from ..._tree import (
    differences,
    leaf_text,
    leaves_with_names,
    on_device,
)
from ..._types import PyTree
from ..call import needs_value
from ..store import (
    FAILED,
    MISSING,
    OK,
    Gaps,
    Marks,
    StoredArray,
    StoreLike,
    count_in,
    first_in,
    joined_gaps,
    picked_gaps,
    ranges_of,
    stored_in,
)
from .label import (
    ERRORS,
    CellPoints,
    CellValues,
    KnownCoords,
    attributes,
    coords_texts,
    dataset_of,
    frame_of,
    reduction_dataset,
    reduction_frame,
    storable,
)
from .plot import draw
from .saved import read_fields, write_result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame
    from xarray import Dataset
else:  # imported where they are used
    Axes = DataFrame = Dataset = Any

_READ_BYTES = 64 * 1024 * 1024
"""The bytes of a store to hold in memory at once, if all of it is read."""

_FEW = 8
"""Arrays with more entries than this are shown by their shape."""

_BEST = "SweepResult.best"

Compared: TypeAlias = str | Callable[[PyTree], Any] | None
"""The score of a point: the path of a scalar output, or a function of one output."""


@dataclasses.dataclass(frozen=True)
class Best:
    """The best point of a sweep, or its best setting over replicates.

    `index` is its index and `point` the point; `value` is the number that was compared,
    and `output` the whole output at that point. `coordinates` has the values of the
    axes by name, which are printed.

    With `over=`, `index` has the indices of all replicates of the setting, `point` has
    `None` in place of the axes of `over`, `value` is the mean score, and `output` has
    the outputs of the replicates, with a leading axis: the values of `result[index]`.
    """

    index: int | Int64[np.ndarray, " replicates"]
    point: PyTree
    value: bool | int | float
    output: PyTree
    coordinates: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        # An axis may be called `index`, too.
        values = [("index", self.index), ("value", self.value)]
        values += self.coordinates.items()
        texts = (f"{name}={_short(value)}" for name, value in values)
        return f"Best({', '.join(texts)})"


# The attributes of a file that describe its whole space, but not a part of it.
_OF_THE_SPACE = ("space", "space_mode", "points")

_STATIC = {"static": True}
"""The metadata of a field that is not a leaf of the pytree."""

_LISTED = 5

_LARGEST = 2**24
"""The maximum number of points with an array of their statuses."""

_CONCAT = "SweepResult.concat"


class Steps(eqx.Module):
    """The numbers of steps of the `while_loop`s at each point of a sweep.

    `needed` is the number of steps that the point takes by itself. `executed` is the
    number of steps that its lane ran until the slowest point of its batch had finished.
    Counts saturate at 2^32 - 1.
    """

    needed: UInt32[np.ndarray, " points"]
    executed: UInt32[np.ndarray, " points"]

    @property
    def sums(self) -> tuple[int, int]:
        """The total numbers of steps needed and executed."""
        needed, executed = (
            int(np.sum(x, dtype=np.uint64)) for x in (self.needed, self.executed)
        )
        return needed, executed

    @property
    def waste(self) -> float:
        """The number of steps executed for each step needed."""
        needed, executed = self.sums
        return executed / needed if needed else 1.0


# A dataclass, since the constructor of a Module takes a fifth of a small sweep.
@jtu.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SweepResult:
    """The values of a function at the points of a space.

    `values` is the pytree of outputs, as NumPy arrays with a leading axis over the
    points. `space` is the space of the sweep, and `ok` is true for each point that has
    a value. `result[i]` is the output at one point; a slice `result[a:b]`, a list of
    indices `result[[3, 7]]` and a mask `result[result.ok]` return a `SweepResult`;
    iteration yields the outputs in order.

    With `reduce=`, `values` is the reduction of `points` points (fewer than the space
    has if a reducer stopped the sweep, or if points are missing in a store; failed
    points count). `to_xarray`, `to_pandas` and `plot` show the reduction, and methods
    that need the value at one point raise. `ok` and `missing` end where the sweep
    stopped.

    If the reducers reduce some dims only (`over=`), `space` has the other dims, and the
    values have one entry for each cell, that is, for each point of these dims.
    `cells.points` is the number of computed points of each cell, and `cells.failed` the
    number of these that failed; a cell is `ok` if one of its points has a value.

    `output_coords` has the names and coordinates of the dims of outputs, by the paths
    of outputs.

    With `count_steps=True`, `steps` has for each point the number of steps that its
    loops `needed` and the number `executed`, and `waste` is their ratio.

    !!! example

        >>> import eqx_pipe as ep
        >>> result = ep.sweep(lambda p: {"y": p["x"] ** 2}, {"x": ep.Linspace(0, 3, 4)})
        >>> result.values["y"].tolist(), result[2]["y"].item(), len(result[1:])
        ([0.0, 1.0, 4.0, 9.0], 4.0, 3)
    """

    values: PyTree
    space: Space
    _gaps: Gaps
    batch_size: int = dataclasses.field(metadata=_STATIC)
    num_devices: int = dataclasses.field(metadata=_STATIC)
    started: float = dataclasses.field(metadata=_STATIC)
    seconds: float = dataclasses.field(metadata=_STATIC)
    points: int | None = dataclasses.field(default=None, metadata=_STATIC)
    _ended: int | None = dataclasses.field(default=None, metadata=_STATIC)
    function: str = dataclasses.field(default="", metadata=_STATIC)
    made: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), metadata=_STATIC)
    steps: Steps | None = None
    _errors: dict[str, Int64[np.ndarray, " _failed"]] = dataclasses.field(
        default_factory=dict
    )
    cells: CellPoints | None = None
    output_coords: KnownCoords = dataclasses.field(default_factory=dict)

    # `_gaps` are the ranges of points without a value, each with its status. `_errors`
    # has the points, in order, of each error text. A sweep that was stopped has
    # `_ended` points.

    @property
    def errors(self) -> dict[int, str]:
        """The error at each failed point: a dict from its index to a line of text.

        With `on_error="mark"`, failed points do not end the sweep. If a batch fails,
        it is split until each failed point is found.

        !!! example

            >>> import eqx_pipe as ep, equinox as eqx
            >>> def root(x):
            ...     return eqx.error_if(x, x < 0, "no root") ** 0.5
            >>> result = ep.sweep(root, ep.Linspace(-1, 2, 4), on_error="mark")
            >>> result.errors
            {0: 'EquinoxRuntimeError: no root'}
        """
        pairs = ((i, text) for text, points in self._errors.items() for i in points)
        return {int(i): text for i, text in sorted(pairs)}

    @property
    def waste(self) -> float | None:
        """The number of steps of loops executed for each step needed.

        It is 1 if no point waited for another, or if there is no `while_loop`; `None`
        without `count_steps=True`, or if the result is from a file, whose attributes
        contain it.
        """
        return None if self.steps is None else self.steps.waste

    @property
    def status(self) -> Int8[np.ndarray | Marks, " points"]:
        """The status of each point: 0 not computed yet, 1 has a value, 2 failed.

        Beyond 2^24 points, `status`, `ok` and `missing` keep ranges of points in place
        of an entry for each: `sum`, `any`, `all`, `~`, `==` and slices take little
        memory, and `numpy.asarray` creates the array.
        """
        kinds = np.array([MISSING, OK, FAILED], np.int8)
        marks = Marks(self._gaps, self._reached, kinds)
        return marks if len(marks) > _LARGEST else marks[...]

    @property
    def ok(self) -> Bool[np.ndarray | Marks, " points"]:
        """True for each point that has a value."""
        return self.status == OK

    @property
    def missing(self) -> Bool[np.ndarray | Marks, " points"] | None:
        """True for each point that is not computed yet; `None` if all are."""
        return self.status == MISSING if count_in(self._gaps, MISSING) else None

    @property
    def _reached(self) -> int:
        """The number of points that have a status."""
        return len(self) if self._ended is None else self._ended

    def __len__(self) -> int:
        return self.space.size

    @overload
    def __getitem__(self, i: SupportsIndex) -> PyTree: ...
    @overload
    def __getitem__(self, i: slice | Indices) -> "SweepResult": ...
    def __getitem__(self, i: SupportsIndex | slice | Indices) -> "PyTree | SweepResult":
        self._check_all_values("result[i]")
        if is_several(i):
            lengths = tuple(self.space.dims.values())
            i = indices("SweepResult", i, len(self), lengths)
        if not isinstance(i, slice | np.ndarray):
            one = _one(i, len(self))
            return jtu.tree_map(lambda leaf: leaf[one], self.values)
        several = (self.values, self.steps, self.cells)
        values, steps, cells = jtu.tree_map(lambda leaf: leaf[i], several)
        index = np.arange(*i.indices(len(self))) if isinstance(i, slice) else i
        at = {t: np.flatnonzero(np.isin(index, x)) for t, x in self._errors.items()}
        return dataclasses.replace(
            self,
            values=values,
            space=self.space[i],
            _gaps=picked_gaps(self._gaps, index),
            made=tuple(pair for pair in self.made if pair[0] not in _OF_THE_SPACE),
            steps=steps,
            _errors={text: points for text, points in at.items() if len(points)},
            cells=cells,
        )

    def __iter__(self) -> Iterator[PyTree]:
        self._check_all_values("iteration")
        return (self[i] for i in range(len(self)))

    @property
    def _outputs(self) -> PyTree:
        """All leaves with a value at each point."""
        if self.cells is None:
            return self.values
        return CellValues(self.values, self.cells)

    def _check_all_values(self, asked: str) -> None:
        """Raise a `TypeError` if the points were reduced to one value."""
        if self.points is not None:
            raise type_error(
                "SweepResult",
                f"`{asked}` needs the values at all points, and this sweep has "
                "reduced them.",
                "The reduction is `result.values`, and `result.to_xarray()` labels it; "
                "sweep without `reduce=`, or over a part of the space, to keep the "
                "values.",
            )

    def grid(self) -> PyTree:
        """Return the values with one leading axis for each dim of the space, in order.

        **Shapes:** a leaf `(points, *shape)` of `values` becomes `(*dims, *shape)`. A
        zipped space or a part of a space has one dim.

        **Raises:** `TypeError` if all points were reduced to one value.
        """
        self._check_all_values("grid")
        lengths = tuple(self.space.dims.values())

        def grid(leaf: Any) -> Any:
            if isinstance(leaf, StoredArray):
                return leaf.grid()
            return leaf.reshape(lengths + leaf.shape[1:])

        return jtu.tree_map(grid, self.values)

    def best(
        self, by: Compared = None, mode: str = "min", *, over: Over = None
    ) -> Best:
        """Return the point with the smallest or largest output.

        Points without a value, or with a NaN, are never selected; ties go to the lowest
        index.

        **Arguments:**

        - `by`: the score: the path of a scalar output (`"loss"`, `"fit.loss"`), or a
          function from the output at one point to a scalar. Not needed if the output is
          one scalar.
        - `mode`: `"min"` or `"max"`.
        - `over`: the dims of replicates, such as `"seed"`: compare the mean score over
          these dims, in float64, so that a setting is not chosen for one lucky seed. A
          setting with a replicate that failed, is missing or has a NaN is never
          selected. (Keyword only.)

        **Returns:** an object with `.index`, `.point`, `.value` (the scalar that was
        compared) and `.output` (the whole output there). With `over`, `.index` and
        `.output` are those of all replicates.

        **Raises:** `ValueError` if `by` does not name a scalar, if `over` does not name
        dims or names all of them, or if no point or setting can be selected.

        !!! example

            >>> import eqx_pipe as ep
            >>> best = ep.sweep(lambda x: (x - 2) ** 2, ep.Linspace(0, 4, 9)).best()
            >>> best.index, best.point.item()
            (4, 2.0)
        """
        self._check_all_values("best")
        return best_of(self.values, self.ok[...], self.space, by, mode, over)

    def to_xarray(self) -> Dataset:
        """Return the result as an `xarray.Dataset`.

        The dims are the dims of the space. Axes are coordinates on their dim; axes that
        vary together are coordinates on one dim. A bare output is the variable `value`;
        other outputs are named by their paths. The coordinate `status` is 1 for a point
        that has a value, 2 for a failed point, and 0 for a missing one. Array outputs
        have further dims, named by the variable and a number, or by `output_coords`.
        PRNG keys are stored as their raw data. The attributes record the function, the
        versions and the settings. If points failed, the attribute `errors` is JSON with
        the half-open ranges of points of each error text.

        With `reduce=` over all points, the variables are the results of the reducers,
        without the dims of the space, and the attribute `points_reduced` is their
        number of points. Reductions keep the `output_coords` of the output that they
        reduce. Several levels of a `Quantile` are the dim `quantile`, the points of a
        `TopK` the dim `rank`, and the bins of a `Histogram` the dim `bin`, with the
        left edges; the index of an `ArgMin` or `ArgMax` without a point is -1.

        Names that the space already uses get the prefix `result.`: the name of an
        output if it, or one of its further dims, is also an axis or a dim (an array
        output `theta` next to an axis `theta.0`), and the name of a further dim of an
        axis.

        **Raises:** `ValueError` if two axes have values of the same name.

        Needs `pip install 'eqx_pipe[sweep]'`."""
        optional("SweepResult.to_xarray", "xarray")
        known, attrs = self.output_coords, attributes(self.space, self._provenance)
        if self._errors:
            spans = {text: ranges_of(points) for text, points in self._errors.items()}
            attrs[ERRORS] = json.dumps(spans)
        if self.points is not None:
            attrs["points_reduced"] = self.points
            return reduction_dataset(self.values, known, attrs)
        return dataset_of(self._outputs, self.space, known, self.status[...], attrs)

    def to_pandas(self) -> DataFrame:
        """Return the result as a `pandas.DataFrame` with one row for each point.

        Columns are the axes and the outputs by their paths, and last `status`: 1 for a
        point that has a value, 2 for a failed point, 0 for a missing one. If points
        failed, the column `error` has the error text, and `None` at other points.
        Arrays have a column for each entry (`w.0`, `w.1`). The name of an output gets
        the prefix `result.` if it, or one of its columns, is also an axis or another
        column. To drop failed points, use `frame[frame["status"] == 1]`.

        With `reduce=` over all points, there is a row for each position on the dims of
        the results, which are columns too: results of the same dims share rows, and
        those without dims have their number in every row.

        **Raises:** `ValueError` if two columns of the axes have the same name.

        Needs `pip install 'eqx_pipe[sweep]'`."""
        optional("SweepResult.to_pandas", "pandas")
        if self.points is not None:
            return reduction_frame(self.to_xarray())
        return frame_of(self._outputs, self.space, self.status[...], self.errors)

    def plot(
        self,
        variable: str | None = None,
        *,
        sel: Mapping[str, object] | None = None,
        x: str | None = None,
        y: str | None = None,
        hue: str | None = None,
        row: str | None = None,
        col: str | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> Axes | np.ndarray:
        """Draw one output over the space, by xarray and matplotlib.

        One dim is drawn as a line, two dims as a heat map with the first dim along x,
        and three or four dims as a heat map for each position on the others. An output
        that is an array at each point (a loss curve) is drawn as a line for each point,
        over the position in the array. If axes share a dim (random draws, joint
        designs), `x=` and `y=` name two of them, for points coloured by the value.
        Replicates (`Seeds`, PRNG keys) are averaged; around lines a band shows one
        standard deviation. With `reduce=` over all points, the dims are those of the
        results: the mean of curves is a line, and quantiles of curves are a line for
        each level.

        Axes show their `label` and `unit`, a `Geomspace` is logarithmic, and names
        (`Static`, bools) are tick labels. Points that failed, are NaN or infinite, or
        are missing leave a gap. More than 10 lines have no legend.

        **Arguments:**

        - `variable`: the output's name in `to_xarray()`, its path; not needed for a
          single output, or the curves of a single metric of `train`.
        - `sel`: values to fix, as a dict from a dim, or a coordinate on it, to a value
          (numbers match the nearest one), or to a position on a dim without
          coordinates, such as the dims of arrays. (Keyword only.)
        - `x`, `y`, `hue`, `row`, `col`: the dim, or a coordinate on it, to show along
          x, along y, by the colour of lines, and in rows and columns of panels, as in
          xarray; by default as above. (Keyword only.)
        - `ax`: the matplotlib `Axes` to draw into; by default a new figure. (Keyword
          only.)
        - `options`: options of xarray's `plot.line`, `plot.pcolormesh` and
          `plot.scatter`, such as `cmap`, `norm`, `vmin`, `xscale`, `ylim`, `figsize`
          and `col_wrap`, and of the matplotlib functions that they call.

        **Returns:** the `Axes`; an array of them if there are panels. The figure is
        `ax.figure`.

        **Raises:** `ValueError` if there are more dims than a plot can show, several
        axes of one dim without `x=` and `y=`, or only one number. Needs `pip
        install 'eqx_pipe[sweep]'`.

        !!! example

            >>> import eqx_pipe as ep
            >>> space = {"a": ep.Geomspace(0.01, 1, 5), "b": ep.Linspace(0, 1, 3)}
            >>> ax = ep.sweep(lambda p: p["a"] * p["b"], space).plot(sel={"b": 0.5})
            >>> ax.get_xscale(), ax.get_title()
            ('log', 'b = 0.5')
        """
        data = self.to_xarray()
        # All variables of a reduction of all points are outputs, and it has no axes.
        axes, outputs = self.space.axes(), len(jtu.tree_leaves(self.values))
        if self.points is not None:
            axes, outputs = {}, len(data.data_vars)
        metric = dict(self.made).get("metric")  # of `train`, beside other curves
        if variable is None and metric in data.data_vars:
            variable = metric
        roles = {"x": x, "y": y, "hue": hue, "row": row, "col": col}
        if ax is not None:
            options["ax"] = ax
        return draw(data, axes, variable, outputs, sel or {}, roles, options)

    def save(self, path: StoreLike, *, overwrite: bool = False) -> None:
        """Write the result to a folder, which `SweepResult.load` and xarray can open.

        The folder is the store of a finished sweep, in Zarr's format 3, with checksums
        and the names of `to_xarray()`. If saving fails, existing files are kept. For
        NetCDF use `result.to_xarray().to_netcdf(path)`.

        **Arguments:**

        - `path`: the folder; its name ends in `.zarr`. Or a URL or a store object, as
          in `sweep(store=)`.
        - `overwrite`: whether to replace an existing result. (Keyword only.)

        **Raises:** `FileExistsError` if `path` exists, and with `overwrite` if it is
        not a result of eqx_pipe or a sweep fills it; `ValueError` for another suffix.
        Needs `pip install 'eqx_pipe[sweep]'`.

        !!! example

            >>> import eqx_pipe as ep, tempfile
            >>> result = ep.sweep(lambda x: x**2, ep.Linspace(0, 3, 4))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     result.save(f"{folder}/squares.zarr")
            ...     ep.SweepResult.load(f"{folder}/squares.zarr").best(mode="max").index
            3
        """
        self._check_all_values("save")
        write_result(self, path, overwrite)

    @classmethod
    def load(cls, path: StoreLike) -> "SweepResult":
        """Return a saved result, or the result in the store of a sweep.

        It reads a result that `SweepResult.save` wrote, or a store that `sweep(store=)`
        fills, also while it is being filled: missing points are not `.ok`, and values
        are read from the store when they are indexed. No code in the files is run. The
        path may be anything that `sweep(store=)` supports.

        The result equals the one that was saved, with these differences. In `.values`,
        dicts, lists and tuples are kept; other containers (dataclasses, modules, named
        tuples) become dicts with the names of their fields. In `.space`, every axis
        becomes a `Values` axis of the same dim with bitwise identical values, which
        plots and keys treat like the saved axis. A `Static` axis has its numbers, or
        texts for strings, functions and other objects. Among constants of the space,
        numbers, texts and arrays of at most 1,024 bytes are kept; a larger array
        becomes a `jax.ShapeDtypeStruct`, and an object becomes a text.

        **Arguments:**

        - `path`: the folder that was passed to `SweepResult.save` or `sweep(store=)`.

        **Returns:** a `SweepResult`.

        **Raises:** `FileNotFoundError` if nothing exists at `path`; `ValueError` for
        files that eqx_pipe did not write, that have another version of its format, or
        that were changed; `OSError` for a damaged file.

        Needs `pip install 'eqx_pipe[sweep]'`.

        !!! example

            >>> import eqx_pipe as ep, tempfile
            >>> result = ep.sweep(lambda x: {"y": x**2}, ep.Linspace(0, 3, 4))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     result.save(f"{folder}/squares.zarr")
            ...     ep.SweepResult.load(f"{folder}/squares.zarr").values["y"].tolist()
            [0.0, 1.0, 4.0, 9.0]
        """
        return cls(**read_fields(path))

    @classmethod
    def concat(cls, results: Sequence["SweepResult"]) -> "SweepResult":
        """Concatenate several results: their points and values, in order.

        Use it for rounds of a search, a wider space, or recomputed points. A point that
        several results have appears several times.

        **Arguments:**

        - `results`: at least one `SweepResult`, none of them reduced. Their spaces must
          have the same axes, and their outputs the same structure, shapes and dtypes.
          Values in a store are read into memory.

        **Returns:** a `SweepResult` with one dim named `point`. Its space is a part of
        a grid if all results are parts of that grid; otherwise a table with `Values`
        and `Static` axes. `seconds` is the sum over results, `started` the earliest
        time, and `batch_size` and `num_devices` are the largest.

        **Raises:** `ValueError` for an empty list, or if axes or constants of the
        spaces differ; `StructureError` if outputs differ in structure, shape or dtype;
        `TypeError` for other objects, or a reduced result.

        **Laws:** `SweepResult.concat([result[a], result[b]])` is `result[[*a, *b]]`.

        !!! example

            >>> import eqx_pipe as ep
            >>> near = ep.sweep(lambda p: p["x"] ** 2, {"x": ep.Linspace(0, 1, 3)})
            >>> far = ep.sweep(lambda p: p["x"] ** 2, {"x": ep.Values([2.0, 3.0])})
            >>> ep.SweepResult.concat([near, far]).values.tolist()
            [0.0, 0.25, 1.0, 4.0, 9.0]
        """
        results = list(results) if isinstance(results, Sequence) else [results]
        if not results:
            wrong = "`results` is empty."
            raise value_error(_CONCAT, wrong, "Give at least one result.")
        for k, result in enumerate(results):
            _check_joinable(k, result, results[0])
        names = dict.fromkeys(result.function for result in results if result.function)
        values, steps, cells = (
            _joined([getattr(result, name) for result in results])
            for name in ("values", "steps", "cells")
        )
        return cls(
            values=values,
            space=joined(_CONCAT, [result.space for result in results]),
            _gaps=joined_gaps([(result._gaps, len(result)) for result in results]),
            batch_size=max(result.batch_size for result in results),
            num_devices=max(result.num_devices for result in results),
            started=min(result.started for result in results),
            seconds=sum(result.seconds for result in results),
            function=", ".join(names),
            _errors=_errors(results),
            cells=cells,
            output_coords=results[0].output_coords,
            steps=steps,
        )

    @property
    def _provenance(self) -> dict[str, Any]:
        """The provenance, as texts and numbers."""
        moment = datetime.datetime.fromtimestamp(self.started, datetime.UTC)
        made = {
            "function": self.function,
            "batch_size": self.batch_size,
            "devices": self.num_devices,
            "started": moment.isoformat(timespec="seconds"),
            **dict(self.made),
        }
        if not np.isnan(self.seconds):  # unknown for a store
            made["seconds"] = round(self.seconds, 6)
        if self.steps is not None:
            needed, executed = self.steps.sums
            made |= {"steps_needed": needed, "steps_executed": executed}
            made |= {"waste": round(self.steps.waste, 4)}
        return made

    def __repr__(self) -> str:
        leaves = [(n or "value", leaf) for n, leaf in leaves_with_names(self.values)]
        width = max((len(name) for name, _ in leaves), default=0)
        rows = [f"{name:<{width}}  {_leaf_row(self, leaf)}" for name, leaf in leaves]
        dims = ", ".join(f"{name}: {n:,}" for name, n in self.space.dims.items())
        title = f"SweepResult({len(self):,} points; {dims})"
        lines = [title, *_reduced(self), *rows, *_problems(self), _run(self)]
        return "\n  ".join(lines)


def _short(value: Any) -> str:
    """Return a coordinate as text."""
    if np.size(value) > _FEW:
        return leaf_text(value)
    value = np.asarray(value).tolist()
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


def best_of(
    values: PyTree,
    ok: Bool[np.ndarray, " points"],
    space: Space,
    by: Compared,
    mode: str,
    over: Over,
) -> Best:
    """Return the best of the `ok` points, or setting; see `SweepResult.best`."""
    check_choice(_BEST, "mode", mode, ("min", "max"))
    compared = scores(_BEST, values, space.size, by)
    allowed = ok & ~np.isnan(compared)
    settings, numbers, of_point, one = space, range(space.size), None, "point"
    if over is not None:
        settings, numbers, of_point = _settings(space, as_over(over, _BEST, ""))
        one = "setting has a replicate that"
        # A NaN makes the mean of its setting NaN, as infinities of both signs do.
        compared = np.where(allowed, compared.astype(np.float64), np.nan)
        compared = np.bincount(of_point, compared) / np.bincount(of_point)
        allowed = ~np.isnan(compared)
    candidates = np.flatnonzero(allowed)
    if not len(candidates):
        wrong = f"every {one} failed, or has the value NaN."
        raise value_error(_BEST, wrong, "Look at `result.ok` and `result.values`.")
    # The first of `ranked`, in a thousandth of its time.
    pick = np.argmin if mode == "min" else np.argmax
    i = int(candidates[pick(compared[candidates])])
    index = i if of_point is None else np.flatnonzero(of_point == i)
    output = jtu.tree_map(lambda leaf: leaf[index], values)
    number = int(numbers[i])
    columns = settings[number : number + 1].geometry.columns()
    coordinates = {name: column[0] for name, column in columns.items()}
    point, value = settings.point(number), compared[i].item()
    return Best(index, point, value, output, coordinates)


def _settings(
    space: Space, over: Sequence[str]
) -> tuple[Space, np.ndarray, Int[np.ndarray, " points"]]:
    """Return the space of the other dims, and the settings with a point.

    They are points of that space, by their numbers. The last array has for each point
    the position of its setting among them. The points may be a part of a grid.
    """
    geometry = space.geometry
    dims = list(geometry.grid_dims)
    if set(over) >= set(dims):
        wrong = f"`over` names all dims, {', '.join(dims)}."
        raise value_error(_BEST, wrong, "Name those of replicates, not of settings.")
    settings = cells_of(_BEST, space, over, of_part=True)
    digits = geometry.digits(np.arange(space.size))
    numbers = np.zeros(space.size, np.int64 if settings.size < 2**62 else object)
    for dim, length in settings.dims.items():
        numbers = numbers * length + digits[:, dims.index(dim)]
    return settings, *np.unique(numbers, return_inverse=True)


def _parts(values: PyTree, size: int) -> list[slice]:
    """Return slices of all points, each small enough to be read into memory."""
    leaves = jtu.tree_leaves(values)
    if stored_in(leaves) is None:
        return [slice(None)]
    row = sum(leaf.nbytes for leaf in leaves) // size
    step = max(1, _READ_BYTES // max(1, row))
    return [slice(i, i + step) for i in range(0, size, step)]


def scores(function: str, values: PyTree, size: int, by: Compared) -> np.ndarray:
    """Return the score of each of `size` points."""
    if callable(by):
        name, parts = "by", _parts(values, size)
        numbers = np.concatenate([_scored(values, by, part) for part in parts])
    else:
        named = {name or "value": leaf for name, leaf in leaves_with_names(values)}
        name = _output_name(function, named, by)
        numbers = storable(named[name])
    if numbers.shape != (size,) or numbers.dtype.kind not in "biuf":
        raise value_error(
            function,
            f"`{name}` is a {numbers.dtype}{list(numbers.shape[1:])} per point.",
            "Compare by a real scalar: the path of one, or a function of the "
            "output that returns one.",
        )
    return numbers


def ranked(
    scores: np.ndarray, mode: str, allowed: Bool[np.ndarray, " points"] | None = None
) -> Int64[np.ndarray, " allowed"]:
    """Return the indices of the allowed scores, best first: NaN last, ties by index.

    Scores are never negated, which wraps around for unsigned numbers and the smallest
    integer, and which bools do not support.
    """
    index = np.arange(len(scores)) if allowed is None else np.flatnonzero(allowed)
    scores = scores[index]
    if mode == "min":
        return index[np.argsort(scores, kind="stable")]
    # In a stable sort of the reversed scores, the last of equal ones is the first.
    order = len(index) - 1 - np.argsort(scores[::-1], kind="stable")[::-1]
    return index[np.roll(order, -np.count_nonzero(np.isnan(scores)))]


def _scored(values: PyTree, by: Callable[[PyTree], Any], part: slice) -> np.ndarray:
    outputs = jtu.tree_map(lambda leaf: on_device(leaf[part]), values)
    try:
        return storable(jax.vmap(by)(outputs))
    except Exception as error:
        if needs_value(error):
            error.add_note(
                "`by` is vectorised over points, so outputs are not known while it is "
                "traced. Use `jnp.where` in place of `if`, and functions of "
                "`jax.numpy` in place of those of `math` and NumPy."
            )
        raise


def _output_name(function: str, named: Mapping[str, Any], by: object) -> str:
    """Return the name of the output `by`, or of the only one; raise if unknown."""
    if by is None and len(named) == 1:
        return next(iter(named))
    if isinstance(by, str) and by in named:
        return by
    wrong = f"`by` is {describe_value(by)}"
    if by is None:
        wrong = f"there are {len(named)} outputs, and `by` chooses none"
    cure = nearest(by, named)
    if isinstance(by, str) and by in ("min", "max"):
        cure = f'The first argument is what is compared: `mode="{by}"`. {cure}'
    raise value_error(function, f"{wrong}.", cure)


def _one(i: Any, size: int) -> int:
    """Return the index of one point."""
    outputs = f"Outputs are in `.values`: `result.values[{i!r}]`. "
    one = as_index(i, "SweepResult", outputs if isinstance(i, str) else "")
    if not -size <= one < size:
        wrong = f"index {one} is out of range."
        cure = f"The result has {size} points, 0 to {size - 1}."
        raise IndexError(message("SweepResult", wrong, cure))
    return one


def _check_joinable(k: int, result: object, first: SweepResult) -> None:
    """Raise unless a result can follow the first one."""
    if not isinstance(result, SweepResult) or result.points is not None:
        what = "reduced" if isinstance(result, SweepResult) else describe_value(result)
        raise type_error(
            _CONCAT,
            f"`results[{k}]` is {what}.",
            "Give a list of results of `sweep` with the values at all points, that "
            "is, without `reduce=`.",
        )
    lines = differences(first.values, result.values, free_axis=0)
    if lines:
        raise structure_error(
            _CONCAT,
            f"the outputs of `results[0]` and `results[{k}]` differ: "
            f"{'; '.join(lines)}.",
            "Join results of functions that return the same structure.",
        )
    if coords_texts(result.output_coords) != coords_texts(first.output_coords):
        raise value_error(
            _CONCAT,
            f"`results[0]` and `results[{k}]` have different `output_coords`.",
            "Sweep both with the same ones, or drop them: "
            "`dataclasses.replace(result, output_coords={})`.",
        )


def _joined(trees: Sequence[PyTree]) -> PyTree:
    """Return pytrees joined along their leading axis; `None` if one of them is."""
    if any(tree is None for tree in trees):
        return None
    return jtu.tree_map(_concatenated, *trees)


def _concatenated(*leaves: Any) -> Any:
    arrays = [leaf[...] if isinstance(leaf, StoredArray) else leaf for leaf in leaves]
    on_host = not any(isinstance(leaf, jax.Array) for leaf in arrays)
    return np.concatenate(arrays) if on_host else jnp.concatenate(arrays)


def _errors(results: Sequence[SweepResult]) -> dict[str, np.ndarray]:
    errors: dict[str, np.ndarray] = {}
    first = 0
    for result in results:
        for text, points in result._errors.items():
            errors[text] = np.append(errors.get(text, points[:0]), first + points)
        first += len(result)
    return errors


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
            shown = ", ".join(listed + ["..."] * (count > _LISTED))
            lines.append(f"{count:,} points {word}: {shown}")
    return lines


def _leaf_row(result: SweepResult, leaf: Any) -> str:
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
