"""The keys that draws in a space are made from: one for each point, one for each axis.

A point is known by its digits, its position on each dim of the whole grid, and not by
its flat index: that of nearly every point is another when an inner dim grows or when a
part of the space is swept by itself.
"""

import zlib
from collections.abc import Sequence
from typing import overload

import jax.random as jr
import numpy as np
from jaxtyping import Array, Integer

from .._types import Key

Digit = int | Integer[Array, ""]
"""The position of a point on one dim."""


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
    if key is None:
        return None
    # CRC-32 and not `hash`, which is another number in each process.
    return jr.fold_in(key, np.uint32(zlib.crc32(name.encode())))
