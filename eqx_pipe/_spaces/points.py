"""The points of a space: from an index to a point, and from indices to a part."""

import copy
from collections.abc import Iterator
from typing import Any, TypeAlias, TypeVar, overload

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._errors import value_error
from .._keys import check_draws, check_key
from .._tree import on_device
from .._types import Key, PyTree
from .axis import Axis
from .geometry import Geometry, Rows, geometry_of
from .index import Index, Indices, as_index, axis_key, indices, is_several, point_key

Point: TypeAlias = PyTree
"""A space's pytree with a value in place of each axis."""

_Own = TypeVar("_Own", bound="Points")  # beartype takes `Self` in decorated classes


class Points(eqx.Module):
    """A pytree with axes, as a sequence of points; see `Space`."""

    tree: PyTree
    key: Key | None
    mode: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    span: tuple[int, int] | None = eqx.field(static=True)
    rows: Rows | None
    last: tuple[str, ...] = eqx.field(static=True)

    @property
    def geometry(self) -> Geometry:
        """The axes, the dims and the number of points, computed at each access."""
        how = self.mode, self.span, self.rows
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
        return axis_key(self.key, name)

    @overload
    def __getitem__(self: _Own, i: slice | Indices) -> _Own: ...
    @overload
    def __getitem__(self, i: Index) -> Point: ...
    def __getitem__(self: _Own, i: slice | Indices | Index) -> _Own | Point:
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

    def _slice(self: _Own, some: slice) -> _Own:
        size = self.size
        chosen = range(size)[some]
        # Not by `len`, which raises above `sys.maxsize`.
        count = max(0, -((chosen.start - chosen.stop) // chosen.step))
        if self.rows is None and chosen.step == 1:
            first = 0 if self.span is None else self.span[0]
            return self._with(span=(first + chosen.start, count))
        if count >= 2**31:
            raise value_error(
                "Space",
                f"the slice {some} with a step has {count} points.",
                "Take a slice without a step, or fewer points than 2**31.",
            )
        index = np.arange(count).astype(np.int64 if size < 2**62 else object)
        return self._rows(chosen.start + chosen.step * index)

    def _rows(self: _Own, index: np.ndarray) -> _Own:
        """Return the points with some indices."""
        return self._with(span=None, rows=on_device(self.geometry.digits(index)))

    def _with(self: _Own, **fields: Any) -> _Own:
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
