"""`SweepResult`: the values of a sweep, and what made them."""

import dataclasses
import datetime
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool, Int8, UInt32

from ..._check import check_choice
from ..._errors import message, type_error
from ..._spaces import Indices, Space, as_index, indices, is_several
from ..._types import PyTree
from ..store import (
    MISSING,
    OK,
    Gaps,
    count_in,
    picked_gaps,
    ranges_of,
    status_in,
    stored_in,
)
from .best import Best, Compared, best
from .cells import CellPoints, CellValues
from .output_coords import KnownCoords
from .raised import Raised
from .select import Wanted, selected
from .view import ResultView, run_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame
    from xarray import Dataset
else:  # imported where they are used
    Axes = DataFrame = Dataset = Any

_READ_BYTES = 64 * 1024 * 1024
"""How much of a store is held at once where all of it is looked at."""

ERRORS = "errors"
"""The attribute of a dataset with the texts of errors."""

# The attributes of a file that hold for its whole space, but not for a part of it.
_OF_THE_SPACE = ("space", "mode", "points")


_STATIC = {"static": True}
"""The metadata of a field that is no leaf of the pytree."""


class Steps(eqx.Module):
    """The steps of the `while_loop`s at each point of a sweep, as they were counted.

    `needed` is how many the point takes by itself. `executed` is how many its lane went
    through, until the slowest point of its batch had ended. Counts end at 2^32 - 1.
    """

    needed: UInt32[np.ndarray, " points"]
    executed: UInt32[np.ndarray, " points"]

    def __getitem__(self, part: slice | np.ndarray) -> "Steps":
        return Steps(self.needed[part], self.executed[part])

    @property
    def waste(self) -> float:
        """The number of steps executed for each one that was needed."""
        needed, executed = self._sums
        return executed / needed if needed else 1.0

    @property
    def attrs(self) -> dict[str, Any]:
        """The sums, for a file."""
        needed, executed = self._sums
        return {
            "steps_needed": needed,
            "steps_executed": executed,
            "waste": round(self.waste, 4),
        }

    @property
    def _sums(self) -> tuple[int, int]:
        both = self.needed, self.executed
        needed, executed = (int(np.sum(x, dtype=np.uint64)) for x in both)
        return needed, executed


