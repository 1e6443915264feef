"""A space of which some dims are reduced: its cells, and the points of each.

A cell is a position on all other dims. Points are taken cell by cell, so that those of
one follow each other; which they are, and what they draw, stays as it is.
"""

import copy
from collections.abc import Sequence

import jax.tree_util as jtu

from .._errors import nearest, value_error
from .space import Space


def by_cell(space: Space, over: Sequence[str]) -> Space:
    """The same points, which draw as before; those of one cell follow each other."""
    turned = copy.copy(space)  # not by flattening, which sorts the keys of dicts
    # Modules are frozen; this copy nobody has seen yet.
    object.__setattr__(turned, "last", tuple(over))
    return turned


def cells_of(function: str, space: Space, over: Sequence[str]) -> Space:
    """The space of the other dims, with `None` in the place of the axes that are gone.

    Raises a `ValueError` unless `over` names dims, and leaves one.
    """
    _check(function, space, over)
    geometry = space.geometry
    names = list(geometry.grid_dims)
    leaves, order = list(geometry.leaves), []
    three = zip(geometry.axis_dims, geometry.leaf_indices, space.order, strict=True)
    for dim, index, place in three:
        if names[dim] in over:
            leaves[index] = None
        else:
            order.append(place)
    cells = Space(jtu.tree_unflatten(geometry.structure, leaves), key=space.key)
    places = tuple(sorted(order).index(place) for place in order)
    object.__setattr__(cells, "order", places)
    return cells


def _check(function: str, space: Space, over: Sequence[str]) -> None:
    dims = space.dims
    for name in over:
        if name in dims:
            continue
        wrong = f"`over` names {name!r}, which is no dim of the space."
        cure = nearest(name, dims)
        if name in space.axes():
            dim = space.axes()[name].dim
            if not space.is_part and space.mode == "product" and dim is not None:
                cure = f"The axis `{name}` is on the dim `{dim}`: say `over={dim!r}`."
        if space.is_part or space.mode == "zip":
            cure = (
                "A part of a space and a zipped one have the one dim `point`: sweep "
                "over the whole grid, and pick from the result."
            )
        raise value_error(function, wrong, cure)
    if len(set(over)) < len(over):
        raise value_error(
            function, f"`over` names a dim twice: {over}.", "Name each dim once."
        )
    if len(over) == len(dims):
        raise value_error(
            function,
            f"`over` names all dims of the space: {', '.join(over)}.",
            "Leave `over` out: then all points are reduced to one result.",
        )
