"""`Sum`, `Mean`, `Var`: leaf by leaf, without losing digits."""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool

from .._types import PyTree, PyTreeDef
from . import exact
from .reducer import AbstractReducer, By, Over, numbers, over_field, pick_all


class _Form(NamedTuple):
    """The structure and the dtypes of what is reduced."""

    structure: PyTreeDef
    dtypes: tuple[np.dtype, ...]

    def results(
        self,
        result: Callable[[exact.AnyPair, np.dtype], np.ndarray],
        pairs: Sequence[exact.AnyPair],
    ) -> PyTree:
        """What comes of the pair of each leaf, in the place of the leaf."""
        both = zip(pairs, self.dtypes, strict=True)
        found = [result(pair, dtype)[()] for pair, dtype in both]
        return jtu.tree_unflatten(self.structure, found)


def _leaves(reducer: AbstractReducer, struct: PyTree) -> tuple[list[Any], _Form]:
    """The shapes and dtypes of what is reduced, and its form."""
    leaves, structure = jtu.tree_flatten(numbers(reducer, struct, ordered=False))
    return leaves, _Form(structure, tuple(leaf.dtype for leaf in leaves))


class Sums(eqx.Module):
    """How many points there were, and the sum of each leaf."""

    count: exact.Pair
    sums: list[exact.Pair]
    form: _Form = eqx.field(static=True)


class _Summed(AbstractReducer):
    """What `Sum` and `Mean` have in common: all but what comes of the sums."""

    def begin(self, struct: PyTree) -> Sums:
        leaves, form = _leaves(self, struct)
        sums = [exact.zero(leaf.shape, leaf.dtype) for leaf in leaves]
        return Sums(exact.zero((), jnp.uint32), sums, form)

    def absorb(self, state: Sums, values: PyTree, ok: Bool[Array, " points"]) -> Sums:
        leaves = jtu.tree_leaves(pick_all(self, values))
        batch = [exact.total(leaf, ok) for leaf in leaves]
        return self.merge(state, Sums(exact.count(ok), batch, state.form))

    def merge(self, first: Sums, second: Sums) -> Sums:
        pairs = zip(first.sums, second.sums, strict=True)
        count = exact.add(first.count, second.count)
        return Sums(count, [exact.add(a, b) for a, b in pairs], first.form)


class Sum(_Summed):
    """The sum of each output leaf.

    Sums of floats are compensated for rounding; those of integers and bools are exact,
    and come in 64 bits.

    **Arguments:**

    - `by`: what to reduce: the path of an output or a function of it. By default all.
    - `over`: the dims that are reduced, a name or several; the result is then labelled
      along the others. By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is no leaf of the output;
    `TypeError` if what is reduced has no arithmetic, as strings and keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Values([1, 2, 3]),
        ...     reduce=ep.reduce.Sum()).values.item()
        6
    """

    by: By = None
    over: Over = over_field()

    def finish(self, state: Sums) -> PyTree:
        def total(pair: exact.AnyPair, dtype: np.dtype) -> np.ndarray:
            value = exact.on_host(pair, dtype)
            return value if exact.is_exact(dtype) else value.astype(dtype)

        return state.form.results(total, state.sums)


class Mean(_Summed):
    """The mean of each output leaf; integers and bools become float.

    **Arguments:**

    - `by`: what to reduce: the path of an output or a function of it. By default all.
    - `over`: the dims that are reduced, a name or several; the result is then labelled
      along the others. By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is no leaf of the output;
    `TypeError` if what is reduced has no arithmetic, as strings and keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(0, 3, 4),
        ...     reduce=ep.reduce.Mean()).values.item()
        1.5
    """

    by: By = None
    over: Over = over_field()

    def finish(self, state: Sums) -> PyTree:
        counts = exact.on_host(state.count, jnp.uint32)

        def mean(pair: exact.AnyPair, dtype: np.dtype) -> np.ndarray:
            total = exact.on_host(pair, dtype)
            n = exact.before(counts, total)
            # Without any point there is no mean: NaN, as documented, and no warning.
            with np.errstate(divide="ignore", invalid="ignore"):
                found = total / np.where(n == 0, np.nan, n)
            return np.asarray(found).astype(_float(dtype))

        return state.form.results(mean, state.sums)


class Moments(eqx.Module):
    """Of each leaf the mean and the sum of squared deviations from it."""

    count: exact.Pair
    means: list[exact.Pair]
    squares: list[exact.Pair]
    form: _Form = eqx.field(static=True)