# A dataclass and no Module, whose constructor would take a fifth of a small sweep.
@jtu.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SweepResult:
    """The values of a function at the points of a space.

    `values` is the pytree of outputs with a leading axis over the points, in NumPy
    arrays. `space` is the space that was swept and `ok` says for each point whether it
    has a value. `result[i]` is the output at one point; a slice `result[a:b]`, a list
    of indices `result[[3, 7]]` and a mask `result[result.ok]` give a result again;
    iteration gives one output after the other.

    With `reduce=`, `values` is the reduction, `points` says of how many points (fewer
    than the space has if a reducer stopped the sweep, or if a store has not all of
    them; failed points count), and what asks for the value at one point is refused.
    `ok` and `missing` end where the sweep was stopped.

    Where the reducers say `over=` which dims they reduce, `space` has the other dims
    and the values have one entry for each of their points, a cell. `cells.points` says
    how many points of each cell were computed and `cells.failed` how many of these
    failed; a cell is `ok` if one of its points has a value.

    `output_coords` has the names and coordinates of the dims of outputs that were
    given, by the outputs' paths.

    With `count_steps=True`, `steps` has for each point how many steps its loops
    `needed` and how many were `executed`, and `waste` says how many were executed for
    each one that was needed.

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
    _raised: Raised | None = None
    cells: CellPoints | None = None
    output_coords: KnownCoords = dataclasses.field(default_factory=dict)

    # `_gaps` are the ranges of points without a value, each with its status; `_raised`
    # has the texts of errors; a sweep that was stopped has `_ended` points.

    @property
    def errors(self) -> dict[int, str]:
        """What was raised at each point that failed, as a line of text by its index.

        Points fail without ending the sweep under `on_error="mark"`; a point that
        fails together with others is looked for until it is alone.

        !!! example

            >>> import eqx_pipe as ep, equinox as eqx
            >>> def root(x):
            ...     return eqx.error_if(x, x < 0, "no root") ** 0.5
            >>> result = ep.sweep(root, ep.Linspace(-1, 2, 4), on_error="mark")
            >>> result.errors
            {0: 'EquinoxRuntimeError: no root'}
        """
        return {} if self._raised is None else self._raised.as_dict()

    @property
    def waste(self) -> float | None:
        """How many steps of loops were executed for each one that was needed.

        1 if no point waited for another, or if there is no `while_loop`; `None` if
        steps were not counted (`count_steps=True`), or if the result is from a file,
        whose attributes have it.
        """
        return None if self.steps is None else self.steps.waste

    @property
    def status(self) -> Int8[np.ndarray, " points"]:
        """For each point: 0 not computed yet, 1 there is a value, 2 it failed."""
        return status_in(self._gaps, self._reached)

    @property
    def ok(self) -> Bool[np.ndarray, " points"]:
        """Whether each point has a value."""
        if not len(self._gaps):
            return np.broadcast_to(np.True_, (self._reached,))  # takes no memory
        return self.status == OK

    @property
    def missing(self) -> Bool[np.ndarray, " points"] | None:
        """Whether each point was not computed yet; `None` if all were."""
        return self.status == MISSING if count_in(self._gaps, MISSING) else None

    @property
    def _reached(self) -> int:
        """Of how many points there is a status."""
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
        if isinstance(i, slice | np.ndarray):
            values = jtu.tree_map(lambda leaf: leaf[i], self.values)
            index = np.arange(*i.indices(len(self))) if isinstance(i, slice) else i
            made = tuple(pair for pair in self.made if pair[0] not in _OF_THE_SPACE)
            raised = self._raised
            if raised is not None:
                raised = raised.picked(index)
            return dataclasses.replace(
                self,
                values=values,
                space=self.space[i],
                _gaps=picked_gaps(self._gaps, index),
                made=made,
                steps=None if self.steps is None else self.steps[i],
                _raised=raised,
                cells=None if self.cells is None else self.cells[i],
            )
        one = _one(i, len(self))
        return jtu.tree_map(lambda leaf: leaf[one], self.values)

    def __iter__(self) -> Iterator[PyTree]:
        self._check_all_values("iteration")
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return self._view().text()

    def _repr_html_(self) -> str:
        return self._view().html()

    def _view(self) -> ResultView:
        return ResultView(
            space=self.space,
            values=self.values,
            gaps=self._gaps,
            ended=self._reached,
            points=self.points,
            cells=self.cells,
            run=run_text(self.batch_size, self.num_devices, self.seconds, self.waste),
        )

    @property
    def _outputs(self) -> PyTree:
        """All that has a value at each point."""
        return (
            self.values if self.cells is None else CellValues(self.values, self.cells)
        )

    def _check_all_values(self, asked: str) -> None:
        if self.points is not None:
            raise type_error(
                "SweepResult",
                f"`{asked}` needs the values at all points, and this sweep has "
                "reduced them.",
                "The reduction is `result.values`; sweep without `reduce=`, or "
                "over a part of the space, to keep the values.",
            )

    def sel(
        self, wanted: Mapping[str, Wanted] | None = None, /, **more: Wanted
    ) -> "SweepResult":
        """The points at which axes have some values.

        **Arguments:**

        - `wanted`, `more`: what is wanted of each axis, by its path, as a dict or as
          keywords: a value; a list of values; or `slice(lo, hi)`, the numbers from `lo`
          to `hi`, both included. Floats are compared to rounding, and Python values of
          a `Static` axis by their text.

        **Returns:** a `SweepResult` of the points at which all are as wanted, of one
        dim named `point`. (For what keeps the dims: `result.to_xarray().sel(...)`.)

        **Raises:** `ValueError` for an axis that is not there, and for a value that no
        point has.

        **Laws:** `result.sel(a=x)` is `result[mask]` for the mask of the points whose
        `a` is `x`.

        !!! example

            >>> import eqx_pipe as ep
            >>> space = {"rate": ep.Geomspace(0.125, 1, 4), "on": ep.Values([0, 1])}
            >>> result = ep.sweep(lambda p: p["rate"] * p["on"], space)
            >>> result.sel(rate=[0.125, 1], on=1).values.tolist()
            [0.125, 1.0]
        """
        self._check_all_values("sel")
        found = selected(self.space, {**(wanted or {}), **more}, self.output_coords)
        return self[found]

    def grid(self) -> PyTree:
        """The values with one leading axis for each dim of the space, in order.

        **Shapes:** a leaf `(points, *shape)` of `values` becomes `(*dims, *shape)`. A
        zipped space and a slice have one dim.
        """
        self._check_all_values("grid")
        lengths = tuple(self.space.dims.values())
        return jtu.tree_map(
            lambda leaf: leaf.reshape(lengths + leaf.shape[1:]), self.values
        )

    def best(self, by: Compared = None, mode: str = "min") -> Best:
        """The point with the smallest or largest output.

        Points without a value and NaNs never win; ties go to the lowest index.

        **Arguments:**

        - `by`: what is compared: the path of a scalar output (`"loss"`, `"fit.loss"`),
          or a function from one output to a scalar. Not needed if the output is one
          scalar.
        - `mode`: `"min"` or `"max"`.

        **Returns:** an object with `.index`, `.point`, `.value` (the scalar that was
        compared) and `.output` (the whole output there).

        **Raises:** `ValueError` if `by` does not name a scalar, or if no point has a
        value that is a number.

        !!! example

            >>> import eqx_pipe as ep
            >>> best = ep.sweep(lambda x: (x - 2) ** 2, ep.Linspace(0, 4, 9)).best()
            >>> best.index, best.point.item()
            (4, 2.0)
        """
        self._check_all_values("best")
        check_choice("SweepResult.best", "mode", mode, ("min", "max"))
        return best(self.values, self.space, self.ok, by, mode, self._slices())

    def _slices(self) -> list[slice]:
        """All points, or neighbours few enough to be read from a store at once."""
        if stored_in(jtu.tree_leaves(self.values)) is None:
            return [slice(None)]
        row = sum(leaf.nbytes for leaf in jtu.tree_leaves(self.values)) // len(self)
        step = max(1, _READ_BYTES // max(1, row))
        return [slice(i, i + step) for i in range(0, len(self), step)]

    def to_xarray(self) -> Dataset:
        """The result as an `xarray.Dataset`.

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
        from .label import dataset

        self._check_all_values("to_xarray")
        made = _provenance(self)
        if self._raised is not None:
            found = self._raised.by_text().items()
            spans = {text: ranges_of(points) for text, points in found}
            made |= {ERRORS: json.dumps(spans)}
        return dataset(self._outputs, self.space, self.status, made, self.output_coords)

    def to_pandas(self) -> DataFrame:
        """The result as a `pandas.DataFrame` with one row for each point.

        Columns are the axes and the outputs by their paths, and last `status`: whether
        the point has a value (1), failed (2) or was not computed yet (0). If points
        failed, the column `error` says why, with `None` for the others. Arrays have a
        column for each entry (`w.0`, `w.1`). An output has `result.` before its name if
        that, or one of its columns, would be the name of an axis or of another column.
        To leave out what failed: `frame[frame["status"] == 1]`.

        **Raises:** `ValueError` if two columns of the axes have the same name.

        Needs `pip install 'eqx_pipe[sweep]'`.
        """
        from .label import frame

        self._check_all_values("to_pandas")
        return frame(self._outputs, self.space, self.status, self.errors)

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
    ) -> "Axes | np.ndarray":
        """Draw one output over the space, by xarray and matplotlib.

        One dim gives a line; two give a heat map, the first dim along x; three and four
        give one for each position on the others. An output that is an array at each
        point (a loss curve) gives a line for each point, over the position in it.
        Two axes of one dim (random draws, joint designs) give points coloured by the
        value. Replicates (`Seeds`, PRNG keys) are averaged; around lines a band shows
        one standard deviation.

        Axes are labelled by their `label` and `unit`, those of a `Geomspace` are
        logarithmic, and names (`Static`, bools) stand at the ticks. Points that failed,
        are NaN or infinite, or are not computed yet are marked, and a legend names the
        marks.

        **Arguments:**

        - `variable`: the output's name in `to_xarray()`, its path; not needed if there
          is only one.
        - `sel`: values to fix, as a dict from a dim, or a coordinate on it, to a value
          (of numbers the nearest is taken), or to a position on a dim without values,
          such as those of arrays. (Keyword only.)
        - `x`, `y`, `hue`, `row`, `col`: the dim, or coordinate on it, along x,
          along y, by the colour of lines, in rows and in columns of panels, as in
          xarray; by default as above. (Keyword only.)
        - `ax`: the matplotlib `Axes` to draw into; by default a new figure. (Keyword
          only.)
        - `options`: those of xarray's `plot.line`, `plot.pcolormesh` and
          `plot.scatter`, such as `cmap`, `norm`, `vmin`, `xscale`, `ylim`, `figsize`,
          `col_wrap`, and of matplotlib's functions below them.

        **Returns:** the `Axes`; an array of them if there are panels. The figure is
        `ax.figure`.

        **Raises:** `ValueError` if there are more dims than a picture has, or more than
        two axes of one dim without `x=` and `y=`. Needs
        `pip install 'eqx_pipe[sweep]'`.

        !!! example

            >>> import eqx_pipe as ep, matplotlib
            >>> matplotlib.use("agg")  # as on a machine without a screen
            >>> space = {"a": ep.Geomspace(0.01, 1, 5), "b": ep.Linspace(0, 1, 3)}
            >>> ax = ep.sweep(lambda p: p["a"] * p["b"], space).plot(sel={"b": 0.5})
            >>> ax.get_xscale(), ax.get_title()
            ('log', 'b = 0.5')
        """
        from .plot import plot

        self._check_all_values("plot")
        roles = {"x": x, "y": y, "hue": hue, "row": row, "col": col}
        data, outputs = self.to_xarray(), len(jtu.tree_leaves(self.values))
        return plot(self.space, data, outputs, variable, sel, roles, ax, options)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the result into a folder, which `SweepResult.load` and xarray open.

        It is the store of a finished sweep, in Zarr's format 3: with checksums, and
        with the names of `to_xarray()`. A save that fails leaves there what was there
        before. For NetCDF: `result.to_xarray().to_netcdf(path)`.

        **Arguments:**

        - `path`: the folder; its name ends in `.zarr`.
        - `overwrite`: whether a result that is there already may be replaced. (Keyword
          only.)

        **Raises:** `FileExistsError` if there is something at `path`; `ValueError` for
        another suffix. Needs `pip install 'eqx_pipe[sweep]'`.

        !!! example

            >>> import eqx_pipe as ep, tempfile
            >>> result = ep.sweep(lambda x: x**2, ep.Linspace(0, 3, 4))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     result.save(f"{folder}/squares.zarr")
            ...     ep.SweepResult.load(f"{folder}/squares.zarr").best(mode="max").index
            3
        """
        from .save import save

        self._check_all_values("save")
        errors = {} if self._raised is None else self._raised.by_text()
        outputs, made = self._outputs, _provenance(self)
        args = self.space, self.status, errors, self.output_coords, made
        save(path, overwrite, outputs, *args)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "SweepResult":
        """Return the result that was saved, or the one in the store of a sweep.

        It reads what `SweepResult.save` wrote, and a store that `sweep(store=)` fills,
        also while it is being filled: points that it does not have yet are not `.ok`,
        and values are read from it when they are asked for. Nothing in the file is run.

        What comes back is equal to what was saved, with these differences. In `.values`
        dicts, lists and tuples are what they were; other containers (dataclasses,
        modules, named tuples) come back as dicts by the names of their parts. In
        `.space` every axis is a `Values` axis of the same dim, with the same values bit
        for bit; one of `Static` values holds their numbers, or texts in the place of
        strings, functions and other objects. Of what stands beside the axes numbers,
        texts and arrays of at most 1,024 bytes come back; a larger array comes back as
        its `jax.ShapeDtypeStruct`, and an object as its text.

        **Arguments:**

        - `path`: the folder that `SweepResult.save` or `sweep(store=)` was given.

        **Returns:** a `SweepResult`.

        **Raises:** `FileNotFoundError` if there is nothing at `path`; `ValueError` if
        what is there was not written by eqx_pipe, by another version of its format, or
        was changed; `OSError` for a file that is damaged.

        Needs `pip install 'eqx_pipe[sweep]'`.

        !!! example

            >>> import eqx_pipe as ep, tempfile
            >>> result = ep.sweep(lambda x: {"y": x**2}, ep.Linspace(0, 3, 4))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     result.save(f"{folder}/squares.zarr")
            ...     ep.SweepResult.load(f"{folder}/squares.zarr").values["y"].tolist()
            [0.0, 1.0, 4.0, 9.0]
        """
        from .load import load

        return load(path)

    @staticmethod
    def concat(results: Sequence["SweepResult"]) -> "SweepResult":
        """The points of several results one after the other, with their values.

        For rounds of a search, a space that was widened, points that were computed
        again. Points that are in several of them are there several times.

        **Arguments:**

        - `results`: at least one `SweepResult`, none of them reduced. Their spaces have
          the same axes, and outputs the same structure, shapes and dtypes. Values in a
          store are read.

        **Returns:** a `SweepResult` of one dim named `point`. Its space is a part of
        the grid if all are parts of that one; otherwise a table with `Values` and
        `Static` axes. `seconds` are those of all together, `started` is when the first
        one was, and `batch_size` and `num_devices` are the largest.

        **Raises:** `ValueError` if there is no result, or if axes or what stands beside
        them differ; `StructureError` if outputs differ in form; `TypeError` for what is
        no result, or a reduced one.

        **Laws:** `SweepResult.concat([result[a], result[b]])` is `result[[*a, *b]]`.

        !!! example

            >>> import eqx_pipe as ep
            >>> near = ep.sweep(lambda p: p["x"] ** 2, {"x": ep.Linspace(0, 1, 3)})
            >>> far = ep.sweep(lambda p: p["x"] ** 2, {"x": ep.Values([2.0, 3.0])})
            >>> ep.SweepResult.concat([near, far]).values.tolist()
            [0.0, 0.25, 1.0, 4.0, 9.0]
        """
        from .concat import concat

        return concat(results)


def _provenance(result: SweepResult) -> dict[str, Any]:
    """What made a result, as plain text and numbers."""
    moment = datetime.datetime.fromtimestamp(result.started, datetime.UTC)
    return {
        "function": result.function,
        "batch_size": result.batch_size,
        "devices": result.num_devices,
        "started": moment.isoformat(timespec="seconds"),
        "seconds": round(result.seconds, 6),
        **dict(result.made),
        **({} if result.steps is None else result.steps.attrs),
    }


def _one(i: Any, size: int) -> int:
    """The index of one point."""
    outputs = f"Outputs are in `.values`: `result.values[{i!r}]`. "
    one = as_index(i, "SweepResult", outputs if isinstance(i, str) else "")
    if not -size <= one < size:
        wrong = f"index {one} is out of range."
        cure = f"The result has {size} points, 0 to {size - 1}."
        raise IndexError(message("SweepResult", wrong, cure))
    return one
