"""The store of a result, or of a sweep whose values will be one: its arrays by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..._spaces import Space
from ..._types import PyTree
from ..store import Chunks, StoreLayout, Variable
from .label import attributes, check_names, coordinate_variables, names_of, storable
from .output_coords import KnownCoords


def layout_of(
    function: str,
    outputs: PyTree,
    row: Sequence[Any],
    space: Space,
    known: KnownCoords,
    chunks: Chunks,
    made: Mapping[str, Any],
    record: Mapping[str, Any],
) -> StoreLayout:
    """Return the layout of a store of outputs, whose leaves have `row` at a point.

    `known` are the dims of outputs, `made` says what makes them, and `record` what the
    store is for. Raises a `ValueError` for names that no file can have.
    """
    names = names_of(outputs, space, known)
    variables = []
    for (name, dims), leaf in zip(names.outputs.items(), row, strict=True):
        kept = storable(np.empty((0, *leaf.shape), leaf.dtype))
        variables.append(Variable(name, kept.dtype, kept.shape[1:], dims))
    coordinates = coordinate_variables(space, names)
    inner = [dim for dims in names.outputs.values() for dim in dims]
    check_names(function, [*space.dims, *coordinates, *names.outputs, *inner])
    return StoreLayout(
        dims=tuple(space.dims),
        chunks=chunks,
        coordinates=coordinates,
        variables=variables,
        status=names.status,
        attributes=attributes(outputs, space, names, made),
        record=record,
    )
