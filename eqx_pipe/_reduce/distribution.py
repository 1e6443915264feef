"""`Histogram` and `Quantile`: the distribution of values.

`Quantile` is a sketch of constant size, exact as long as it holds all numbers.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float64, Int32, Int64

from .._check import check_int
from .._errors import describe_value, value_error
from .._types import PyTree
from . import exact
from .reducer import (
    By,
    LeafReducer,
    Ok,
    Over,
    ResultDims,
    ScalarReducer,
    over_field,
)


def as_edges(edges: ArrayLike | Sequence[ArrayLike]) -> tuple[float, ...]:
    """Return the edges of bins; raise unless they are increasing finite numbers."""
    numbers = np.zeros(1)
    with contextlib.suppress(TypeError, ValueError):
        numbers = np.asarray(edges, np.float64)
    increasing = numbers.ndim == 1 and numbers.size > 1 and np.all(np.diff(numbers) > 0)
    if not increasing or not np.all(np.isfinite(numbers)):
        raise value_error(
            "reduce.Histogram",
            f"`edges` is {describe_value(edges)}, which is not a sequence of at least "
            "two increasing finite edges.",
            "Give the edges, such as `numpy.linspace(0, 1, 11)` for ten bins: a "
            "running reduction does not know the range of the values in advance.",
        )
    return tuple(numbers.tolist())


class Counts(eqx.Module):
    """The result of `Histogram`: counts for each bin, and the edges of the bins.

    `below` and `above` count the points outside the bins. NaNs are not counted. With
    `over`, all counts have a leading axis.
    """

    counts: Int64[np.ndarray, "*cells bins"]
    edges: Float64[np.ndarray, "*cells edges"]
    below: int | Int64[np.ndarray, " cells"]
    above: int | Int64[np.ndarray, " cells"]


class Histogram(ScalarReducer):
    """The counts of the points whose scalar lies between the edges of bins.

    A bin includes its left edge but not its right one, except the last bin, which
    includes both, as in `numpy.histogram`. NaNs are not counted.

    **Arguments:**

    - `edges`: the edges of the bins, increasing, such as `numpy.linspace(0, 1, 11)`.
    - `by`: the scalar to count: the path of an output, or a function of the output
      that returns a real scalar. Not needed if the output is one scalar.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.counts`, `.edges`, and the
    numbers of points `.below` and `.above` all bins.

    **Raises:**

    - `ValueError` unless `edges` are increasing and finite.
    - When the sweep is called, `ValueError` if the counted output is not a real scalar.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Linspace(0, 3, 4)
        >>> ep.sweep(lambda x: x, space, reduce=ep.reduce.Histogram([0, 2,
        ...     3])).values.counts
        array([2, 2])
    """

    edges: tuple[float, ...] = eqx.field(static=True, converter=as_edges)
    by: By = None
    over: Over = over_field()

    def dims_at(self, path: str, shape: tuple[int, ...]) -> ResultDims:
        edges = np.array(self.edges)
        dims = {"counts": {"bin": edges[:-1]}, "edges": {"edge": edges}}
        return dims.get(path, {}), None

    def begin(self, struct: PyTree) -> exact.Pair:
        self.scalar(struct)
        return exact.zero((len(self.edges) + 2,), jnp.uint32)

    def absorb(self, state: exact.Pair, values: PyTree, ok: Ok) -> exact.Pair:
        score = self.scalars(values)
        score = score.astype(jnp.int32) if score.dtype == jnp.bool_ else score
        lefts, last = _exact_edges(np.array(self.edges), score.dtype)
        bins = len(self.edges) - 1
        at = jnp.searchsorted(lefts, score, side="right", method="scan_unrolled")
        # Indices: below, the bins, above, and a last one for NaNs and failed points.
        at = jnp.where((at == bins + 1) & (score <= last), bins, at)
        counted = ok & (score == score)
        at = jnp.where(counted, at, bins + 2)
        low = jnp.zeros(bins + 3, jnp.uint32).at[at].add(jnp.uint32(1))
        return exact.add(state, (low, jnp.zeros_like(low)))

    def merge(self, first: exact.Pair, second: exact.Pair) -> exact.Pair:
        return exact.add(first, second)

    def finish(self, state: exact.AnyPair) -> Counts:
        counts = exact.on_host(state, jnp.int32)
        edges = np.array(self.edges)
        if counts.ndim > 1:
            each = np.broadcast_to(edges, (len(counts), len(edges)))
            return Counts(counts[:, 1:-2], each, counts[:, 0], counts[:, -2])
        return Counts(counts[1:-2], edges, int(counts[0]), int(counts[-2]))


def _exact_edges(edges: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return left edges and the last right one, in the dtype of the values.

    Left edges are rounded up and the last edge down, so that a number of this dtype
    falls into the same bin as in a comparison with the edges in float64.
    """
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        # Use Python integers: floats do not represent the limits of 64 bits.
        lefts = [int(e) for e in np.ceil(edges)]
        last = min(max(int(np.floor(edges[-1])), limits.min), limits.max)
        # No number reaches an edge beyond the limit, so such edges are left out.
        lefts = [max(e, int(limits.min)) for e in lefts if e <= limits.max]
        return np.array(lefts, dtype), np.array(last, dtype)
    with np.errstate(over="ignore"):
        rounded = edges.astype(dtype)
    up, down = (np.array(x, dtype) for x in (np.inf, -np.inf))
    wide = rounded.astype(np.float64)
    lefts = np.where(wide < edges, np.nextafter(rounded, up), rounded)
    last = np.where(wide > edges, np.nextafter(rounded, down), rounded)[-1]
    return lefts, np.asarray(last)


_LEVELS = 32
"""The number of buffers: enough for `size * 2**31` points."""


def as_shares(q: ArrayLike | Sequence[ArrayLike]) -> float | tuple[float, ...]:
    """Return one fraction or several; raise unless they are between 0 and 1."""
    try:
        shares = np.asarray(q, np.float64)
    except (TypeError, ValueError):
        shares = np.full((), np.nan)
    if shares.ndim > 1 or not shares.size or not np.all((shares >= 0) & (shares <= 1)):
        raise value_error(
            "reduce.Quantile",
            f"`q` is {describe_value(q)}.",
            "Give a number from 0 to 1, `Quantile(0.5)`, or several of them, "
            "`Quantile([0.05, 0.95])`.",
        )
    return float(shares) if shares.ndim == 0 else tuple(shares.tolist())


class Sketch(eqx.Module):
    """A sample of all numbers so far, in buffers of one size.

    A number in the buffer of level h represents `2**h` numbers; a buffer is full, or
    empty and not `used`. The last numbers, which do not fill a buffer, are the first
    `filled` of `rest`. `nan` is true for entries that had a NaN.
    """

    used: Bool[Array, " levels"]
    filled: Int32[Array, ""]
    levels: Array
    rest: Array
    nan: Bool[Array, "..."]


class Quantile(LeafReducer):
    """Quantiles of each output leaf, entry by entry; integers and bools become floats.

    With at most `size` points the result equals that of `numpy.quantile`, interpolated.
    With n points, more than that, the rank of the result is wrong by at most
    `n * log2(n / size) / (2 * size)`: by 1.1 % of n for a million points with the
    default size, by 2.1 % for 10^9; mostly by much less. Memory does not grow with n.
    NaNs propagate, as in NumPy; without any point the result is NaN.

    **Arguments:**

    - `q`: a fraction from 0 to 1, or several, along a leading axis of the result.
    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `size`: the number of entries of a buffer; each entry of an output has 33 buffers.
      (Keyword only.)
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) for each leaf an array of its shape, with a
    leading axis if there are several `q`.

    **Raises:** `ValueError` if `q` is not between 0 and 1, if `size` is below 2, or,
    when the sweep ends, for more than `size * 2**31` points.

    !!! example

        >>> import eqx_pipe as ep
        >>> space, q = ep.Linspace(0, 100, 101), [0.05, 0.5]
        >>> ep.sweep(lambda x: x, space, reduce=ep.reduce.Quantile(q)).values.tolist()
        [5.0, 50.0]

    ??? cite "Source"

        Two full buffers of one level are sorted together, and every other number moves
        one level up (J. I. Munro and M. S. Paterson, 1980). Each such step adds to the
        error of a rank at most the weight of one number (G. S. Manku, S. Rajagopalan
        and B. G. Lindsay, 1998), for any order of merging (P. K. Agarwal and others,
        "Mergeable summaries", 2012).
    """

    ordered: ClassVar[bool] = True
    q: float | tuple[float, ...] = eqx.field(static=True, converter=as_shares)
    by: By = None
    size: int = eqx.field(static=True, default=512, kw_only=True)
    over: Over = over_field()

    def __check_init__(self) -> None:
        check_int("reduce.Quantile", "size", self.size, 2)

    def dims_at(self, path: str, shape: tuple[int, ...]) -> ResultDims:
        several = isinstance(self.q, tuple)
        levels = {"quantile": np.array(self.q)} if several else {}
        return levels, super().dims_at(path, shape)[1]

    def empty(self, leaf: jax.ShapeDtypeStruct) -> Sketch:
        dtype = jnp.int8 if leaf.dtype == jnp.bool_ else leaf.dtype
        return Sketch(
            jnp.zeros(_LEVELS, bool),
            jnp.zeros((), jnp.int32),
            jnp.zeros((_LEVELS, self.size, *leaf.shape), dtype),
            jnp.zeros((self.size, *leaf.shape), dtype),
            jnp.zeros(leaf.shape, bool),
        )

    def after(self, state: Sketch, leaf: Array, ok: Ok) -> Sketch:
        nan = state.nan
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            kept = ok.reshape(ok.shape + (1,) * (leaf.ndim - 1))
            nan = nan | jnp.any(jnp.isnan(leaf) & kept, axis=0)
        # Move the points that count to the front, in their order.
        leaf = jnp.take(leaf, jnp.argsort(~ok, stable=True), axis=0)
        short = [(0, -len(ok) % self.size)] + [(0, 0)] * (leaf.ndim - 1)
        full = jnp.pad(leaf.astype(state.rest.dtype), short)
        stretches = full.reshape(-1, self.size, *leaf.shape[1:])
        total = jnp.sum(ok.astype(jnp.int32), dtype=jnp.int32)
        first = jnp.arange(len(stretches), dtype=jnp.int32) * self.size
        filled = jnp.clip(total - first, 0, self.size)

        def step(state: Sketch, stretch: Any) -> Any:
            return self._put(state, *stretch), None

        state = jax.lax.scan(step, state, (stretches, filled))[0]
        return eqx.tree_at(lambda s: s.nan, state, nan)

    def joined(self, first: Sketch, second: Sketch) -> Sketch:
        def level(h: Int32[Array, ""], state: Sketch) -> Sketch:
            buffer = jnp.take(second.levels, h, axis=0)
            return _carried(state, buffer, second.used[h], h)

        state = jax.lax.fori_loop(0, _LEVELS, level, first)
        state = self._put(state, second.rest, second.filled)
        return eqx.tree_at(lambda s: s.nan, state, first.nan | second.nan)

    def _put(self, state: Sketch, new: Array, filled: Int32[Array, ""]) -> Sketch:
        """Return the state with the first `filled` numbers of a stretch."""
        size, total = self.size, state.filled + filled
        both = jnp.concatenate([state.rest, jnp.zeros_like(state.rest)])
        both = jax.lax.dynamic_update_slice_in_dim(both, new, state.filled, 0)
        rest = jnp.where(total < size, both[:size], both[size:])
        left = jnp.where(total < size, total, total - size)
        state = eqx.tree_at(lambda s: (s.rest, s.filled), state, (rest, left))
        return _carried(state, both[:size], total >= size, jnp.int32(0))

    def result(self, state: Sketch, dtype: np.dtype, count: np.ndarray) -> np.ndarray:
        state = jtu.tree_map(np.asarray, state)
        if count.ndim:
            each = [jtu.tree_map(lambda x, i=i: x[i], state) for i in range(len(count))]
            pairs = zip(each, count, strict=True)
            return np.stack(
                [self.result(one, dtype, np.asarray(n)) for one, n in pairs]
            )
        size = self.size
        if count > size << (_LEVELS - 1):
            raise value_error(
                "reduce.Quantile",
                f"there are {count} points, too many for buffers of {size} numbers.",
                f"Give a larger `size`, such as {2 * size}.",
            )
        used, filled = np.flatnonzero(state.used), int(state.filled)
        weights = np.repeat(np.int64(1) << used.astype(np.int64), size)
        weights = np.concatenate([weights, np.ones(filled, np.int64)])
        kept = state.levels[used].reshape(-1, *state.rest.shape[1:])
        values = np.concatenate([kept, state.rest[:filled]])
        quantiles = _quantiles(values.astype(np.float64), weights, self.q)
        quantiles = np.asarray(np.where(state.nan, np.nan, quantiles))
        wanted = jnp.result_type(float) if exact.is_exact(dtype) else dtype
        return quantiles.astype(wanted)


def _carried(
    state: Sketch, buffer: Array, full: Bool[ArrayLike, ""], level: Int32[Array, ""]
) -> Sketch:
    """Return the state with one more buffer of a level, if it is `full`.

    Levels carry over like the bits of a number to which 1 is added.
    """

    def step(carry: Any) -> Any:
        used, levels, buffer, _, h = carry
        current, taken = jnp.take(levels, h, axis=0), used[h]
        put = levels.at[h].set(jnp.where(taken, current, buffer))
        # Alternate between odd and even numbers, so that errors do not add up.
        joined = _halved(current, buffer, h % 2 == 1)
        return used.at[h].set(~taken), put, joined, taken, h + 1

    level = jnp.asarray(level, jnp.int32)
    begin = (state.used, state.levels, buffer, jnp.asarray(full), level)
    used, levels, *_ = jax.lax.while_loop(lambda carry: carry[3], step, begin)
    return eqx.tree_at(lambda s: (s.used, s.levels), state, (used, levels))


def _halved(a: Array, b: Array, odd: Bool[Array, ""]) -> Array:
    """Return every other number of two buffers, sorted together."""
    both = jnp.sort(jnp.concatenate([a, b]), axis=0)
    return jnp.where(odd, both[1::2], both[::2])


def _quantiles(
    values: np.ndarray, weights: np.ndarray, q: float | tuple[float, ...]
) -> np.ndarray:
    """Return quantiles along the leading axis of numbers with weights."""
    shape, n = values.shape[1:], int(weights.sum())
    shares = np.atleast_1d(np.asarray(q, np.float64))
    quantiles = np.full((len(shares), *shape), np.nan)
    rank = shares * max(n - 1, 0)
    low = np.floor(rank).astype(np.int64)
    part = rank - low
    for entry in np.ndindex(*shape) if n else ():
        column = values[(slice(None), *entry)]
        order = np.argsort(column, kind="stable")
        ends = np.cumsum(weights[order])
        at, behind = (
            column[order[np.searchsorted(ends, whole, side="right")]]
            for whole in (low, np.minimum(low + 1, n - 1))
        )
        quantiles[(slice(None), *entry)] = _between(at, behind, part)
    return quantiles if isinstance(q, tuple) else np.asarray(quantiles[0])


def _between(low: np.ndarray, high: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Interpolate between two numbers, without multiplying infinity by 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        between = low + (high - low) * part
    return np.where((part == 0) | (low == high), low, between)
