"""The space: a pytree with axes in it, as a pure function from index to point."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import jax.tree_util as jtu
import numpy as np
from jaxtyping import Float

from .._check import check_choice
from .._errors import optional, type_error, value_error
from .._keys import check_draws, check_key, check_names_draw_apart
from .._tree import is_key_array
from .._types import Key, PyTree
from .axis import Axis, check_dim, needs_space_key
from .columns import entry_columns
from .dims import as_written, no_axis, written_names
from .geometry import Rows, geometry_of
from .points import Points
from .unit import Cube, axes_at, unit_of

if TYPE_CHECKING:
    import pandas

    from .table import TableLike


class Space(Points):
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

    **Laws:** `sweep(fn, space[some], key=key)` has the values of
    `sweep(fn, space, key=key)` at `some`, to rounding.

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
        # Annotated again for type checkers, which infer the fields of a subclass anew.
        self.names: tuple[str, ...] = written_names(tree)
        self.span: tuple[int, int] | None = None
        self.rows: Rows | None = None
        self.last: tuple[str, ...] = ()
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
        its axes hold numbers and texts. `from_table(rows)[some]` is `from_table` of
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
        """Return the places of some points in the unit cube; see `from_unit`.

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
        return unit_of(self.geometry, self.key, other.geometry, other.key)

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

    def __repr__(self) -> str:
        geometry = self.geometry
        part = f", a part of {geometry.grid_dims}" if geometry.is_part else ""
        dims = ", ".join(f"{name}: {n:,}" for name, n in geometry.dims.items())
        lines = [f"Space({self.mode}, {geometry.size:,} points; {dims}{part})"]
        axes = geometry.axes
        width = max(len(name) for name in axes)
        lines += [f"  {name:<{width}}  {axis!r}" for name, axis in axes.items()]
        return "\n".join(lines)

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
        return pandas.DataFrame(entry_columns(self.geometry, self.key))


SpaceLike: TypeAlias = Space | Axis | PyTree
"""A space, a bare axis, or a pytree with axes."""


def as_space(function: str, space: SpaceLike) -> Space:
    """Return `space` itself, or the product space of a pytree with axes."""
    if isinstance(space, Space):
        return space
    if not written_names(space):
        raise no_axis(function, "space", space)
    return Space(space)
