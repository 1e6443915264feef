"""Indices of points: their digits, and the keys derived from these.

The digits of a point are its position on each dim of the whole grid, its index as a
number in mixed radix. Indices may be larger than any integer of the device. On the host
they are Python integers; on the device a point is given by the digits of a start, which
the host computes, and a small offset that is added to them with carries.

Keys are derived from digits and not from the flat index, which changes for nearly every
point when an inner dim grows or when a part of the space is swept by itself.
"""

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Int, Integer, UInt32

from .._check import check_unmasked
from .._errors import describe_value, message, type_error, value_error
from .._types import Key

Index: TypeAlias = SupportsIndex | Integer[Array, ""]
"""The index of a point, which may be traced."""

Digit = int | Integer[Array, ""]
"""The position of a point on one dim."""

Indices: TypeAlias = (
    Sequence[int]
    | Sequence[bool]
    | Integer[Array, " picked"]
    | Integer[np.ndarray, " picked"]
    | Bool[Array, "..."]
    | Bool[np.ndarray, "..."]
)
"""Indices of points in any order, or a mask over all of them."""

_CURE = "Give an integer, a slice, a list of indices, or a mask with a bool per point."


def digits_of(i: int, lengths: Sequence[int]) -> list[int]:
    """Return the position on each dim of point `i`, the last dim varying fastest."""
    digits = []
    for n in reversed(lengths):
        i, digit = divmod(i, n)
        digits.append(digit)
    return digits[::-1]


def advance(
    digits: Sequence[UInt32[Array, ""] | np.uint32],
    offset: UInt32[Array, ""],
    lengths: Sequence[int],
) -> list[UInt32[Array, ""]]:
    """Return the digits of a point `offset` points (at most `2**31`) further on.

    A digit is below `2**31 - 1`, and a carry at most `2**31`, so their sum fits 32
    bits. Nothing is carried out of the first digit, since the point lies in the grid.
    """
    carry, result = offset, []
    for k in reversed(range(len(lengths))):
        # Use operations of `lax`: `jnp` traces and lowers them as functions, and `//`
        # and `%` compare signs, which unsigned numbers do not have.
        total = jax.lax.add(digits[k], carry)
        if k == 0:
            result.append(total)
            break
        radix = np.uint32(lengths[k])
        carry = jax.lax.div(total, radix)
        result.append(jax.lax.rem(total, radix))
    return result[::-1]


def as_index(i: SupportsIndex, function: str = "Space", hint: str = "") -> int:
    """Return an index as a Python integer; raise a `TypeError` if it is not one."""
    try:
        if isinstance(i, bool):
            raise TypeError
        return operator.index(i)
    except TypeError:
        wrong = f"the index is {describe_value(i)}."
        raise type_error(function, wrong, f"{hint}{_CURE}") from None


def plain_digits(
    i: SupportsIndex, size: int, lengths: Sequence[int], start: int
) -> list[int]:
    """Return the digits of the point `i` of `size` points, which begin at `start`."""
    i = as_index(i)
    if not 0 <= i < size:
        raise _out_of_range("Space", i, size)
    return digits_of(start + i, lengths)


def _out_of_range(function: str, i: Any, size: int) -> IndexError:
    cure = f"Give indices of the {size} points, 0 to {size - 1}."
    return IndexError(message(function, f"index {i} is out of range.", cure))


def traced_digits(
    i: Array, size: int, lengths: Sequence[int], start: int
) -> list[Int[Array, ""]]:
    """Return `plain_digits` of a traced index, clamped if it is out of range."""
    if i.shape != () or not jnp.issubdtype(i.dtype, jnp.integer):
        raise type_error(
            "Space",
            f"the index is a traced {i.dtype}{list(i.shape)}.",
            "Give a scalar integer; for many points at once use `jax.vmap`.",
        )
    # The dtype may hold fewer numbers than there are points.
    most = min(size - 1, 2**32 - 1, int(jnp.iinfo(i.dtype).max))
    offset = jnp.clip(i, jnp.asarray(0, i.dtype), jnp.asarray(most, i.dtype))
    # In two steps, each of at most `2**31` points.
    half = offset.astype(jnp.uint32) // 2
    digits: Sequence[Any] = [np.uint32(digit) for digit in digits_of(start, lengths)]
    for step in (half, offset.astype(jnp.uint32) - half):
        digits = advance(digits, step, lengths)
    return [digit.astype(jnp.int32) for digit in digits]


def indices(function: str, index: Any, size: int, lengths: Sequence[int]) -> np.ndarray:
    """Return the non-negative indices that a list or a mask selects.

    A mask has one entry for each of `size` points, or the `lengths` of the dims. A
    traced index raises JAX's own error.
    """
    check_unmasked(function, "index", index)
    array = np.asarray(index if len(index) else np.zeros(0, np.int64))
    if array.dtype == bool:
        if array.shape not in ((size,), tuple(lengths)):
            raise value_error(
                function,
                f"the mask has the shape {array.shape}, for {size} points.",
                f"Give one bool for each point, shape ({size},), or one for each point "
                f"of the grid, shape {tuple(lengths)}.",
            )
        return np.flatnonzero(array)
    # Integers that are too large for NumPy are Python integers in an array of objects.
    whole = array.dtype.kind in "iu" or all(type(i) is int for i in array.flat)
    if array.ndim != 1 or not whole:
        wrong = f"the index is {describe_value(index)}."
        raise type_error(function, wrong, _CURE)
    outside = (array < -size) | (array >= size)
    if np.any(outside):
        raise _out_of_range(function, array[outside][0], size)
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    return np.where(array < 0, array + size, array)


def is_several(index: object) -> TypeGuard[Indices]:
    """Return whether an index is a list or a mask rather than a single index."""
    return isinstance(index, list) or getattr(index, "ndim", 0) > 0


def point_key(key: Key | None, digits: Sequence[Digit]) -> Key | None:
    """Return the key of the point with these digits.

    All callers use this definition. There is at least one digit, since a space has at
    least one axis.
    """
    if key is None:
        return None
    # A digit has fewer than 32 bits, and `fold_in` uses 32 bits of a number.
    for digit in digits:
        key = jr.fold_in(key, digit)
    return key
