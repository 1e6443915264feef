"""The space: a pytree with axes in it, as a pure function from index to point.

Also spaces of tables, of several spaces joined, and at points of the unit cube.
"""

import copy
import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeAlias, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Shaped

from .._check import check_choice, check_unmasked
from .._errors import describe_value, nearest, optional, quoted, type_error, value_error
from .._keys import check_draws, check_mapped_key, check_names_draw_apart, fold
from .._tree import as_hashable, differences, is_key_array, on_device
from .._types import Key, PyTree
from .axis import Axis, Mapped, check_dim, is_axis, needs_space_key
from .geometry import (
    POINT,
    Geometry,
    Index,
    Indices,
    Rows,
    as_index,
    as_numpy,
    as_written,
    at_least_one,
    geometry_of,
    indices,
    is_several,
    no_axis,
    point_key,
    values_at,
    written_names,
)
from .values import NUMBERS, LoadedValues, Static, Values, ValuesLike, missing_in

Cube: TypeAlias = (
    Shaped[Array, "points axes"]
    | Shaped[np.ndarray, "points axes"]
    | Sequence[Sequence[SupportsFloat]]
)
"""Points of the unit cube."""

if TYPE_CHECKING:
    import pandas

TableLike: TypeAlias = Mapping[str, ValuesLike] | Sequence[Mapping[str, object]] | Any
"""Columns by name, rows by name, or a data frame."""

Point: TypeAlias = PyTree
"""A space's pytree with a value in place of each axis."""


