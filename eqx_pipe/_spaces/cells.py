"""A space with some dims reduced: its cells, and the points of each.

A cell is a position on all other dims. Points are ordered cell by cell, so that the
points of a cell are adjacent; they are the same points, with the same draws.
"""

from collections.abc import Sequence

from .._errors import nearest, value_error
from .dims import POINT
from .space import Space


def by_cell(space: Space, over: Sequence[str]) -> Space:
    """Return the same points, ordered cell by cell."""
    return space._with(last=tuple(over))


def cells_of(function: str, space: Space, over: Sequence[str]) -> Space:
    """Return the space of the other dims, with `None` for each axis that is reduced.

    Raises a `ValueError` unless `over` names dims, and leaves one.
    """
    geometry = space.geometry
    dims = list(geometry.dims)
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
