"""Which points are meant by a mask or by a list of indices."""

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard

import jax
import numpy as np
from jaxtyping import Array, Bool, Integer

from .._errors import describe_value, message, type_error, value_error

_CURE = "Give an integer, a slice, a list of indices, or a mask with a bool per point."

Picked: TypeAlias = (
    Sequence[int]
    | Sequence[bool]
    | Integer[Array, " picked"]
    | Integer[np.ndarray, " picked"]
    | Bool[Array, "..."]
    | Bool[np.ndarray, "..."]
)
"""Indices of points in any order, or a mask over all of them."""


def is_picked(index: object) -> TypeGuard[Picked]:
    """Whether an index is a list or a mask, and not one index."""
    return isinstance(index, list) or getattr(index, "ndim", 0) > 0


def picked(function: str, index: Any, size: int, lengths: Sequence[int]) -> np.ndarray:
    """The indices, from 0 on, that a list or a mask stands for.

    A mask has one entry for each of `size` points, or the `lengths` of the dims.
    """
    try:
        array = np.asarray(index)
    except jax.errors.TracerArrayConversionError:
        raise type_error(
            function,
            f"the index is a traced {index.dtype}{list(index.shape)}.",
            "How many points are chosen has to be known while JAX traces: choose them "
            "outside of `jit`.",
        ) from None
    except ValueError:  # rows of different lengths
        array = np.empty((0, 0))
    # NumPy makes floats of an empty list.
    if isinstance(index, list) and not index:
        array = np.zeros(0, np.int64)
    if array.dtype == bool:
        if array.shape not in ((size,), tuple(lengths)):
            raise value_error(
                function,
                f"the mask has the shape {array.shape}, for {size} points.",
                f"Give one bool for each point, shape ({size},), or one for each point "
                f"of the grid, shape {tuple(lengths)}.",
            )
        return np.flatnonzero(array)
    # Integers that are too large for NumPy's own are Python's, in an array of objects.
    whole = array.dtype.kind in "iu" or all(type(i) is int for i in array.flat)
    if array.ndim != 1 or not whole:
        raise type_error(function, f"the index is {describe_value(index)}.", _CURE)
    outside = (array < -size) | (array >= size)
    if np.any(outside):
        raise IndexError(
            message(
                function,
                f"index {array[outside][0]} is out of range.",
                f"Give indices of the {size} points, 0 to {size - 1}.",
            )
        )
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    return np.where(array < 0, array + size, array)
