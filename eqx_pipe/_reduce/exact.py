"""Sums without loss of digits, on devices with 32-bit numbers.

A sum is a pair of arrays: for integers, the low and the high word of 64 bits; for
floats, the plain sum and the part that its roundings lost (Knuth's two-sum). Pairs are
merged element by element; zeros are the empty sum.
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool

from .._types import PyTree

Pair: TypeAlias = tuple[Array, Array]

AnyPair: TypeAlias = Pair | tuple[np.ndarray, np.ndarray]
"""A sum on a device, or on the host."""

_States = TypeVar("_States", bound=PyTree)

_ROWS = 8
"""The rows merged in one round, so that there are few rounds, each vectorised."""


def is_exact(dtype: DTypeLike) -> bool:
    """Return whether numbers of this dtype are summed as integers."""
    return jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.bool_


def wide_float(dtype: DTypeLike) -> np.dtype:
    """Return the dtype in which numbers of `dtype` are accumulated as floats."""
    if is_exact(dtype):
        return jnp.result_type(float)
    dtype = jnp.dtype(dtype)
    return dtype if dtype.itemsize >= 4 else jnp.dtype(jnp.float32)


def zero(shape: tuple[int, ...], dtype: DTypeLike) -> Pair:
    """Return the empty sum of numbers of some shape and dtype."""
    kind = jnp.uint32 if is_exact(dtype) else wide_float(dtype)
    return jnp.zeros(shape, kind), jnp.zeros(shape, kind)


def lift(values: Array) -> Pair:
    """Return each number as a sum of one."""
    if not is_exact(values.dtype):
        values = values.astype(wide_float(values.dtype))
        return values, jnp.zeros_like(values)
    if values.dtype.itemsize == 8:
        low = (values & values.dtype.type(0xFFFFFFFF)).astype(jnp.uint32)
        # The shift of a signed integer keeps its sign, as two's complement requires.
        return low, (values >> values.dtype.type(32)).astype(jnp.uint32)
    signed = jnp.issubdtype(values.dtype, jnp.signedinteger)
    low = values.astype(jnp.int32 if signed else jnp.uint32)
    # The sign fills the high word.
    high = low >> 31 if signed else jnp.zeros_like(low)
    return low.astype(jnp.uint32), high.astype(jnp.uint32)


def add(a: Pair, b: Pair) -> Pair:
    """Return the sum of two sums."""
    total = a[0] + b[0]
    if total.dtype == jnp.uint32:
        # A sum of words below one of its terms has wrapped around, which is the carry.
        return total, a[1] + b[1] + (total < a[0]).astype(jnp.uint32)
    # Without compensation the mean of 2^27 numbers near 1,000 is off by 9.6 in float32.
    # XLA keeps these operations as written, unless `xla_cpu_enable_fast_math` (off by
    # default) lets it cancel them to 0.
    part = total - a[0]
    lost = (a[0] - (total - part)) + (b[0] - part)
    # The lost part of an infinite sum is 0, since it would otherwise become NaN.
    lost = jnp.where(jnp.isfinite(total), lost, jnp.zeros_like(lost))
    return total, a[1] + b[1] + lost


def total(values: Array, ok: Bool[Array, " points"]) -> Pair:
    """Return the sum of the `ok` values over the leading axis."""
    shape = ok.shape + (1,) * (values.ndim - 1)
    kept = jnp.where(ok.reshape(shape), values, jnp.zeros_like(values))
    return fold(add, lift(kept))


def fold(merge: Callable[[_States, _States], _States], states: _States) -> _States:
    """Merge along the leading axis, in any order; zeros must be the identity.

    Rows of the same length are merged element by element, a few at a time, so that
    each round is one vectorised loop.
    """
    n = jtu.tree_leaves(states)[0].shape[0]
    while n > 1:
        rows = min(_ROWS, n)
        n = -(-n // rows)

        def split(leaf: Array, rows: int = rows, n: int = n) -> Array:
            short = [(0, rows * n - leaf.shape[0])] + [(0, 0)] * (leaf.ndim - 1)
            return jnp.pad(leaf, short).reshape((rows, n, *leaf.shape[1:]))

        split_up = jtu.tree_map(split, states)
        states = jtu.tree_map(lambda leaf: leaf[0], split_up)
        for r in range(1, rows):
            states = merge(states, jtu.tree_map(lambda leaf, r=r: leaf[r], split_up))
    return jtu.tree_map(lambda leaf: leaf[0], states)


def count(ok: Bool[Array, " points"]) -> Pair:
    """Return the number of `ok` points, as a sum."""
    # A batch has fewer than 2**32 points, so one word is enough.
    number = jnp.sum(ok.astype(jnp.uint32), dtype=jnp.uint32)
    return number, jnp.zeros_like(number)


def as_float(number: Pair, dtype: DTypeLike) -> Array:
    """Return a count as a float, to rounding."""
    # For a complex dtype, the dtype of its parts.
    real = jnp.finfo(dtype).dtype
    low, high = (word.astype(real) for word in number)
    return high * real.type(2**32) + low


def on_host(number: AnyPair, dtype: DTypeLike) -> np.ndarray:
    """Return a sum of numbers of the given dtype in 64 bits."""
    first, second = (np.asarray(x) for x in number)
    if is_exact(dtype):
        word = (second.astype(np.uint64) << np.uint64(32)) | first.astype(np.uint64)
        unsigned = jnp.issubdtype(dtype, jnp.unsignedinteger)
        return np.asarray(word).view(np.uint64 if unsigned else np.int64)
    kind = complex if jnp.issubdtype(dtype, jnp.complexfloating) else float
    return np.asarray(first.astype(kind) + second.astype(kind))


def before(counts: np.ndarray | np.generic, values: np.ndarray) -> np.ndarray:
    """Return counts with trailing axes, so that they broadcast with `values`."""
    counts = np.asarray(counts)
    return counts.reshape(counts.shape + (1,) * (values.ndim - counts.ndim))
