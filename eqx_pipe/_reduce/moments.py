"""`Sum`, `Mean` and `Var`: leaf by leaf, without loss of digits."""

import functools as ft
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from . import exact
from .reducer import By, LeafReducer, Ok, Over, over_field


class _Summed(LeafReducer):
    """The base class of `Sum` and `Mean`, whose states are sums."""

    ordered: ClassVar[bool] = False

    def empty(self, leaf: jax.ShapeDtypeStruct) -> exact.Pair:
        return exact.zero(leaf.shape, leaf.dtype)

    def after(self, state: exact.Pair, leaf: Array, ok: Ok) -> exact.Pair:
        return exact.add(state, exact.total(leaf, ok))

    def joined(self, first: exact.Pair, second: exact.Pair) -> exact.Pair:
        return exact.add(first, second)


class Sum(_Summed):
    """The sum of each output leaf.

    Sums of floats are compensated for rounding; sums of integers and bools are exact
    and have 64 bits.

    **Arguments:**

    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is not a leaf of the
    output; `TypeError` if the output is not numeric, such as keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Values([1, 2, 3]),
        ...     reduce=ep.reduce.Sum()).values.item()
        6
    """

    by: By = None
    over: Over = over_field()

    def result(
        self, state: exact.AnyPair, dtype: np.dtype, count: np.ndarray
    ) -> np.ndarray:
        value = exact.on_host(state, dtype)
        return value if exact.is_exact(dtype) else value.astype(dtype)


class Mean(_Summed):
    """The mean of each output leaf; integers and bools become floats.

    Without any point it is NaN.

    **Arguments:**

    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is not a leaf of the
    output; `TypeError` if the output is not numeric, such as keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(0, 3, 4),
        ...     reduce=ep.reduce.Mean()).values.item()
        1.5
    """

    by: By = None
    over: Over = over_field()

    def result(
        self, state: exact.AnyPair, dtype: np.dtype, count: np.ndarray
    ) -> np.ndarray:
        total = exact.on_host(state, dtype)
        n = exact.before(count, total)
        # Without any point the mean is NaN, as documented, without a warning.
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / np.where(n == 0, np.nan, n)
        return np.asarray(mean).astype(_float(dtype))


class Moments(NamedTuple):
    """The mean of some numbers, and the sum of squared deviations from it."""

    points: exact.Pair
    mean: exact.Pair
    squares: exact.Pair


class Var(LeafReducer):
    r"""The variance of each output leaf; integers and bools become floats.

    It is NaN if the number of points is at most `ddof`.

    **Arguments:**

    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `ddof`: the sum of squares is divided by `n - ddof`, as in NumPy.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is not a leaf of the
    output; `TypeError` if the output is not numeric, such as keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(0, 3, 4),
        ...     reduce=ep.reduce.Var()).values.item()
        1.25

    ??? cite "Source"

        Batches are combined by the formula of T. F. Chan, G. H. Golub and R. J. LeVeque
        (1979); means and sums of squares are compensated sums.
    """

    ordered: ClassVar[bool] = False
    by: By = None
    ddof: int = eqx.field(static=True, default=0)
    over: Over = over_field()

    def empty(self, leaf: jax.ShapeDtypeStruct) -> Moments:
        zero, dtype = exact.zero((), jnp.uint32), exact.wide_float(leaf.dtype)
        # The squared deviations of complex numbers are real.
        squares = exact.zero(leaf.shape, jnp.finfo(dtype).dtype)
        return Moments(zero, exact.zero(leaf.shape, dtype), squares)

    def after(self, state: Moments, leaf: Array, ok: Ok) -> Moments:
        return self.joined(state, _moments(leaf, ok))

    def joined(self, first: Moments, second: Moments) -> Moments:
        (m, a, p), (n, b, q) = first, second
        left, share = (exact.as_float(count, a[0].dtype) for count in (m, n))
        share = share / jnp.maximum(left + share, 1)
        step = (b[0] - a[0]) + (b[1] - a[1])
        # An empty state has no step, whose square could be infinite.
        step = jnp.where((left == 0) | (share == 0), jnp.zeros_like(step), step)
        moved = exact.add(a, exact.lift(step * share.astype(a[0].dtype)))
        # If the first state is empty, the mean is that of the second.
        high, low = (jnp.where(left == 0, y, x) for x, y in zip(moved, b, strict=True))
        between = exact.lift(_square(step) * left * share)
        squares = exact.add(exact.add(p, q), between)
        return Moments(exact.add(m, n), (high, low), squares)

    def result(self, state: Moments, dtype: np.dtype, count: np.ndarray) -> np.ndarray:
        total = exact.on_host(state.squares, jnp.float32)
        n = exact.before(count.astype(np.int64) - self.ddof, total)
        value = total / np.where(n > 0, n, np.nan)
        return np.asarray(value).astype(jnp.finfo(_float(dtype)).dtype)


def _moments(leaf: Array, ok: Ok) -> Moments:
    """Return the mean of a batch and its sum of squared deviations."""
    # Compute deviations from a number near the mean, since the difference of two large
    # sums of squares loses all digits.
    count, (leaf, low) = exact.count(ok), _halves(leaf)
    whole = leaf if low is None else leaf + low
    n = jnp.maximum(exact.as_float(count, leaf.dtype), 1).astype(leaf.dtype)
    kept = ok.reshape(ok.shape + (1,) * (leaf.ndim - 1))
    zeros = jnp.zeros_like(leaf)
    # Any number near the mean is good enough; its error is corrected below.
    near = jnp.sum(jnp.where(kept, whole, zeros), axis=0) / n
    away = leaf - near[None]
    away = jnp.where(kept, away if low is None else away + low, zeros)
    missed = jnp.add(*exact.total(away, ok)) / n
    square = exact.total(_square(away), ok)
    nearer = exact.add(square, exact.lift(-_square(missed) * n.real))
    # Do not correct an infinite sum of squares, which would become NaN.
    finite = jnp.isfinite(square[0])
    first, second = map(ft.partial(jnp.where, finite), nearer, square)
    return Moments(count, (near, missed), (first, second))


def _halves(leaf: Array) -> tuple[Array, Array | None]:
    """Return floats whose sum is the leaf: high and low bits for long integers."""
    dtype = exact.wide_float(leaf.dtype)
    if leaf.dtype.itemsize < 4 or not exact.is_exact(leaf.dtype):
        return leaf.astype(dtype), None
    # A float32 has 24 bits of precision and a float64 53, fewer than the integer.
    low = leaf & jnp.asarray(2 ** (4 * leaf.dtype.itemsize - 4) - 1, leaf.dtype)
    return (leaf - low).astype(dtype), low.astype(dtype)


def _square(x: Array) -> Array:
    return jnp.square(x.real) + jnp.square(x.imag) if jnp.iscomplexobj(x) else x * x


def _float(dtype: DTypeLike) -> np.dtype:
    """Return the dtype of a mean of numbers of some dtype, as in `jnp.mean`."""
    return jnp.result_type(float) if exact.is_exact(dtype) else jnp.dtype(dtype)
