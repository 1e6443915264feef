"""Which point is meant: digits from its flat index, and the keys made of them.

The digits of a point are its position on each dim of the whole grid, its index as a
number in mixed radix. Indices may be larger than any integer of the device. On the host
they are Python integers; on the device a point is the digits of some start, known from
the host, and a small offset that is added to them with carries.

Keys are made of digits and not of the flat index: that of nearly every point is another
when an inner dim grows or when a part of the space is swept by itself.
"""

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias, overload

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, Integer, UInt32

from .._errors import describe_value, message, type_error
from .._keys import fold
from .._types import Key

BITS = 32
"""Offsets that are added on the device have at most this many bits."""

Index: TypeAlias = SupportsIndex | Integer[Array, ""]
"""The index of a point, which may be traced."""

Digit = int | Integer[Array, ""]
"""The position of a point on one dim."""


def digits_of(i: int, lengths: Sequence[int]) -> list[int]:
    """The position on each dim of the point `i`, the last dim varying fastest."""
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
    """The digits of a point `offset` points (below `2**31`) further on.

    A digit is below `2**31` and so is a carry: their sum fits 32 bits. Nothing is
    carried out of the first digit: the point is one of the grid.
    """
    carry, result = offset, []
    for k in reversed(range(len(lengths))):
        # Operations of `lax`: those of `jnp` are traced and lowered as functions, and
        # `//` and `%` compare signs, which unsigned numbers do not have.
        total = jax.lax.add(digits[k], carry)
        if k == 0:
            result.append(total)
            break
        radix = np.uint32(lengths[k])
        carry = jax.lax.div(total, radix)
        result.append(jax.lax.rem(total, radix))
    return result[::-1]


def strides(step: int, lengths: Sequence[int], bits: int = BITS) -> np.ndarray:
    """The digits of `step * 2**b` for each bit `b`; `(bits, dims)`."""
    rows = [digits_of(step * 2**b, lengths) for b in range(bits)]
    return np.array(rows, np.uint32).reshape(bits, len(lengths))


def advance_by(
    digits: Sequence[UInt32[Array, ""]],
    count: Sequence[UInt32[Array, ""]],
    table: Any,
    lengths: Sequence[int],
) -> list[UInt32[Array, ""]]:
    """The digits `count` steps further on, whatever the step.

    `table` is made by `strides`; `count` is given in parts of 32 bits, the lowest
    first. One addition for each bit, so that nothing can overflow.
    """
    table = jnp.asarray(table)
    parts = jnp.stack(list(count))

    def add(b: Int[Array, ""], digits: list[Array]) -> list[Array]:
        bit = (parts[b // BITS] >> (b % BITS).astype(jnp.uint32)) & jnp.uint32(1)
        carry = jnp.uint32(0)
        result = []
        for k in reversed(range(len(lengths))):
            total = digits[k] + bit * table[b, k] + carry
            radix = jnp.uint32(lengths[k])
            carry = (total >= radix).astype(jnp.uint32)
            result.append(total - carry * radix)
        return result[::-1]

    # A loop: unrolled these would be a hundred operations for each dim to compile.
    return jax.lax.fori_loop(0, table.shape[0], add, list(digits))


def as_index(i: SupportsIndex, function: str = "Space", hint: str = "") -> int:
    """An index as a Python integer; raises a `TypeError` if it is none."""
    try:
        if isinstance(i, bool):
            raise TypeError
        return operator.index(i)
    except TypeError:
        wrong = f"the index is {describe_value(i)}."
        cure = f"{hint}Give an integer, a slice, a list or a mask."
        raise type_error(function, wrong, cure) from None


def plain_digits(
    i: SupportsIndex, size: int, lengths: Sequence[int], start: int, step: int
) -> list[int]:
    """The digits of the point `i` of `size` points, which begin at `start`."""
    i = as_index(i)
    if not 0 <= i < size:
        raise IndexError(
            message(
                "Space",
                f"index {i} is out of range.",
                f"Give one of the {size} points, 0 to {size - 1}.",
            )
        )
    return digits_of(start + step * i, lengths)


def traced_digits(
    i: Array, size: int, lengths: Sequence[int], start: int, step: int
) -> list[Int[Array, ""]]:
    """`plain_digits` of a traced index, which is clamped if it is out of range."""
    if i.shape != () or not jnp.issubdtype(i.dtype, jnp.integer):
        raise type_error(
            "Space",
            f"the index is a traced {i.dtype}{list(i.shape)}.",
            "Give a scalar integer; for many points at once use `jax.vmap`.",
        )
    # The dtype may hold fewer numbers than there are points.
    most = min(size - 1, int(jnp.iinfo(i.dtype).max))
    i = jnp.clip(i, jnp.asarray(0, i.dtype), jnp.asarray(most, i.dtype))
    parts = [i.astype(jnp.uint32)]
    if i.dtype.itemsize > 4:
        parts.append((i >> 32).astype(jnp.uint32))
    table = strides(step, lengths, BITS * len(parts))
    first = [jnp.uint32(digit) for digit in digits_of(start, lengths)]
    digits = advance_by(first, parts, table, lengths)
    return [digit.astype(jnp.int32) for digit in digits]


@overload
def point_key(key: Key, digits: Sequence[Digit]) -> Key: ...
@overload
def point_key(key: None, digits: Sequence[Digit]) -> None: ...
def point_key(key: Key | None, digits: Sequence[Digit]) -> Key | None:
    """The key of the point with these digits: the law of keys, for every road.

    There is at least one digit, since a space has at least one axis.
    """
    if key is None:
        return None
    # A digit has less than 32 bits, which is what `fold_in` takes of a number.
    for digit in digits:
        key = jr.fold_in(key, digit)
    return key


def axis_key(key: Key | None, name: str) -> Key | None:
    """The key of the axis called `name`, which does not depend on other axes."""
    return fold(key, name)
