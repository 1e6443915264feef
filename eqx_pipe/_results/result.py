"""`SweepResult`: the values of a sweep, and its datasets, frames and files.

After the class come the names of variables, dims and coordinates, which all formats
share and which determine the layout of a store; then datasets of xarray and frames of
pandas; then files. A saved result is a finished store, and any store can be loaded.

A store has arrays by name. Loading a result from it also requires the structure of the
outputs and of the points, the dtypes that files do not support, and the kinds of PRNG
keys. They are written as JSON, the schema, so that reading them runs no code.
"""

import base64
import dataclasses
import datetime
import functools as ft
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, TypeAlias, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float64, Int8, Int64, Shaped, UInt32

from .._check import check_choice, check_distinct
from .._errors import (
    describe_value,
    message,
    nearest,
    optional,
    type_error,
    value_error,
)
from .._jaxprs import digest, text_of
from .._reduce import Extreme, Over, ReducerTree, as_over
from .._run import needs_value
from .._spaces import (
    POINT,
    Axis,
    Geometry,
    Indices,
    LoadedValues,
    Space,
    Static,
    as_index,
    at_least_one,
    axis_name,
    axis_structs,
    cells_of,
    entry_names,
    flat_columns,
    indices,
    is_axis,
    is_several,
    joined,
    raw_shape,
)
from .._store import (
    FAILED,
    LONGEST,
    MISSING,
    OK,
    Chunks,
    Files,
    Folder,
    Gaps,
    Marks,
    Store,
    StoredArray,
    StoreLayout,
    StoreLike,
    Taken,
    Variable,
    as_files,
    check_vacant,
    check_zarr,
    choose_chunks,
    count_in,
    disk_errors,
    exists,
    first_in,
    is_name,
    joined_gaps,
    lay_out,
    open_store,
    picked_gaps,
    ranges_of,
    settle,
    well_formed,
)
from .._tree import (
    as_data,
    key_kind,
    leaf_text,
    leaves_with_names,
    nbytes,
    on_device,
    path_name,
    struct_of,
)
from .._types import Axes, DataFrame, Dataset, PyTree
from .plot import draw

OutputCoords: TypeAlias = Mapping[
    str, Mapping[str, Sequence[int | float | str] | Array | np.ndarray | None]
]
"""The dims of one value of each output, in order, with coordinates; keyed by path."""

KnownCoords: TypeAlias = dict[str, dict[str, np.ndarray | None]]
"""The same after checks, with NumPy arrays."""

