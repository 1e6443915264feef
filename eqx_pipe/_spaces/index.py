"""Positions on each dim from the flat index of a point: a number in mixed radix.

Indices may be larger than any integer of the device. On the host they are Python
integers; on the device a point is the digits of some start, known from the host, and
a small offset that is added to them with carries.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

BITS = 32
"""Offsets that are added on the device have at most this many bits."""


def digits_of(i: int, lengths: Sequence[int]) -> list[int]:
    """The position on each dim of the point `i`, the last dim varying fastest."""
    digits = []
    for n in reversed(lengths):
        i, digit = divmod(i, n)
        digits.append(digit)
    return digits[::-1]


def advance(
    digits: Sequence[UInt32[Array, ""]],
    offset: UInt32[Array, ""],
    lengths: Sequence[int],
) -> list[UInt32[Array, ""]]:
    """The digits of a point `offset` points (below $2^{31}$) further on.

    A digit is below $2^{31}$ and so is a carry: their sum fits 32 bits. Past the end
    of the space it starts again, so that a negative step is a large positive one.
    """
    carry = offset
    result = []
    for digit, n in zip(reversed(digits), reversed(lengths), strict=True):
        total = digit + carry
        radix = jnp.uint32(n)
        # Not `//` and `%`, which would compare signs that unsigned numbers have not.
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