class Space(eqx.Module):
    """A pytree some of whose leaves are axes, as a sequence of points.

    A point is the same pytree with a value in place of each axis; other leaves are
    constants. In mode `"product"` every dim is combined with every other, the first
    varying slowest; in mode `"zip"` all axes vary together. Axes with the same `dim`
    form one dim. Each point is computed from its index on access, so memory does not
    grow with the number of points.

    **Arguments:**

    - `tree`: any pytree with at least one axis in it: a dict, a bare axis, an
      Equinox module in which `equinox.tree_at` put an axis.
    - `mode`: `"product"` or `"zip"`.
    - `key`: a PRNG key, for axes that draw their values (`Random`).

    **Returns:** a space, a sequence of points with `len`, iteration and `space[i]`. A
    slice `space[a:b]`, a list of indices `space[[3, 7]]` and a mask `space[mask]`, with
    a bool for each point, flat or in the shape of the dims, return a space with one dim
    named `point`: the same points, with the same draws as in the whole space. It may be
    empty.

    **Raises:** `ValueError` if there is no axis, if axes of one dim differ in length,
    if two dims have the same name, if two axes would draw from the same key (their
    paths have the same CRC-32), for a mask of another shape, or for keys of the kind
    `rbg`, whose draws under `vmap` differ from those of a single point;
    `MissingKeyError` (a `ValueError`) if an axis draws its values and there is no
    `key`; `TypeError` if the keys of a dict cannot be sorted. A slice with a step
    raises a `ValueError` if it has `2**31` points or more.

    Spaces are compared by their content but hashed by identity, so equal spaces are
    different keys of a dict.

    **Laws:** `sweep(fn, space[part], key=key)` has the values of
    `sweep(fn, space, key=key)` at `part`, to rounding.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Space({"rate": ep.Geomspace(1e-3, 1e-1, 3), "on": True,
        ...                   "width": ep.Values([8, 32])})
        >>> space.dims, space.size
        ({'rate': 3, 'width': 2}, 6)
        >>> int(space[1]["width"]), space[1]["on"]
        (32, True)
        >>> [int(point["width"]) for point in space[[5, 0]]]
        [32, 8]
    """

    tree: PyTree
    key: Key | None
    mode: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    span: tuple[int, int] | None = eqx.field(static=True)
    rows: Rows | None
    last: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        tree: PyTree,
        mode: Literal["product", "zip"] = "product",
        key: Key | None = None,
    ):
        check_choice("Space", "mode", mode, ("product", "zip"))
        check_mapped_key("Space", key)
        if isinstance(tree, Space):
            raise type_error(
                "Space",
                "`tree` is a space already.",
                "Use it as it is, or give its `.tree`.",
            )
        self.tree = tree
        self.mode = mode
        self.key = key
        self.names = written_names(tree)
        self.span = None
        self.rows = None
        self.last = ()
        if not self.names:
            raise no_axis("Space", "tree", tree)
        if key is not None:
            check_names_draw_apart("Space", self.names)
        geometry = geometry_of(tree, self.names, mode)
        for name, axis in geometry.axes.items():
            if key is None and axis.needs_key:
                raise needs_space_key(name)
            for leaf in filter(is_key_array, jtu.tree_leaves(axis)):
                check_draws("Space", f"the axis `{name}` holds keys", leaf)

    @staticmethod
    def from_table(columns: TableLike, *, dim: str | None = None) -> "Space":
        """Return a space with one point for each row of a table.

        A point is a dict with the row's value of each column. Columns of numbers,
        arrays and PRNG keys are `Values`, columns of texts and other Python values
        `Static`.

        **Arguments:**

        - `columns`: a dict from names to columns of one length; a data frame of pandas
          or Polars, whose index is not a column (`df.reset_index()` makes it one); a
          table of Arrow; or a list of dicts with the same keys. For an array, such as a
          design of SALib, give `dict(zip(names, array.T))`.
        - `dim`: a name for the dim of the points, so that its axes (`.tree`) can be
          combined with other axes in a space. (Keyword only.)

        **Returns:** a `Space` with one dim, by default `point`; empty if there are no
        rows.

        **Raises:** `ValueError` if columns differ in length, if rows differ in keys, or
        if a number is missing (a NaN in a column of floats is a number), or for masked
        arrays; `TypeError` if `columns` is not a table, for dates, or for an empty
        column of Python values, since no value is left to trace a function with; and as
        `Values` for numbers that JAX cannot represent.

        **Laws:** `Space.from_table(space.to_pandas())` has the points of `space`, if
        its axes hold numbers and texts. `from_table(rows)[part]` is `from_table` of
        the selected rows.

        !!! example

            >>> import eqx_pipe as ep
            >>> runs = ep.Space.from_table({"rate": [0.5, 1.5, 2.5], "act": ["relu",
            ...     "tanh", "relu"]})
            >>> runs.dims, runs[2]["act"]
            ({'point': 3}, 'relu')
            >>> ep.sweep(lambda p: 2 * p["rate"], runs[[2, 0]]).values.tolist()
            [5.0, 1.0]
        """
        check_dim("Space.from_table", dim)
        table = _columns(columns)
        tree = {name: _axis(name, column, dim) for name, column in table.items()}
        # Axes that share a dim vary together in a product, too.
        space = Space(tree, "product" if dim else "zip")
        return space if len(next(iter(table.values()))) else space[:0]

    @property
    def geometry(self) -> Geometry:
        """The axes, the dims and the number of points, computed at each access."""
        how = self.mode, self.key, self.span, self.rows
        geometry = geometry_of(self.tree, self.names, *how)
        return geometry.turned(self.last) if self.last else geometry

    def axes(self) -> dict[str, Axis]:
        """Return the axes by name, in the order in which they were written."""
        return dict(self.geometry.axes)

    @property
    def dims(self) -> dict[str, int]:
        """The length of each dim by its name; the first varies slowest."""
        return self.geometry.dims

    @property
    def size(self) -> int:
        """The number of points, a Python integer of any size."""
        return self.geometry.size

    def __len__(self) -> int:
        return self.size  # Python raises an `OverflowError` beyond `sys.maxsize`

    def __bool__(self) -> bool:
        return True  # also if `len` overflows

    def point(self, i: Index) -> Point:
        """Return the point with the index `i`.

        **Arguments:**

        - `i`: an integer from 0 to `size - 1`, which may be traced if there are no
          `Static` axes. A traced index that is out of range, or above `2**32 - 1`, is
          clamped, as by JAX's own indexing.

        **Returns:** the space's pytree with values in place of the axes.

        **Raises:** `IndexError` if `i` is out of range; `TypeError` if it is not an
        integer.
        """
        geometry = self.geometry
        digits: Any = geometry.digits_at(i)
        if isinstance(i, Tracer):
            return geometry.point(geometry.leaves, self.key, digits, digits)
        on_device = [jnp.int32(digit) for digit in digits]
        return geometry.point(geometry.leaves, self.key, on_device, digits)

    @overload
    def point_key(self, i: Index, *, key: Key) -> Key: ...
    @overload
    def point_key(self, i: Index, *, key: None) -> None: ...
    def point_key(self, i: Index, *, key: Key | None) -> Key | None:
        """Return the key from which a point draws in a sweep with `key`.

        `key` is folded with the point's position on one dim after the other: with one
        dim it is `fold_in(key, i)`. (In a space with `Seeds` whose draws are common it
        is folded with the positions on their dims alone.) So longer axes change no
        draw, and a point of a part has the same key as in the whole space.

        **Arguments:**

        - `i`: as for `point`.
        - `key`: the PRNG key of the sweep, or `None`. (Keyword only.)

        **Returns:** a PRNG key, or `None`.

        **Raises:** as `point`, and as `sweep` for an invalid `key`.

        !!! example

            >>> import eqx_pipe as ep, jax
            >>> key = jax.random.key(0)
            >>> space = ep.Space([ep.Linspace(0, 1, 3), ep.Linspace(0, 1, 4)])
            >>> by_hand = jax.random.fold_in(jax.random.fold_in(key, 1), 2)
            >>> assert space.point_key(6, key=key) == by_hand
            >>> assert space[5:].point_key(1, key=key) == by_hand
        """
        check_mapped_key("Space.point_key", key)
        geometry = self.geometry
        return point_key(key, geometry.key_digits(geometry.digits_at(i)))

    def axis_key(self, name: str) -> Key | None:
        """Return the key of an axis, which does not depend on the other axes."""
        return fold(self.key, name)

    @overload
    def __getitem__(self, i: slice | Indices) -> "Space": ...
    @overload
    def __getitem__(self, i: Index) -> Point: ...
    def __getitem__(self, i: slice | Indices | Index) -> "Space | Point":
        if isinstance(i, slice):
            return self._slice(i)
        if is_several(i):
            geometry = self.geometry
            lengths = tuple(geometry.dims.values())
            return self._rows(indices("Space", i, geometry.size, lengths))
        one: Any = i
        if not isinstance(one, Tracer) and as_index(one) < 0:
            one, size = as_index(one), self.size
            one = one + size if -size <= one else one
        return self.point(one)

    def _slice(self, part: slice) -> "Space":
        size = self.size
        chosen = range(size)[part]
        # Not by `len`, which raises above `sys.maxsize`.
        count = max(0, -((chosen.start - chosen.stop) // chosen.step))
        if self.rows is None and chosen.step == 1:
            first = 0 if self.span is None else self.span[0]
            return self._with(span=(first + chosen.start, count))
        if count >= 2**31:
            raise value_error(
                "Space",
                f"the slice {part} with a step has {count} points.",
                "Take a slice without a step, or fewer points than 2**31.",
            )
        index = np.arange(count).astype(np.int64 if size < 2**62 else object)
        return self._rows(chosen.start + chosen.step * index)

    def _rows(self, index: np.ndarray) -> "Space":
        """Return the points with some indices."""
        return self._with(span=None, rows=on_device(self.geometry.digits(index)))

    def _with(self, **fields: Any) -> "Space":
        """Return a copy with other values of some fields."""
        other = copy.copy(self)  # not by flattening, which sorts the keys of dicts
        # Modules are frozen, but this copy is not in use yet.
        for name, value in fields.items():
            object.__setattr__(other, name, value)
        return other

    def __iter__(self) -> Iterator[Point]:
        return (self.point(i) for i in range(self.size))

    def __hash__(self) -> int:
        # By identity, unlike `==`, so that `jax.jit(space.point)` works: the module's
        # own hash needs hashable leaves, and a space often holds a dict.
        return id(self)

    def from_unit(self, u: Cube, *, dim: str | None = None) -> "Space":
        """Return the space at some points of the unit cube.

        So a design or an optimiser that proposes numbers can choose points of any
        space.

        **Arguments:**

        - `u`: numbers from 0 to 1, of shape `(points, axes)`, a column for each axis in
          the order in which they were written. For a `Uniform` or `Linspace` axis the
          number is the fraction of the way from `start` to `stop`, for a `LogUniform`
          or `Geomspace` axis the fraction in the logarithm; an axis of one value always
          has that value. The values of any other axis (`Values`, `Static`, `Random`)
          are categories: numbers from k/n to (k+1)/n select value k of n, counted from
          0. `Mapped` applies its function to the value of its axis.
        - `dim`: a name for the dim of the points, so that its axes (`.tree`) can be
          combined with other axes in a space. (Keyword only.)

        **Returns:** a `Space` of the same structure with one dim, by default `point`.
        For a part of a space, the cube is that of the whole grid.

        **Raises:** `ValueError` if `u` has another shape, for a number that is not
        between 0 and 1, and if two axes vary together.

        **Laws:** `space.to_unit(space.from_unit(u))` is `u` to rounding; for categories
        it is the middle of the value's part, for equal values that of the first.

        !!! example

            >>> import eqx_pipe as ep
            >>> space = ep.Space({"rate": ep.LogUniform(1, 16),
            ...                   "act": ep.Static(["relu", "tanh"])})
            >>> [(p["rate"].item(), p["act"]) for p in space.from_unit([[0.25, 0.9]])]
            [(2.0, 'tanh')]
        """
        check_dim("Space.from_unit", dim)
        space = self.with_axes(
            axes_at(self.geometry, u, dim), "product" if dim else "zip"
        )
        return space if len(u) else space[:0]

    def to_unit(
        self, points: "Space | None" = None
    ) -> Float[np.ndarray, "points axes"]:
        """Return the coordinates of some points in the unit cube; see `from_unit`.

        **Arguments:**

        - `points`: a space with the same axes, such as that of a result; by default
          this one. Values beyond the ends of a range raise.

        **Returns:** numbers from 0 to 1, of shape `(points, axes)`, in float64.

        **Raises:** `ValueError` if `points` has other axes, or a value that the axis of
        this space does not have, or if two axes vary together. `TypeError` for values
        of a `Mapped` range, unless `points` is from `from_unit`.

        !!! example

            >>> import eqx_pipe as ep
            >>> space = ep.Space({"rate": ep.Geomspace(1, 16, 3)})
            >>> space.to_unit().ravel().tolist()
            [0.0, 0.5, 1.0]
        """
        other = self if points is None else points
        return unit_of(self.geometry, other.geometry)

    def with_axes(
        self, axes: Sequence[PyTree[Axis]], mode: Literal["product", "zip"] = "zip"
    ) -> "Space":
        """Return the space with its axes replaced, in the order written.

        A pytree of axes may replace an axis.
        """
        geometry = self.geometry
        leaves = list(geometry.leaves)
        for index, axis in zip(geometry.leaf_indices, axes, strict=True):
            leaves[index] = axis
        tree = jtu.tree_unflatten(geometry.structure, leaves)
        return Space(as_written(tree, self.tree), mode, self.key)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return all points as a `pandas.DataFrame`, one row for each.

        Columns are named by the axes' paths; an axis of arrays has a column for each
        entry (`w.0`, `w.1`).

        **Raises:** `ValueError` if two columns have the same name (an axis `x` of
        arrays beside an axis `x.0`).

        Needs `pip install 'eqx_pipe[sweep]'`.
        """
        if self.size >= 2**31:
            raise value_error(
                "Space.to_pandas",
                f"the space has {self.size} points, and each is a row.",
                "At most 2**31 - 1 rows are made: take a slice, `space[a:b]`.",
            )
        pandas = optional("Space.to_pandas", "pandas")
        return pandas.DataFrame(self.geometry.entry_columns())

    def __repr__(self) -> str:
        geometry = self.geometry
        part = f", a part of {geometry.grid_dims}" if geometry.is_part else ""
        dims = ", ".join(f"{name}: {n:,}" for name, n in geometry.dims.items())
        lines = [f"Space({self.mode}, {geometry.size:,} points; {dims}{part})"]
        axes = geometry.axes
        width = max(len(name) for name in axes)
        lines += [f"  {name:<{width}}  {axis!r}" for name, axis in axes.items()]
        return "\n".join(lines)


SpaceLike: TypeAlias = Space | Axis | PyTree
"""A space, a bare axis, or a pytree with axes."""


def as_space(function: str, space: SpaceLike) -> Space:
    """Return `space` itself, or the product space of a pytree with axes."""
    if isinstance(space, Space):
        return space
    if not written_names(space):
        raise no_axis(function, "space", space)
    return Space(space)


def by_cell(space: Space, over: Sequence[str]) -> Space:
    """Return the same points, ordered cell by cell."""
    return space._with(last=tuple(over))


def cells_of(
    function: str, space: Space, over: Sequence[str], of_part: bool = False
) -> Space:
    """Return the space of the other dims, with `None` for each axis that is reduced.

    With `of_part`, the dims are those of the grid if the space is a part of one. Raises
    a `ValueError` unless `over` names dims, and leaves one.
    """
    geometry = space.geometry
    dims = list(geometry.grid_dims if of_part else geometry.dims)
    for name in over:
        if name not in dims:
            wrong = f"`over` names {name!r}, which is not a dim of the space."
            cure = nearest(name, dims)
            if dims == [POINT]:
                cure = (
                    "A part of a space has the dim `point` alone. Sweep over the whole "
                    "grid, and pick points from the result."
                )
            elif name in geometry.names:
                dim = dims[geometry.axis_dims[geometry.names.index(name)]]
                cure = f"The axis `{name}` is on the dim `{dim}`: give `over={dim!r}`."
            raise value_error(function, wrong, cure)
    if len(set(over)) < len(over):
        wrong = f"`over` names a dim twice: {over}."
        raise value_error(function, wrong, "Name each dim once.")
    if len(over) == len(dims):
        raise value_error(
            function,
            f"`over` names all dims of the space: {', '.join(over)}.",
            "Leave `over` out: then all points are reduced to one result.",
        )
    pairs = zip(geometry.axes.values(), geometry.axis_dims, strict=True)
    axes = [None if dims[dim] in over else axis for axis, dim in pairs]
    return space.with_axes(axes, "product")


def axes_at(geometry: Geometry, u: Any, dim: str | None) -> list[Axis]:
    """Return the axes of a space at points of the unit cube, in the order written."""
    _check_untied(geometry, "Space.from_unit")
    check_unmasked("Space.from_unit", "u", u)
    array: Any = np.zeros(0)
    try:
        array = np.asarray(u, np.float64)
    # The error is raised below, as for arrays of other shapes. JAX's error for tracers
    # is a `TypeError`.
    except (TypeError, ValueError):
        pass
    width = len(geometry.names)
    if array.ndim != 2 or array.shape[1] != width:
        raise value_error(
            "Space.from_unit",
            f"`u` is {describe_value(u)}.",
            f"Give numbers of the shape (points, {width}), a column for each of "
            f"{quoted(geometry.names)}, outside of `jit`.",
        )
    outside = ~((array >= 0) & (array <= 1))
    if np.any(outside):
        row, column = (int(k) for k in np.argwhere(outside)[0])
        raise value_error(
            "Space.from_unit",
            f"`u[{row}, {column}]` is {array[row, column]}.",
            "Give numbers from 0 to 1.",
        )
    # An axis has at least one value: `Space.from_unit` removes this point again.
    array = array if len(array) else np.zeros((1, width))
    pairs = zip(geometry.axes.values(), array.T, strict=True)
    return [axis.from_unit(column, dim) for axis, column in pairs]


def unit_of(geometry: Geometry, points: Geometry) -> Float[np.ndarray, "points axes"]:
    """Return the coordinates of some points in the unit cube of a space."""
    _check_untied(geometry, "Space.to_unit")
    if points.names != geometry.names:
        raise value_error(
            "Space.to_unit",
            f"`points` has the axes {quoted(points.names)}, but the space has "
            f"{quoted(geometry.names)}.",
            "Give a space with the same axes, in the same order.",
        )
    digits = points.digits(np.arange(points.size))
    columns = []
    for (name, axis), dim in zip(geometry.axes.items(), points.axis_dims, strict=True):
        other = points.axes[name]
        while isinstance(axis, Mapped) and isinstance(other, Mapped):
            axis, other = axis.axis, other.axis
        # Convert each value once: on a grid most positions occur many times.
        few, back = np.unique(digits[:, dim], return_inverse=True)
        values = values_at(name, other, points.axis_key(name), few)
        if axis.is_range:
            u = axis.to_unit(np.asarray(values))
        else:
            hashable = _hashable(other.is_static, values)
            u = _middles(name, axis, geometry.axis_key(name), hashable)
        back = back.reshape(-1)
        columns.append(u[back])
        if np.isnan(u).any():
            i = int(np.argmax(np.isnan(columns[-1])))
            raise _no_value(name, axis, other, values, int(back[i]), i)
    return np.stack(columns, axis=1)


def _no_value(
    name: str, axis: Axis, other: Axis, values: Any, k: int, i: int
) -> ValueError:
    """Return the error for value `k` of an axis, at point `i`, that `axis` lacks."""
    if other.is_static:
        value = values[k]
    else:
        value = jtu.tree_map(lambda leaf: as_numpy(leaf)[k], values)
    cure = "one of its values, since they are categories"
    if axis.is_range:
        cure = "values from one end to the other"
    return value_error(
        "Space.to_unit",
        f"point {i} has {value} for `{name}`, outside of {axis!r}.",
        f"Give points that have {cure}.",
    )


def _middles(
    name: str, axis: Axis, key: Key | None, values: list[Any]
) -> Float[np.ndarray, " points"]:
    """Return the middle of the part of each value in the unit interval, or NaN."""
    choices = values_at(name, axis, key, np.arange(len(axis)))
    known: dict[Any, int] = {}
    for k, value in enumerate(_hashable(axis.is_static, choices)):
        known.setdefault(value, k)
    positions = np.array([known.get(value, np.nan) for value in values], float)
    # The middle, since rounding could move an end into the next part.
    return (positions + 0.5) / len(axis)


def _hashable(is_static: bool, values: Any) -> list[Any]:
    """Return values of an axis as keys of a dict."""
    if is_static:
        return [as_hashable(value) for value in values]
    columns = [as_numpy(leaf) for leaf in jtu.tree_leaves(values)]
    # Compare bits: arrays are not hashable, and NaN does not equal itself.
    return [tuple(x.tobytes() for x in row) for row in zip(*columns, strict=True)]


def _check_untied(geometry: Geometry, function: str) -> None:
    """Raise unless no two axes of a space share a dim."""
    for dim in set(geometry.axis_dims):
        pairs = zip(geometry.names, geometry.axis_dims, strict=True)
        names = [name for name, other in pairs if other == dim]
        if len(names) > 1:
            raise value_error(
                function,
                f"the axes {quoted(names)} vary together, but each axis of the unit "
                "cube varies by itself.",
                "Give each its own dim; compute a function of another axis in `fn`, or "
                "in one `Mapped` axis that returns both.",
            )


_DATES = (datetime.date, datetime.time, datetime.timedelta)
_DATES += (np.datetime64, np.timedelta64)


def _columns(table: Any) -> dict[Any, Any]:
    """Return the columns by name, in order."""
    if isinstance(table, list | tuple) and all(isinstance(r, Mapping) for r in table):
        table = _transposed(table)
    # A dict has its columns as keys, a data frame as an attribute; that of a table of
    # Arrow has another name.
    names = getattr(table, "column_names", getattr(table, "columns", ()))
    names = table if isinstance(table, Mapping) else names
    if not len(names):
        raise type_error(
            "Space.from_table",
            f"`columns` is {describe_value(table)}, which has no columns.",
            "Give a dict of columns, a data frame, or a list of dicts; for an array "
            "`dict(zip(names, array.T))`.",
        )
    columns = {name: table[name] for name in names}
    for name, column in columns.items():
        check_unmasked("Space.from_table", f"columns[{name!r}]", column)
        listed = isinstance(column, list | tuple)
        single = isinstance(column, str | bytes | Mapping | Axis)
        if single or not (listed or np.ndim(column)):
            raise type_error(
                "Space.from_table",
                f"the column `{name}` is {describe_value(column)}.",
                "A column is a list or an array of one value for each row; a constant "
                "stands beside the columns: `ep.Space({**ep.Space.from_table(columns, "
                "dim='row').tree, 'rate': 0.1})`.",
            )
    return columns


def _transposed(rows: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    """Return the columns of a list of rows."""
    for i, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            differ = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise value_error(
                "Space.from_table",
                f"`columns[{i}]` and `columns[0]` differ in {', '.join(differ)}.",
                "Give each row the same keys.",
            )
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _axis(name: str, column: Any, dim: str | None) -> Axis:
    """Return a column as an axis; if it has no rows, one of a single value."""
    if not isinstance(column, jax.Array):
        listed = isinstance(column, list | tuple)
        array = np.zeros(0, object) if listed else np.asarray(column)
        numbers: Any = array
        if listed or array.dtype.kind not in NUMBERS:
            # Entries of Arrow's and xarray's columns are not Python values.
            as_list: Any = getattr(column, "to_pylist", None)
            numbers = as_list() if as_list else list(column if listed else array)
            if not all(map(_is_number, numbers)) or not (numbers or listed):
                return _static(name, numbers, array.dtype, dim)
        _check_complete(name, missing_in(column))
        column = numbers
    try:
        return Values(at_least_one(column)[0], dim=dim)
    except (TypeError, ValueError) as error:
        error.add_note(f"In the column `{name}` of a table.")
        raise


def _check_complete(name: str, missing: int) -> None:
    """Raise a `ValueError` if a column of numbers has missing values."""
    if missing:
        raise value_error(
            "Space.from_table",
            f"the column `{name}` of numbers has {missing} missing values.",
            "Fill them, or leave these rows out: `df.dropna()`.",
        )


def _static(name: str, items: list[Any], dtype: np.dtype, dim: str | None) -> Axis:
    """Return a column of Python values as an axis."""
    if not items:
        raise type_error(
            "Space.from_table",
            f"the column `{name}` has no rows, and its dtype is {dtype}.",
            "Give it a dtype of numbers, or make the table of all rows and take a part "
            "of it, `ep.Space.from_table(df)[mask]`.",
        )
    dates = [x for x in items if isinstance(x, _DATES)]
    if dtype.kind in "mM" or dates:
        kind = dtype if dtype.kind in "mM" else type(dates[0]).__name__
        raise type_error(
            "Space.from_table",
            f"the column `{name}` has dates or times ({kind}), which JAX does not "
            "support.",
            "Give numbers, such as seconds, or texts, `df[name].astype(str)`, with a "
            "program for each.",
        )
    missing = sum(map(_is_missing, items))
    numbers = sum(map(_is_number, items))
    if missing and numbers and numbers + missing == len(items):
        _check_complete(name, missing)
    return Static(items, dim=dim)


def _is_number(x: Any) -> bool:
    if isinstance(x, bool | int | float | complex | jax.Array):
        return True
    return isinstance(x, np.generic | np.ndarray) and x.dtype.kind in NUMBERS


def _is_missing(x: Any) -> bool:
    # By name, since pandas need not be installed.
    return x is None or type(x).__name__ in ("NAType", "NaTType")


def joined(function: str, spaces: Sequence[Space]) -> Space:
    """Return the points of all `spaces` in order, as one space.

    Parts of one grid become a part of it, whose points keep their keys. Other spaces
    become a table.
    """
    first = spaces[0]
    geometries = [space.geometry for space in spaces]  # each access computes it
    digits = [geometry.digits(np.arange(geometry.size)) for geometry in geometries]
    grids = [(space.tree, space.key, space.mode) for space in spaces]
    if eqx.tree_equal(*grids):
        return first._with(span=None, rows=on_device(np.concatenate(digits)))
    for k, space in enumerate(spaces[1:], 1):
        _check_alike(function, k, first.tree, space.tree)
    if not any(map(len, digits)):
        return first[:0]
    names = geometries[0].names
    columns = [_column(function, name, geometries, spaces, digits) for name in names]
    return first.with_axes(columns)


def _check_alike(function: str, k: int, first: PyTree, other: PyTree) -> None:
    """Raise unless two spaces have the same axes and the same other leaves."""
    constants = [
        jtu.tree_map(lambda x: None if is_axis(x) else x, tree, is_leaf=is_axis)
        for tree in (first, other)
    ]
    if not eqx.tree_equal(*constants):
        raise value_error(
            function,
            f"beside the axes the spaces differ: `results[0]` has "
            f"{describe_value(constants[0])}, `results[{k}]` has "
            f"{describe_value(constants[1])}.",
            "Join results of spaces with the same axes at the same paths, and make "
            "the values that differ axes with one value in each.",
        )


def _column(
    function: str,
    name: str,
    geometries: Sequence[Geometry],
    spaces: Sequence[Space],
    digits: Sequence[Int[np.ndarray, "_ _"]],
) -> PyTree[Axis]:
    """Return an axis with the values of one axis at the points of several spaces."""
    values, axes = [], [geometry.axes[name] for geometry in geometries]
    for axis, geometry, space, at in zip(axes, geometries, spaces, digits, strict=True):
        positions = at[:, geometry.axis_dims[geometry.names.index(name)]]
        values.append(values_at(name, axis, space.axis_key(name), positions))
    texts = axes[0].texts
    if all(axis.is_static for axis in axes):
        return Static([x for part in values for x in part], **texts)
    for k, (axis, other) in enumerate(zip(axes[1:], values[1:], strict=True), 1):
        forms = [
            None if a.is_static else v for a, v in ((axes[0], values[0]), (axis, other))
        ]
        lines = differences(*forms, free_axis=0)
        if lines:
            raise value_error(
                function,
                f"the values of the axis `{name}` differ between `results[0]` and "
                f"`results[{k}]`: {'; '.join(lines)}.",
                "Give them the same structure, shape and dtype.",
            )
    is_log = all(axis.is_log for axis in axes)
    # Values from files keep 64 bits.
    is_loaded = any(isinstance(axis, LoadedValues) for axis in axes)
    kind = LoadedValues if is_loaded else Values
    return jtu.tree_map(
        lambda *parts: kind(_joined(parts), is_log=is_log, **texts), *values
    )


def _joined(parts: tuple[Any, ...]) -> Any:
    """Join arrays; `jnp` would compile a program for each number of them."""
    if any(map(is_key_array, parts)):
        return jnp.concatenate(parts)
    return np.concatenate([np.asarray(part) for part in parts])