ERRORS = "errors"
"""The attribute of a dataset with the error texts."""

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
    has if points are missing; failed points count). `to_xarray`, `to_pandas` and `plot`
    show the reduction, and methods that need the value at one point raise.

    If the reducers reduce some dims only (`over=`), `space` has the other dims, and the
    values have one entry for each cell, that is, for each point of these dims. A cell
    is `ok` if one of its points has a value; `Sum(lambda out: 1, over=...)` counts
    them.

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
    function: str = dataclasses.field(default="", metadata=_STATIC)
    made: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), metadata=_STATIC)
    steps: Steps | None = None
    _errors: dict[str, Int64[np.ndarray, " _failed"]] = dataclasses.field(
        default_factory=dict
    )
    output_coords: KnownCoords = dataclasses.field(default_factory=dict)

    # `_gaps` are the ranges of points without a value, each with its status. `_errors`
    # has the points, in order, of each error text.

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
        marks = Marks(self._gaps, len(self), kinds)
        return marks if len(marks) > _LARGEST else marks[...]

    @property
    def ok(self) -> Bool[np.ndarray | Marks, " points"]:
        """True for each point that has a value."""
        return self.status == OK

    @property
    def missing(self) -> Bool[np.ndarray | Marks, " points"] | None:
        """True for each point that is not computed yet; `None` if all are."""
        return self.status == MISSING if count_in(self._gaps, MISSING) else None

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
        several = (self.values, self.steps)
        values, steps = jtu.tree_map(lambda leaf: leaf[i], several)
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
        )

    def __iter__(self) -> Iterator[PyTree]:
        self._check_all_values("iteration")
        return (self[i] for i in range(len(self)))

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
          function from the output at one point to a scalar, which reads all values of a
          store at once. Not needed if the output is one scalar.
        - `mode`: `"min"` or `"max"`.
        - `over`: the dims of replicates, such as `"seed"`: compare the mean score over
          these dims, in float64, so that a setting is not chosen for one lucky seed. A
          setting with a replicate that failed, is missing or has a NaN is never
          selected. (Keyword only.)

        **Returns:** an object with `.index`, `.point`, `.value` (the scalar that was
        compared) and `.output` (the whole output there). With `over`, `.index` and
        `.output` are those of all replicates.

        **Raises:** `ValueError` if `by` does not name a scalar, if `over` does not name
        dims of the grid or names all of them, or if no point or setting can be
        selected.

        !!! example

            >>> import eqx_pipe as ep
            >>> best = ep.sweep(lambda x: (x - 2) ** 2, ep.Linspace(0, 4, 9)).best()
            >>> best.index, best.point.item()
            (4, 2.0)
        """
        self._check_all_values("best")
        check_choice(_BEST, "mode", mode, ("min", "max"))
        compared = scores(_BEST, self.values, len(self), by)
        allowed = self.ok[...] & ~np.isnan(compared)
        settings, points, one = self.space, range(len(self)), "point"
        if over is not None:
            over = as_over(over, _BEST, "")
            settings = cells_of(_BEST, self.space, over)
            points, one = replicates(self.space, over), "setting has a replicate that"
            compared = means_of(self.space, over, compared, allowed)
            allowed = ~np.isnan(compared)
        candidates = np.flatnonzero(allowed)
        if not len(candidates):
            wrong = f"every {one} failed, or has the value NaN."
            raise value_error(_BEST, wrong, "Look at `result.ok` and `result.values`.")
        # The first of `ranked`, in a thousandth of its time.
        pick = np.argmin if mode == "min" else np.argmax
        i = int(candidates[pick(compared[candidates])])
        index: Any = points[i]
        output = jtu.tree_map(lambda leaf: leaf[index], self.values)
        columns = settings[i : i + 1].geometry.columns()
        coordinates = {name: column[0] for name, column in columns.items()}
        return Best(index, settings.point(i), compared[i].item(), output, coordinates)

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
        xarray = optional("SweepResult.to_xarray", "xarray")
        known, attrs = self.output_coords, attributes(self.space, self._provenance)
        if self._errors:
            spans = {text: ranges_of(points) for text, points in self._errors.items()}
            attrs[ERRORS] = json.dumps(spans)
        if self.points is not None:
            attrs["points_reduced"] = self.points
            return reduction_dataset(self.values, known, attrs)
        leaves = jtu.tree_leaves(self.values)
        structs = jtu.tree_map(ft.partial(struct_of, drop=1), self.values)
        names, dims = names_of(structs, self.space, known), self.space.dims
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
        coordinates[names.status] = tuple(dims), self.status[...].reshape(lengths), {}
        return xarray.Dataset(variables, coordinates, attrs)

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
        pandas = optional("SweepResult.to_pandas", "pandas")
        if self.points is not None:
            return reduction_frame(self.to_xarray())
        columns = self.space.geometry.entry_columns(storable)
        taken = TakenNames({*columns, *self.space.axes()})
        (column,) = taken.free(["status"], "sweep.")
        structs = jtu.tree_map(ft.partial(struct_of, drop=1), self.values)
        pairs = zip(
            shapes_of(structs).items(), jtu.tree_leaves(self.values), strict=True
        )
        for (path, shape), leaf in pairs:
            name = taken.free([path, *entry_names(path, shape)])[0]
            columns |= flat_columns(name, storable(leaf))
        columns[column] = self.status[...]
        errors = self.errors
        if errors:
            texts = [errors.get(i) for i in range(len(self))]
            (column,) = TakenNames(columns).free(["error"], "sweep.")
            columns[column] = np.array(texts, object)
        return pandas.DataFrame(columns)

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
        results: the mean of curves is a line, quantiles of curves are a line for each
        level, and the counts of a `Histogram` are steps between its edges.

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
        roles = {"x": x, "y": y, "hue": hue, "row": row, "col": col}
        if ax is not None:
            options["ax"] = ax
        return draw(self, variable, sel or {}, roles, options)

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
        check_zarr(_SAVE)
        files, space = as_files(_SAVE, path, "path"), self.space
        where = files.path_of()
        suffix = os.path.splitext(where)[1]
        if suffix != ".zarr" and isinstance(path, str | os.PathLike):
            raise value_error(
                _SAVE,
                f"`path` is {where!r}, with the suffix {suffix!r}.",
                "Give a path that ends in `.zarr`. For NetCDF: "
                "`result.to_xarray().to_netcdf(path)`.",
            )
        leaves, status = jtu.tree_leaves(self.values), self.status[...]
        structs = jtu.tree_map(ft.partial(struct_of, drop=1), self.values)
        row = [struct_of(storable(leaf[:0]), drop=1) for leaf in leaves]
        most = max(1, _CHUNK_BYTES // max(1, sum(map(nbytes, row))))
        lengths = tuple(space.dims.values())
        chunks = choose_chunks(lengths, min(space.size, most), most)
        made, known = self._provenance, self.output_coords
        layout = layout_of(
            _SAVE, structs, row, space, known, chunks, made, {"saved": True}
        )

        def fill(store: Store) -> None:
            for number in range(len(store.chunks)):
                first, last = store.chunks.span(number)
                values = [storable(leaf[first:last]) for leaf in leaves]
                errors = {
                    text: points[(points >= first) & (points < last)] - first
                    for text, points in self._errors.items()
                }
                rows = values, status[first:last], errors
                if not store.commit(number, *rows, is_new=True):
                    raise Taken("another process, which saves a result there")

        with disk_errors(where, "be written", _SAVE):
            _put(files, layout, fill, overwrite)

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
        numbers, texts and, in NumPy, arrays of at most 1,024 bytes are kept; a larger
        array becomes a `jax.ShapeDtypeStruct`, and an object becomes a text.

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
        check_zarr(_LOAD)
        files = as_files(_LOAD, path, "path")
        folder = files.path_of()
        with disk_errors(folder, "be read", _LOAD):
            if isinstance(files, Folder):
                _check_folder(files.path)
            return result_in(open_store(_LOAD, files))

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
        dims = ", ".join(f"{name}: {n:,}" for name, n in self.space.dims.items())
        lines = [f"SweepResult({len(self):,} points; {dims})"]
        is_reduced = self.points is not None
        if is_reduced:
            lines.append(f"reduced over {self.points:,} points")
        for name, leaf in leaves:
            lines.append(f"{name:<{width}}  {_leaf_row(leaf, is_reduced)}")
        for word, status in (("failed", FAILED), ("missing", MISSING)):
            count = count_in(self._gaps, status)
            if count:
                listed = [str(i) for i in first_in(self._gaps, status, _LISTED)]
                shown = ", ".join(listed + ["..."] * (count > _LISTED))
                lines.append(f"{count:,} points {word}: {shown}")
        took = "" if np.isnan(self.seconds) else f"{self.seconds:.3g} s, "
        devices = f"{self.num_devices} device" + "s" * (self.num_devices != 1)
        run = f"{took}batch size {self.batch_size}, {devices}"
        if self.steps is not None:
            run += f", {self.steps.waste:.3g} steps for each one needed"
        return "\n  ".join([*lines, run])


def _short(value: Any) -> str:
    """Return a coordinate as text."""
    if np.size(value) > _FEW:
        return leaf_text(value)
    value = np.asarray(value).tolist()
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


def replicates(
    space: Space, over: Sequence[str]
) -> Int64[np.ndarray, "settings replicates"]:
    """Return the points of each setting, which differ along the dims `over`."""
    points = np.arange(space.size).reshape(tuple(space.dims.values()))
    dims = [k for k, dim in enumerate(space.dims) if dim in over]
    points = np.moveaxis(points, dims, range(-len(dims), 0))
    return points.reshape(-1, math.prod(points.shape[-len(dims) :]))


def means_of(
    space: Space,
    over: Sequence[str],
    scores: Shaped[np.ndarray, " points"],
    allowed: Bool[np.ndarray, " points"],
) -> Float64[np.ndarray, " settings"]:
    """Return the mean score of each setting; NaN if a replicate is not allowed."""
    # A NaN makes the mean of its setting NaN, as infinities of both signs do.
    known = np.where(allowed, scores.astype(np.float64), np.nan)
    with np.errstate(invalid="ignore"):
        return known[replicates(space, over)].mean(axis=1)


def scores(function: str, values: PyTree, size: int, by: Compared) -> np.ndarray:
    """Return the score of each of `size` points."""
    if callable(by):
        name, numbers = "by", _scored(values, by)
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


def _scored(values: PyTree, by: Callable[[PyTree], Any]) -> np.ndarray:
    outputs = jtu.tree_map(lambda leaf: on_device(leaf[:]), values)
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


def concatenated(
    results: Sequence[SweepResult], over: Sequence[str] = ()
) -> SweepResult:
    """Return the points of several results with the same axes and outputs, in order.

    With `over`, they have these dims of replicates, and are joined along the other.
    """

    def arrays(*leaves: Any) -> Any:
        parts = [x[...] if isinstance(x, StoredArray) else x for x in leaves]
        on_host = not any(isinstance(leaf, jax.Array) for leaf in parts)
        return (np if on_host else jnp).concatenate(parts)

    errors: dict[str, np.ndarray] = {}
    begin = 0
    for result in results:
        for text, points in result._errors.items():
            errors[text] = np.append(errors.get(text, points[:0]), begin + points)
        begin += len(result)
    spaces = [result.space for result in results]
    whole = dataclasses.replace(
        results[0],
        values=jtu.tree_map(arrays, *(result.values for result in results)),
        space=joined(spaces, over),
        _gaps=joined_gaps([(result._gaps, len(result)) for result in results]),
        batch_size=max(result.batch_size for result in results),
        seconds=sum(result.seconds for result in results),
        made=(),
        _errors=errors,
    )
    if not over:
        return whole
    begins = np.cumsum([0, *map(len, spaces)])
    parts = [b + replicates(x, over) for b, x in zip(begins, spaces, strict=False)]
    order = np.empty(len(whole), np.int64)
    order[replicates(whole.space, over)] = np.concatenate(parts)
    return dataclasses.replace(whole[order], space=whole.space)


def _leaf_row(leaf: Any, is_reduced: bool) -> str:
    """Return the type of an array, or its value if it is a single reduced number."""
    number = is_reduced and np.ndim(leaf) == 0
    if number and hasattr(leaf, "dtype") and leaf.dtype.kind in "biufc":
        return f"{leaf_text(leaf)}  {leaf.item():.6g}"
    return leaf_text(leaf)


# Names of variables, dims and coordinates.


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

    def text(coords: np.ndarray | None) -> str:
        if coords is None:
            return "no values"
        first = coords[:3].tolist()
        return f"{len(coords)} values, {first}... #{digest(text_of(coords))[:8]}"

    return {
        path: "; ".join(f"{dim}: {text(coords)}" for dim, coords in dims.items())
        for path, dims in known.items()
    }


def check_output_coords(
    known: KnownCoords,
    shapes: Mapping[str, tuple[int, ...]],
    taken: set[str],
    function: str = "sweep",
) -> None:
    """Raise a `ValueError` unless the names fit outputs of these shapes.

    `taken` are the names of the space, and `function` is the public function.
    """
    misfit = ft.partial(_misfit, function)
    lengths: dict[str, int] = {}
    for path, dims in known.items():
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


def _misfit(function: str, path: str, wrong: str, cure: str) -> ValueError:
    return value_error(function, f"`output_coords[{path!r}]` {wrong}.", f"{cure}.")


def reduced_coords(
    reducers: ReducerTree, results: PyTree, known: KnownCoords, taken: set[str]
) -> KnownCoords:
    """Return the names of the dims of reductions, by their paths.

    `known` names dims of outputs, which their reductions keep. The dims that a reducer
    adds lead. Their names get a prefix if they are `taken`, or are those of other
    coordinates.
    """
    named: KnownCoords = {}
    taken = taken | dims_of(known)
    added: dict[str, np.ndarray | None] = {}
    for reducer_path, reducer, part in reducers.parts(results):
        for leaf_path, leaf in leaves_with_names(part):
            path = ".".join(filter(None, (reducer_path, leaf_path))) or "value"
            leading, output = reducer.dims_at(leaf_path, shape := _shape_of(leaf))
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
            if dims or kept:
                named[path] = {**dims, **kept}
    return named


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
    if known:
        check_output_coords(known, shapes_of(outputs), taken)
    taken |= dims_of(known)
    (status,) = taken.free(["status"], "sweep.")
    dims = output_dims(outputs, known, taken)
    return Names(geometry, dims, status, inner, coords_of(known))


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


# Datasets and frames.


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


# Files.

_SAVE, _LOAD = "SweepResult.save", "SweepResult.load"
_FIELDS = (ERRORS, "eqx_pipe_store", "coordinates", "batch_size", "devices")
_FIELDS += ("seconds", "started", "function")
"""The attributes of a store that are fields of a result, or irrelevant to it."""

_CHUNK_BYTES = 64 * 1024 * 1024
"""The maximum bytes of the values in a chunk, unless one point has more."""


# Keep the record of a store small, since every reader of the store reads it.
_MOST_BYTES = 1024


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
    coordinates = names.coordinates()
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


def _put(files: Files, layout: StoreLayout, fill: Any, overwrite: bool) -> None:
    """Write a new store, or replace an existing one."""
    path, old = files.path_of(), None
    begun = exists(files) or os.path.isfile(path)
    if begun and not overwrite:
        raise _taken(f"{path!r} already exists.")
    try:
        if begun:
            old = open_store(_SAVE, files)
        else:
            check_vacant(_SAVE, files, ())
    except ValueError as error:
        wrong = f"only a result of eqx_pipe can be overwritten, not {path!r}."
        raise _taken(wrong) from error
    try:
        files.make()
        with files.lock("all"):
            lay_out(files, layout, fill, old)
            if old is not None:
                settle(files)
    except Taken as taken:
        raise _taken(f"a sweep fills the store {path!r} ({taken}).") from None


def _taken(wrong: str) -> FileExistsError:
    cure = "Choose another path, remove it yourself, or give `overwrite=True` for a "
    cure += "result that was saved before."
    return FileExistsError(message(_SAVE, wrong, cure))


def _check_folder(folder: Path) -> None:
    """Raise unless there may be a store in a folder."""
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        wrong = f"{str(folder)!r} does not exist."
        results = sorted(p.name for p in folder.parent.glob("*.zarr"))
        cure = "A result is the folder of `save` or `store=`, and relative paths begin "
        cure += f"where Python runs. {nearest(folder.name, results)}"
        raise FileNotFoundError(message(_LOAD, wrong, cure)) from None
    others = {"round-0000.zarr": "search.SearchResult", "checkpoint": "TrainResult"}
    for name in others:
        if (folder / name).exists():
            wrong = f"{str(folder)!r} is not the store of a sweep."
            raise value_error(_LOAD, wrong, f"Read it by `{others[name]}.load`.")


def result_in(store: Store) -> SweepResult:
    """Return the result in an open store; raise as `SweepResult.load`."""
    if "reduce" in store.record:
        raise value_error(
            _LOAD,
            f"the store {store.path!r} keeps the states of a reduction.",
            "Call the same sweep with the same `reduce` and `store`, which computes "
            "missing points. `xarray.open_zarr` shows the states.",
        )
    with well_formed(_LOAD, store.files):
        return SweepResult(**_fields(store))


def _fields(store: Store) -> dict[str, Any]:
    """Return the fields of the result in a store."""
    gaps, errors, done = store.account()
    names, attributes = store.names(), store.root["attributes"]
    schema = store.record["schema"]

    def stored(name: str, dtype: Any, kind: str | None = None) -> Any:
        array = StoredArray(store, names.index(name), dtype, kind, done)
        return array[...] if "saved" in store.record else array

    def leaf(node: dict[str, Any]) -> Any:
        return stored(node["array"], jnp.dtype(node["dtype"]), node.get("key"))

    seconds = attributes.get("seconds", "nan")  # unknown while a sweep runs
    return dict(
        values=_read(schema["outputs"], leaf),
        space=space_from(schema, store.coordinate),
        _gaps=gaps,
        batch_size=int(attributes["batch_size"]),
        num_devices=int(attributes["devices"]),
        started=datetime.datetime.fromisoformat(attributes["started"]).timestamp(),
        seconds=float(seconds),
        function=attributes.get("function", ""),
        made=tuple((k, v) for k, v in attributes.items() if k not in _FIELDS),
        _errors=errors,
        output_coords={
            path: {dim: _coords(store, dim) for dim in dims}
            for path, dims in schema["output_dims"].items()
        },
    )


def _coords(store: Store, dim: str) -> np.ndarray | None:
    if dim not in store.record["coordinates"]:
        return None
    values = store.coordinate(dim)
    return values.astype(np.str_) if values.dtype.kind == "O" else values


def schema_of(
    outputs: PyTree, names: list[str], space: Space, known: KnownCoords
) -> dict[str, Any]:
    """Return the schema of a result.

    `outputs` are the shapes and dtypes of one output, and `names` the variables of its
    leaves, in order. `known` are the named dims of outputs.
    """
    name = iter(names)

    def variable(leaf: Any, _: Any) -> Any:
        return {"array": next(name), **_kind(leaf)}

    def part(leaf: Any, path: Any) -> Any:
        return _axis(leaf, path, space) if is_axis(leaf) else _constant(leaf)

    return {
        "mode": "zip" if space.geometry.is_part else space.mode,
        "outputs": _written(outputs, variable),
        "space": _written(space.tree, part),
        "output_dims": {path: list(dims) for path, dims in known.items()},
    }


def space_from(schema: dict[str, Any], read: Callable[[str], Any]) -> Space:
    """Return the space, with `Values` and `Static` axes from coordinates."""

    empty = False

    def part(node: dict[str, Any]) -> Any:
        nonlocal empty
        attrs = node.get("attrs", {})
        label, unit = attrs.get("long_name"), attrs.get("units")
        if "axis" in node:
            values, empty = at_least_one(_as_kind(read(node["axis"]), node))
            settings = {name: node[name] for name in ("is_log", "draws", "dim")}
            return LoadedValues(values, **settings, label=label, unit=unit)
        if "static" in node:
            values, empty = at_least_one(np.asarray(read(node["static"])))
            values = values.tolist()
            return Static(values, dim=node["dim"], label=label, unit=unit)
        return _leaf(node)

    space = Space(_read(schema["space"], part), schema["mode"])
    return space[:0] if empty else space


def _as_kind(array: Any, kind: dict[str, Any]) -> Any:
    """Return an array in its original dtype, or as PRNG keys."""
    array = np.asarray(array).astype(jnp.dtype(kind["dtype"]), copy=False)
    if "key" not in kind:
        return array
    return jr.wrap_key_data(jnp.asarray(array), impl=kind["key"])


def _kind(leaf: Any) -> dict[str, Any]:
    key = key_kind(leaf)
    if key is None:
        return {"dtype": str(leaf.dtype)}
    return {"dtype": "uint32", "key": str(key)}


def _axis(axis: Axis, path: Any, space: Space) -> Any:
    name = axis_name(path)
    if axis.is_static:
        return {"static": name, "dim": axis.dim, "attrs": axis.attrs}
    structs = axis_structs(name, axis, space.axis_key(name))
    several = jtu.tree_structure(structs) != jtu.tree_structure(0)

    def part(leaf: Any, path: Any) -> Any:
        # If values are pytrees, there is an axis for each leaf, all of one dim.
        full = ".".join([name, *([path_name(path)] if path else [])])
        dim = name if several and axis.dim is None else axis.dim
        return {
            "axis": full,
            "dim": dim,
            "is_log": axis.is_log,
            "draws": axis.replicates,
            "attrs": axis.attrs,
            **_kind(leaf),
        }

    return _written(structs, part)


def _constant(leaf: Any) -> Any:
    """Return a constant of the space; large arrays and other objects as text."""
    if type(leaf) in (bool, int, float, str):
        # NaN and infinity are allowed, since Python's JSON reads the schema.
        return {"value": leaf}
    kind = getattr(getattr(leaf, "dtype", None), "kind", "O")  # none for keys
    if kind not in "biufcV" or not hasattr(leaf, "shape"):
        return {"value": repr(leaf)}
    entry = {"struct": list(leaf.shape), "dtype": str(leaf.dtype)}
    if not isinstance(leaf, jax.ShapeDtypeStruct) and leaf.nbytes <= _MOST_BYTES:
        entry["data"] = base64.b64encode(np.asarray(leaf).tobytes()).decode()
    return entry


def _leaf(node: dict[str, Any]) -> Any:
    if "value" in node:
        return node["value"]
    shape, dtype = tuple(node["struct"]), jnp.dtype(node["dtype"])
    if "data" not in node:
        return jax.ShapeDtypeStruct(shape, dtype)
    return np.frombuffer(base64.b64decode(node["data"]), dtype).reshape(shape)


def _written(node: Any, leaf: Callable[[Any, Any], Any], path: Any = ()) -> Any:
    """Return a pytree as JSON: dicts, lists, tuples; other containers by path."""
    if node is None:
        return None
    if is_axis(node):
        return leaf(node, path)
    children = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)[0]
    if len(children) == 1 and not children[0][0]:
        return leaf(node, path)
    steps = [(step, _written(child, leaf, (*path, *step))) for step, child in children]
    if type(node) in (list, tuple):
        return {type(node).__name__: [child for _, child in steps]}
    if isinstance(node, dict) and all(isinstance(k, str | int) for k in node):
        # Use the order written, since JAX sorts the keys.
        written = {step[0].key: child for step, child in steps}
        return {"dict": [[key, written[key]] for key in node]}
    return {"dict": [[path_name(step), child] for step, child in steps]}


def _read(node: Any, leaf: Callable[[Any], Any]) -> Any:
    if node is None:
        return None
    if "dict" in node:
        return {key: _read(child, leaf) for key, child in node["dict"]}
    if "list" in node:
        return [_read(child, leaf) for child in node["list"]]
    if "tuple" in node:
        return tuple(_read(child, leaf) for child in node["tuple"])
    return leaf(node)
