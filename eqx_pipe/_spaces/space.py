"""The space: a pytree with axes in it, as a pure function from index to point."""

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from .._check import check_choice
from .._errors import nearest, optional, type_error, value_error
from .._keys import check_draws, check_key, check_names_draw_apart, fold
from .._tree import is_key_array, on_device
from .._types import Key, PyTree
from .axis import Axis, check_dim, needs_space_key
from .geometry import (
    POINT,
    Geometry,
    Index,
    Indices,
    Rows,
    as_index,
    as_written,
    geometry_of,
    indices,
    is_several,
    no_axis,
    point_key,
    written_names,
)
from .unit import Cube, axes_at, unit_of

if TYPE_CHECKING:
    import pandas

    from .table import TableLike


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
        check_key("Space", key)
        if key is not None:
            check_draws("Space", "`key` is", key)
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
    def from_table(columns: "TableLike", *, dim: str | None = None) -> "Space":
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
        from .table import table

        return table(columns, dim)

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
        check_key("Space.point_key", key)
        if key is not None:
            check_draws("Space.point_key", "`key` is", key)
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