class Var(AbstractReducer):
    r"""The variance of each output leaf; integers and bools become float.

    **Arguments:**

    - `by`: what to reduce: the path of an output or a function of it. By default all.
    - `ddof`: the sum of squares is divided by `n - ddof`, as in NumPy.
    - `over`: the dims that are reduced, a name or several; the result is then labelled
      along the others. By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is no leaf of the output;
    `TypeError` if what is reduced has no arithmetic, as strings and keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(0, 3, 4),
        ...     reduce=ep.reduce.Var()).values.item()
        1.25

    ??? cite "Source"

        Batches are joined by the formula of T. F. Chan, G. H. Golub, R. J. LeVeque
        (1979); means and sums of squares are compensated sums.
    """

    by: By = None
    ddof: int = eqx.field(static=True, default=0)
    over: Over = over_field()

    def begin(self, struct: PyTree) -> Moments:
        leaves, form = _leaves(self, struct)
        wide = [(leaf.shape, exact.wide_float(leaf.dtype)) for leaf in leaves]
        means = [exact.zero(*w) for w in wide]
        # Deviations of complex numbers have real squares.
        squares = [exact.zero(shape, jnp.finfo(dtype).dtype) for shape, dtype in wide]
        return Moments(exact.zero((), jnp.uint32), means, squares, form)

    def absorb(
        self, state: Moments, values: PyTree, ok: Bool[Array, " points"]
    ) -> Moments:
        count = exact.count(ok)
        leaves = jtu.tree_leaves(pick_all(self, values))
        both = [_moments(leaf, ok, count) for leaf in leaves]
        means, squares = [mean for mean, _ in both], [square for _, square in both]
        return self.merge(state, Moments(count, means, squares, state.form))

    def merge(self, first: Moments, second: Moments) -> Moments:
        count = exact.add(first.count, second.count)
        means, squares = [], []
        for a, b, p, q in zip(
            first.means, second.means, first.squares, second.squares, strict=True
        ):
            dtype = a[0].dtype
            left = exact.as_float(first.count, dtype)
            share = exact.as_float(second.count, dtype)
            share = share / jnp.maximum(left + share, 1)
            step = (b[0] - a[0]) + (b[1] - a[1])
            # From or to nothing is no step; the square of one may be infinite.
            step = jnp.where((left == 0) | (share == 0), jnp.zeros_like(step), step)
            moved = exact.add(a, exact.lift(step * share.astype(dtype)))
            # The mean of nothing is no place to start from.
            means.append(
                tuple(jnp.where(left == 0, y, x) for x, y in zip(moved, b, strict=True))
            )
            between = exact.lift(_square(step) * left * share)
            squares.append(exact.add(exact.add(p, q), between))
        return Moments(count, means, squares, first.form)

    def finish(self, state: Moments) -> PyTree:
        counts = exact.on_host(state.count, jnp.uint32).astype(np.int64) - self.ddof

        def variance(pair: exact.AnyPair, dtype: np.dtype) -> np.ndarray:
            total = exact.on_host(pair, jnp.float32)
            n = exact.before(counts, total)
            value = total / np.where(n > 0, n, np.nan)
            return np.asarray(value).astype(jnp.finfo(_float(dtype)).dtype)

        return state.form.results(variance, state.squares)


def _moments(
    leaf: Array, ok: Bool[Array, " points"], count: exact.Pair
) -> tuple[exact.Pair, exact.Pair]:
    """The mean of a batch and its sum of squared deviations."""
    # Deviations are taken from a number near the mean, since the difference of two
    # large sums of squares has no digits left.
    leaf, low = _halves(leaf)
    whole = leaf if low is None else leaf + low
    n = jnp.maximum(exact.as_float(count, leaf.dtype), 1).astype(leaf.dtype)
    kept = ok.reshape(ok.shape + (1,) * (leaf.ndim - 1))
    zeros = jnp.zeros_like(leaf)
    # Any number near the mean will do; what it misses is added below.
    near = jnp.sum(jnp.where(kept, whole, zeros), axis=0) / n
    away = leaf - near[None]
    away = jnp.where(kept, away if low is None else away + low, zeros)
    missed = jnp.add(*exact.total(away, ok)) / n
    square = exact.total(_square(away), ok)
    nearer = exact.add(square, exact.lift(-_square(missed) * n.real))
    # Of infinite squares nothing can be taken away.
    finite = jnp.isfinite(square[0])
    first, second = map(ft.partial(jnp.where, finite), nearer, square)
    return (near, missed), (first, second)


def _halves(leaf: Array) -> tuple[Array, Array | None]:
    """Floats whose sum is the leaf; long integers need two, of high and low bits."""
    dtype = exact.wide_float(leaf.dtype)
    if leaf.dtype.itemsize < 4 or not exact.is_exact(leaf.dtype):
        return leaf.astype(dtype), None
    # A float32 has 24 bits for digits, a float64 53: fewer than the integer has.
    low = leaf & jnp.asarray(2 ** (4 * leaf.dtype.itemsize - 4) - 1, leaf.dtype)
    return (leaf - low).astype(dtype), low.astype(dtype)


def _square(x: Array) -> Array:
    return jnp.square(x.real) + jnp.square(x.imag) if jnp.iscomplexobj(x) else x * x


def _float(dtype: DTypeLike) -> np.dtype:
    """The dtype of a mean of numbers of the given dtype, as `jnp.mean` has it."""
    return jnp.result_type(float) if exact.is_exact(dtype) else jnp.dtype(dtype)
