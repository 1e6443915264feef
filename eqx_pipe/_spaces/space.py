"""The space: a pytree with axes in it, as a pure function from index to point."""

import dataclasses
import operator
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypeAlias, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import Tracer
from jaxtyping import Array, Integer

from .._check import check_choice, check_draws, check_key, keywords
from .._errors import describe_value, message, type_error, value_error
from .._tree import is_key_array
from .._types import Key, PyTree
from . import words
from .axis import Axis, HasAxes, is_axis
from .geometry import Geometry, geometry_of
from .html import axes_table, heading, shown
from .index import BITS, advance_by, digits_of, strides
from .keys import axis_key, point_key
from .no_axis import check_seen, no_axis
from .order import axes_by_path, axis_name, written_order
from .random import MissingAxisKey
from .static import static_index
from .table import points_frame

if TYPE_CHECKING:
    import pandas

Point: TypeAlias = PyTree
"""A space's pytree with a value in the place of each axis."""

Index: TypeAlias = SupportsIndex | Integer[Array, ""]
"""The index of a point, which may be traced."""


class Space(HasAxes):
    """A pytree some of whose leaves are axes, as a sequence of points.

    A point is the same pytree with a value in the place of each axis; other leaves
    pass through. In mode `"product"` every dim is combined with every other, the
    first varying slowest; in mode `"zip"` all axes vary together. Axes with the same
    `dim` are one dim. Points are computed from their index when they are asked for,
    so a space takes no memory however large it is.

    **Arguments:**

    - `tree`: any pytree with at least one axis in it: a dict, a bare axis, an
      Equinox module in which `equinox.tree_at` put an axis.
    - `mode`: `"product"` or `"zip"`.
    - `key`: a PRNG key, for axes that draw their values (`Random`).

    **Returns:** a space. `len`, iteration and `space[i]` give points; `space[a:b]` is
    a space again, of one dim named `point`.

    **Raises:** `ValueError` if there is no axis, if axes of one dim differ in length,
    if a name stands for two dims, or for keys of the kind `rbg`, whose draws under
    `vmap` differ from those of a single point; `MissingKeyError` (a `ValueError`) if an
    axis draws its values and there is no `key`; `TypeError` if the keys of a dict
    cannot be sorted.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Space({"rate": ep.Geomspace(1e-3, 1e-1, 3), "on": True,
        ...                   "width": ep.Values([8, 32])})
        >>> space.dims, space.size
        ({'rate': 3, 'width': 2}, 6)
        >>> int(space[1]["width"]), space[1]["on"]
        (32, True)
    """

    tree: PyTree
    key: Key | None
    mode: str = eqx.field(static=True)
    order: tuple[int, ...] = eqx.field(static=True)
    window: tuple[int, int, int] | None = eqx.field(static=True)

    @keywords("Space", **words.SPACE)
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
        self.order = written_order(tree)
        self.window = None
        # Before the count of axes, since an axis that is hidden is none that was found.
        check_seen(tree)
        if not self.order:
            raise no_axis("Space", "tree", tree)
        geometry = geometry_of(tree, self.order, mode, None)
        for name, axis in geometry.axes.items():
            if key is None and axis.needs_key:
                raise MissingAxisKey(name)
            for leaf in filter(is_key_array, jtu.tree_leaves(axis)):
                check_draws("Space", f"the axis `{name}` holds keys", leaf)

    # How it is laid out.

    @property
    def geometry(self) -> Geometry:
        """The axes, the dims and the number of points, worked out anew each time."""
        return geometry_of(self.tree, self.order, self.mode, self.window)

    def axes(self) -> dict[str, Axis]:
        """The axes by name, in the order in which they were written."""
        return dict(self.geometry.axes)

    @property
    def grid_dims(self) -> dict[str, int]:
        """The dims of the whole grid, also of a slice of it."""
        return self.geometry.grid_dims

    @property
    def dims(self) -> dict[str, int]:
        """The length of each dim by its name; the first varies slowest."""
        return self.geometry.dims

    @property
    def size(self) -> int:
        """The number of points, a Python integer of any size."""
        return self.geometry.size

    def __len__(self) -> int:
        size = self.size
        if size > sys.maxsize:  # more than Python lets `len` say
            raise OverflowError(
                message("Space", f"it has {size} points.", "Use `space.size`.")
            )
        return size

    def __bool__(self) -> bool:
        return True  # also with more points than `len` can say

    # Points.

    def point(self, i: Index) -> Point:
        """The point with the index `i`.

        **Arguments:**

        - `i`: an integer from 0 to `size - 1`, which may be traced if there are no
          `Static` axes. A traced index that is out of range is clamped, as by JAX's
          own indexing.

        **Returns:** the space's pytree with values in the place of the axes.

        **Raises:** `IndexError` if `i` is out of range; `TypeError` if it is not an
        integer.
        """
        geometry = self.geometry
        if isinstance(i, Tracer):
            if geometry.static_dims:
                raise static_index()
            digits = _traced_digits(geometry, i)
            return geometry.point(geometry.leaves, self.key, digits)
        plain = _digits(geometry, i)
        digits = [jnp.int32(digit) for digit in plain]
        return geometry.point(geometry.leaves, self.key, digits, plain)

    @overload
    def point_key(self, i: Index, *, key: Key) -> Key: ...
    @overload
    def point_key(self, i: Index, *, key: None) -> None: ...
    def point_key(self, i: Index, *, key: Key | None) -> Key | None:
        """The key from which the point with the index `i` draws in a sweep with `key`.

        `key` is folded with the point's position on one dim after the other: with one
        dim it is `fold_in(key, i)`. So longer axes change no draw, and the points of a
        slice draw what they draw in the space that it was taken from.

        **Arguments:**

        - `i`: as for `point`.
        - `key`: the PRNG key of the sweep, or `None`. (Keyword only.)

        **Returns:** a PRNG key, or `None`.

        **Raises:** as `point`; as `sweep` for a `key` that it does not take.

        !!! example

            >>> import eqx_pipe as ep, jax
            >>> key = jax.random.key(0)
            >>> space = ep.Space([ep.Linspace(0, 1, 3), ep.Linspace(0, 1, 4)])
            >>> by_hand = jax.random.fold_in(jax.random.fold_in(key, 1), 2)
            >>> bool(space.point_key(6, key=key) == by_hand)
            True
            >>> bool(space[5:].point_key(1, key=key) == by_hand)
            True
        """
        check_key("Space.point_key", key)
        if key is not None:
            check_draws("Space.point_key", "`key` is", key)
        geometry = self.geometry
        traced = isinstance(i, Tracer)
        digits = _traced_digits(geometry, i) if traced else _digits(geometry, i)
        return point_key(key, digits)

    def axis_key(self, name: str) -> Key | None:
        """The key of the axis called `name`, which does not depend on other axes."""
        return axis_key(self.key, name)

    @overload
    def __getitem__(self, i: slice) -> "Space": ...
    @overload
    def __getitem__(self, i: Index) -> Point: ...
    def __getitem__(self, i: slice | Index) -> "Space | Point":
        if isinstance(i, slice):
            start, step, _ = self.window or (0, 1, 0)
            chosen = range(self.size)[i]
            count = range_length(chosen)
            if count == 0:
                raise value_error(
                    "Space",
                    f"the slice {_slice_text(i)} of {self.size} points is empty.",
                    "Choose at least one point.",
                )
            window = (start + step * chosen.start, step * chosen.step, count)
            return _with_window(self, window)
        if isinstance(i, Tracer):
            return self.point(i)
        i = _as_index(i)
        if i < 0:
            size = self.size
            i = i + size if -size <= i else i
        return self.point(i)

    def __iter__(self) -> Iterator[Point]:
        return (self.point(i) for i in range(self.size))

    def __hash__(self) -> int:
        # So that `jax.jit(space.point)` works: the module's own hash needs hashable
        # leaves, and a space often holds a dict.
        return id(self)

    def __repr__(self) -> str:
        how = "zip" if self.mode == "zip" else "product"
        geometry = self.geometry
        part = "" if self.window is None else f", sliced from {geometry.grid_dims}"
        dims = ", ".join(f"{name}: {n:,}" for name, n in geometry.dims.items())
        lines = [f"Space({how}, {geometry.size:,} points; {dims}{part})"]
        axes = geometry.axes
        width = max(len(name) for name in axes)
        lines += [f"  {name:<{width}}  {axis!r}" for name, axis in axes.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return shown(_html, self)

    def to_pandas(self) -> "pandas.DataFrame":
        """All points as a `pandas.DataFrame`, one row each.

        Columns are named by the axes' paths; an axis of arrays has a column for each
        entry (`w.0`, `w.1`).

        **Raises:** `ValueError` if two columns have the same name (an axis `x` of
        arrays beside an axis `x.0`), or if there are $2^{31}$ points or more.

        Needs `pip install 'eqx_pipe[sweep]'`.
        """
        return points_frame(self.geometry, self.key)


SpaceLike: TypeAlias = Space | Axis | PyTree
"""Whatever is accepted where a space is: also a bare axis, or a pytree with axes."""


def as_space(function: str, space: SpaceLike) -> Space:
    """`space` itself, or the product space of a bare pytree, ready to be compiled."""
    if isinstance(space, Space):
        _check_bits(function, space)
        return space
    if not axes_by_path(space):
        check_seen(space)
        raise no_axis(function, "space", space)
    space = Space(space)
    _check_bits(function, space)
    return space


def _check_bits(function: str, space: Space) -> None:
    """Raises if an array has 64 bits, made while those were on, and they are off now.

    A compiled program would cut it to 32 bits, or fail inside JAX.
    """
    for path, part in jtu.tree_flatten_with_path(space.tree, is_leaf=is_axis)[0]:
        for leaf in jtu.tree_leaves(part):
            if not isinstance(leaf, jax.Array) or is_key_array(leaf):
                continue
            if jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype:
                raise value_error(
                    function,
                    f"`{axis_name(path)}` in the space is of {leaf.dtype}, made "
                    "while 64 bits were on, and they are off now.",
                    "Switch `jax_enable_x64` on before this call too, or off "
                    "before the space is made.",
                )


def _html(space: Space) -> str:
    geometry = space.geometry
    how = "zip" if space.mode == "zip" else "product"
    part = "" if space.window is None else f", sliced from {geometry.grid_size:,}"
    head = heading(f"Space: {geometry.size:,} points ({how}{part})")
    return head + axes_table(geometry)


def range_length(chosen: range) -> int:
    """`len(chosen)`, also beyond the largest length that Python's `len` allows."""
    if chosen.step > 0:
        return max(0, -((chosen.start - chosen.stop) // chosen.step))
    return max(0, -((chosen.stop - chosen.start) // -chosen.step))


def _digits(geometry: Geometry, i: SupportsIndex) -> list[int]:
    """The position on each dim of the whole grid of the point with the index `i`."""
    i = _as_index(i)
    if not 0 <= i < geometry.size:
        raise IndexError(
            message(
                "Space",
                f"index {i} is out of range.",
                f"Give one of the {geometry.size} points, 0 to {geometry.size - 1}.",
            )
        )
    start, step, _ = geometry.window or (0, 1, 0)
    return digits_of(start + step * i, geometry.lengths)


def _traced_digits(geometry: Geometry, i: Array) -> list[Array]:
    if i.shape != () or not jnp.issubdtype(i.dtype, jnp.integer):
        raise type_error(
            "Space",
            f"the index is a traced {i.dtype}{list(i.shape)}.",
            "Give a scalar integer; for many points at once use `jax.vmap`.",
        )
    lengths = geometry.lengths
    start, step, _ = geometry.window or (0, 1, 0)
    # The dtype may hold fewer numbers than there are points.
    most = min(geometry.size - 1, int(jnp.iinfo(i.dtype).max))
    i = jnp.clip(i, jnp.asarray(0, i.dtype), jnp.asarray(most, i.dtype))
    wide = i.dtype.itemsize > 4
    low = i.astype(jnp.uint32)
    parts = [low, (i >> 32).astype(jnp.uint32)] if wide else [low]
    table = strides(step, lengths, BITS * len(parts))
    first = [jnp.uint32(digit) for digit in digits_of(start, lengths)]
    digits = advance_by(first, parts, table, lengths)
    return [digit.astype(jnp.int32) for digit in digits]


def _with_window(space: Space, window: tuple[int, int, int]) -> Space:
    # Not by flattening, which would sort the keys of dicts in `tree`.
    copy = object.__new__(Space)
    for field in dataclasses.fields(Space):
        object.__setattr__(copy, field.name, getattr(space, field.name))
    object.__setattr__(copy, "window", window)
    return copy


def _as_index(i: SupportsIndex) -> int:
    try:
        if isinstance(i, bool):
            raise TypeError
        return operator.index(i)
    except TypeError:
        raise type_error(
            "Space", f"the index is {describe_value(i)}.", "Give an integer or a slice."
        ) from None


def _slice_text(i: slice) -> str:
    return f"[{i.start}:{i.stop}" + ("]" if i.step is None else f":{i.step}]")
