"""`SweepResult`: the values of a sweep.

`best.py` compares its points, `frames.py` makes datasets and frames of it, `plot.py`
draws it, and `files.py` writes and reads it: a saved result is a finished store, and
any store can be loaded.
"""

import dataclasses
import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool, Int8, Int64, UInt32

from .._check import check_choice
from .._errors import message, optional, type_error, value_error
from .._reduce import Over, as_over
from .._spaces import Indices, Space, as_index, cells_of, indices, is_several, joined
from .._store import (
    FAILED,
    MISSING,
    OK,
    Gaps,
    Store,
    StoredArray,
    StoreLike,
    as_files,
    check_zarr,
    count_in,
    disk_errors,
    first_in,
    joined_gaps,
    open_store,
    picked_gaps,
    ranges_of,
    statuses_in,
    well_formed,
)
from .._tree import leaf_text, leaves_with_names
from .._types import Axes, DataFrame, Dataset, PyTree
from .best import Best, Compared, means_of, replicates, scores
from .files import ERRORS, LOAD, attributes, check_folder, fields_in, save
from .frames import dataset_of, frame_of, reduction_dataset
from .names import NamedDims
from .plot import draw

_BEST = "SweepResult.best"

# The attributes of a file that describe its whole space, but not a part of it.
_OF_THE_SPACE = ("space", "space_mode", "points")

_STATIC = {"static": True}
"""The metadata of a field that is not a leaf of the pytree."""

_LISTED = 5


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
    has if points are missing; failed points count). `to_xarray` and `plot` show the
    reduction, and methods that need the value at one point raise.

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
    output_coords: NamedDims = dataclasses.field(default_factory=dict)

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
    def status(self) -> Int8[np.ndarray, " points"]:
        """The status of each point: 0 not computed yet, 1 has a value, 2 failed.

        `status`, `ok` and `missing` create arrays of one byte for each point at each
        access; the result itself keeps only ranges of points. `repr(result)` counts the
        points of each status without an array.
        """
        return statuses_in(self._gaps, len(self))

    @property
    def ok(self) -> Bool[np.ndarray, " points"]:
        """True for each point that has a value."""
        return self.status == OK

    @property
    def missing(self) -> Bool[np.ndarray, " points"] | None:
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
        allowed = self.ok & ~np.isnan(compared)
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
        optional("SweepResult.to_xarray", "xarray")
        named, attrs = self.output_coords, attributes(self.space, self._provenance)
        if self._errors:
            spans = {text: ranges_of(points) for text, points in self._errors.items()}
            attrs[ERRORS] = json.dumps(spans)
        if self.points is not None:
            attrs["points_reduced"] = self.points
            return reduction_dataset(self.values, named, attrs)
        return dataset_of(self.values, self.space, named, self.status, attrs)

    def to_pandas(self) -> DataFrame:
        """Return the result as a `pandas.DataFrame` with one row for each point.

        Columns are the axes and the outputs by their paths, and last `status`: 1 for a
        point that has a value, 2 for a failed point, 0 for a missing one. If points
        failed, the column `error` has the error text, and `None` at other points.
        Arrays have a column for each entry (`w.0`, `w.1`). The name of an output gets
        the prefix `result.` if it, or one of its columns, is also an axis or another
        column. To drop failed points, use `frame[frame["status"] == 1]`.

        **Raises:** `TypeError` if all points were reduced to one value: an output of
        the reduction is `result.to_xarray()[name].to_dataframe()`; `ValueError` if two
        columns of the axes have the same name.

        Needs `pip install 'eqx_pipe[sweep]'`."""
        self._check_all_values("to_pandas")
        optional("SweepResult.to_pandas", "pandas")
        return frame_of(self.values, self.space, self.status, self.errors)

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
        save(path, self, self._provenance, overwrite)

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
        check_zarr(LOAD)
        files = as_files(LOAD, path, "path")
        with disk_errors(files.path_of(), "be read", LOAD):
            check_folder(files)
            return result_in(open_store(LOAD, files))

    @property
    def _provenance(self) -> dict[str, Any]:
        """The provenance, as texts and numbers."""
        moment = datetime.datetime.fromtimestamp(self.started, datetime.UTC)
        made = {"function": self.function, "batch_size": self.batch_size}
        made |= {"devices": self.num_devices}
        made |= {"started": moment.isoformat(timespec="seconds"), **dict(self.made)}
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


def result_in(store: Store) -> SweepResult:
    """Return the result in an open store; raise as `SweepResult.load`."""
    if "reduce" in store.record:
        raise value_error(
            LOAD,
            f"the store {store.path!r} keeps the states of a reduction.",
            "Call the same sweep with the same `reduce` and `store`, which computes "
            "missing points. `xarray.open_zarr` shows the states.",
        )
    with well_formed(LOAD, store.files):
        return SweepResult(**fields_in(store))
