"""`SweepResult`: the values of a sweep and their provenance."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, SupportsIndex, TypeAlias, overload

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool, Int8, Int64, UInt32

from ..._errors import message, type_error
from ..._spaces import Indices, Space, as_index, indices, is_several
from ..._types import PyTree
from ..store import MISSING, OK, Gaps, StoredArray, count_in, picked_gaps, status_in
from .concat import concat
from .output_coords import KnownCoords
from .plot import plot
from .saved import load, save
from .schema import CellPoints, CellValues
from .select import best, sel
from .views import html, text, to_pandas, to_xarray

# The attributes of a file that describe its whole space, but not a part of it.
_OF_THE_SPACE = ("space", "space_mode", "points")

_Path: TypeAlias = str | os.PathLike[str]
_Several: TypeAlias = "Sequence[SweepResult]"

_STATIC = {"static": True}
"""The metadata of a field that is not a leaf of the pytree."""


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

    # Each of these methods is defined in a file of its own.
    sel = sel
    best = best
    to_xarray = to_xarray
    to_pandas = to_pandas
    plot = plot
    save = save
    load: ClassVar["classmethod[SweepResult, [_Path], SweepResult]"] = classmethod(load)
    concat: ClassVar["classmethod[SweepResult, [_Several], SweepResult]"] = classmethod(
        concat
    )

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
        pairs = ((i, text) for text, some in self._errors.items() for i in some)
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
        """The status of each point: 0 not computed yet, 1 has a value, 2 failed."""
        return status_in(self._gaps, self._reached)

    @property
    def ok(self) -> Bool[np.ndarray, " points"]:
        """True for each point that has a value."""
        if not len(self._gaps):
            return np.broadcast_to(np.True_, (self._reached,))  # takes no memory
        return self.status == OK

    @property
    def missing(self) -> Bool[np.ndarray, " points"] | None:
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

    def __repr__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return html(self)

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


# The files of these functions cannot import the class, which `help` should show.
for _method in (sel, load, concat):
    _method.__annotations__["return"] = SweepResult


def _one(i: Any, size: int) -> int:
    """Return the index of one point."""
    outputs = f"Outputs are in `.values`: `result.values[{i!r}]`. "
    one = as_index(i, "SweepResult", outputs if isinstance(i, str) else "")
    if not -size <= one < size:
        wrong = f"index {one} is out of range."
        cure = f"The result has {size} points, 0 to {size - 1}."
        raise IndexError(message("SweepResult", wrong, cure))
    return one
