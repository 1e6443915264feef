"""The geometry of a space: its axes, its dims and how many points there are.

It is worked out once for each use of a space and handed on as a plain value, since all
of it follows from the pytree, and reading attributes of a module takes its time.
"""

import dataclasses
import functools as ft
import math
from collections.abc import Sequence
from typing import Any

import jax.tree_util as jtu
from jaxtyping import Array, Int

from .._check import check_draws_apart
from .._errors import value_error
from .._types import Key, PyTree
from .arrange import POINT, arrange
from .axis import Axis, is_axis
from .keys import axis_key
from .order import axis_name
from .value import value_of


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Where the axes of a space are, and what grid they form.

    `leaves` are those of the pytree, axes among them, and `structure` is the rest;
    `names` are the axes' in the order written, and `leaf_indices` say which leaves they
    are.
    `grid_dims` are the dims of the whole grid, and `axis_dims` has for each axis the
    number of its dim. `window` is `(start, step, count)` for a slice.
    """

    structure: Any
    leaves: list[Any]
    names: tuple[str, ...]
    leaf_indices: tuple[int, ...]
    grid_dims: dict[str, int]
    axis_dims: tuple[int, ...]
    window: tuple[int, int, int] | None

    @ft.cached_property
    def axes(self) -> dict[str, Axis]:
        """The axes by name, in the order in which they were written."""
        found = (self.leaves[index] for index in self.leaf_indices)
        return dict(zip(self.names, found, strict=True))

    @ft.cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the grid's dims."""
        return tuple(self.grid_dims.values())

    @ft.cached_property
    def grid_size(self) -> int:
        """The number of points of the whole grid."""
        return math.prod(self.lengths)

    @property
    def size(self) -> int:
        """The number of points, a Python integer of any size."""
        return self.grid_size if self.window is None else self.window[2]

    @property
    def is_strided(self) -> bool:
        """Whether points that follow each other are not neighbours in the grid."""
        return self.window is not None and self.window[1] != 1

    @property
    def dims(self) -> dict[str, int]:
        """The length of each dim by its name; a slice has one."""
        return self.grid_dims if self.window is None else {POINT: self.size}

    @ft.cached_property
    def static_dims(self) -> tuple[int, ...]:
        """The places in `grid_dims` of the dims that have `Static` axes."""
        pairs = zip(self.axes.values(), self.axis_dims, strict=True)
        return tuple(sorted({dim for axis, dim in pairs if axis.is_static}))

    def point(
        self,
        leaves: Sequence[Any],
        key: Key | None,
        digits: Sequence[Int[Array, ""]],
        plain: Sequence[int] = (),
    ) -> PyTree:
        """The point at a position on each dim of the grid.

        `leaves` are the space's, whose arrays may be traced by now, and `key` is that
        of the space; `plain` are the positions as Python integers, which `Static` axes
        need.
        """
        values = list(leaves)
        for name, index, dim in zip(
            self.names, self.leaf_indices, self.axis_dims, strict=True
        ):
            axis = leaves[index]
            position: Any = (plain if axis.is_static else digits)[dim]
            values[index] = value_of(name, axis, position, axis_key(key, name))
        return jtu.tree_unflatten(self.structure, values)


def geometry_of(
    tree: PyTree, order: Sequence[int], mode: str, window: tuple[int, int, int] | None
) -> Geometry:
    """The geometry of a space; `order` has each axis's place in JAX's order.

    Raises a `ValueError` if the axes do not form a space.
    """
    pairs, structure = jtu.tree_flatten_with_path(tree, is_leaf=is_axis)
    found = [index for index, (_, leaf) in enumerate(pairs) if is_axis(leaf)]
    indices = tuple(found[k] for k in order)
    leaves = [leaf for _, leaf in pairs]
    names = tuple(axis_name(pairs[index][0]) for index in indices)
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise value_error(
            "Space",
            f"two axes have the path `{twice[0]}`.",
            "Rename one of the dict keys (a dot in a key looks like nesting).",
        )
    axes = {name: leaves[index] for name, index in zip(names, indices, strict=True)}
    check_draws_apart("Space", [name for name in axes if axes[name].needs_key])
    grid_dims, axis_dims = arrange(axes, mode)
    return Geometry(structure, leaves, names, indices, grid_dims, axis_dims, window)
