"""`Min`, `Max`, `ArgMin`, `ArgMax` and `TopK`: extremes, and the points with them."""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool

from .._check import check_choice, check_int
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


class _Bound(LeafReducer):
    """The base class of `Min` and `Max`, which differ only in the order."""

    ordered: ClassVar[bool] = True
    minimal: eqx.AbstractClassVar[bool]

    def empty(self, leaf: jax.ShapeDtypeStruct) -> Array:
        return jnp.full(leaf.shape, worst_of(leaf.dtype, self.minimal))

    def after(self, state: Array, leaf: Array, ok: Ok) -> Array:
        kept = ok.reshape(ok.shape + (1,) * (leaf.ndim - 1))
        kept = jnp.where(kept, leaf, worst_of(leaf.dtype, self.minimal))
        best = (jnp.min if self.minimal else jnp.max)(kept, axis=0)
        return self.joined(state, best)

    def joined(self, first: Array, second: Array) -> Array:
        return (jnp.minimum if self.minimal else jnp.maximum)(first, second)

    def result(self, state: Any, dtype: np.dtype, count: np.ndarray) -> Any:
        return result_or_nan(state, count > 0)


class Min(_Bound):
    """The smallest value of each output leaf, entry by entry.

    NaNs propagate, as in NumPy. Without any point, floats are NaN and integers 0.

    **Arguments:**

    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is not a leaf of the
    output; `TypeError` if the output has no order, such as complex numbers or keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(2, 3, 4),
        ...     reduce=ep.reduce.Min()).values.item()
        2.0
    """

    minimal: ClassVar[bool] = True
    by: By = None
    over: Over = over_field()


class Max(_Bound):
    """The largest value of each output leaf, entry by entry.

    NaNs propagate, as in NumPy. Without any point, floats are NaN and integers 0.

    **Arguments:**

    - `by`: the output to reduce: its path or a function of the output. By default all.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is not a leaf of the
    output; `TypeError` if the output has no order, such as complex numbers or keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(2, 3, 4),
        ...     reduce=ep.reduce.Max()).values.item()
        3.0
    """

    minimal: ClassVar[bool] = False
    by: By = None
    over: Over = over_field()


def worst_of(dtype: DTypeLike, minimal: bool) -> np.ndarray:
    """Return the identity: the largest number for a minimum, the smallest else."""
    if dtype == jnp.bool_:
        return np.asarray(minimal)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return np.asarray(limits.max if minimal else limits.min, dtype)
    return np.asarray(np.inf if minimal else -np.inf, dtype)


def result_or_nan(leaf: Any, found: Any) -> np.ndarray | np.generic:
    """Return a value on the host; without points NaN, or 0 if the dtype has no NaN."""
    value = np.asarray(leaf)
    floating = jnp.issubdtype(value.dtype, jnp.floating)
    nothing = np.full_like(value, np.nan if floating else 0)
    return np.where(exact.before(np.asarray(found), value), value, nothing)[()]


class Extreme(eqx.Module):
    """The result of `ArgMin`, `ArgMax` and `TopK`.

    `index` is the flat index of the point, `None` if no point has a number;
    `value` is the scalar there. With `TopK` both are arrays, the best first.
    """

    index: int | np.ndarray | None
    value: np.ndarray | np.generic


class Leaders(eqx.Module):
    """The number of points so far, the best of them, and its index.

    `TopK` has `k` entries, which are valid where `found` is true.
    """

    seen: exact.Pair
    found: Bool[Array, "*k"]
    index: exact.Pair
    value: Array


class _ArgBound(ScalarReducer):
    """The base of `ArgMin` and `ArgMax`, which differ in the end that wins."""

    minimal: eqx.AbstractClassVar[bool]

    def begin(self, struct: PyTree) -> Leaders:
        zero = exact.zero((), jnp.uint32)
        dtype = self.scalar(struct).dtype
        return Leaders(zero, jnp.zeros((), bool), zero, jnp.zeros((), dtype))

    def absorb(self, state: Leaders, values: PyTree, ok: Ok) -> Leaders:
        scores = self.scalars(values)
        candidate = ok & is_not_nan(scores)
        kept = jnp.where(candidate, scores, worst_of(scores.dtype, self.minimal))
        best = jnp.min(kept) if self.minimal else jnp.max(kept)
        # Two vectorised passes are faster than `argmin`.
        positions = jnp.arange(ok.size, dtype=jnp.uint32)
        wins = candidate & (kept == best)
        index = jnp.min(jnp.where(wins, positions, np.uint32(ok.size - 1)))
        value = scores.at[index].get(mode="promise_in_bounds")
        zero = jnp.zeros((), jnp.uint32)
        seen = (jnp.full((), ok.size, jnp.uint32), zero)
        batch = Leaders(seen, jnp.any(candidate), (index, zero), value)
        return self.merge(state, batch)

    def merge(self, first: Leaders, second: Leaders) -> Leaders:
        a, b = first.value, second.value
        # Not `<=`: if values are equal, the earlier point stays.
        better = b < a if self.minimal else b > a
        later = second.found & (better | ~first.found)
        moved = exact.add(second.index, first.seen)
        low, high = (
            jnp.where(later, y, x) for x, y in zip(first.index, moved, strict=True)
        )
        return Leaders(
            exact.add(first.seen, second.seen),
            first.found | second.found,
            (low, high),
            jnp.where(later, b, a),
        )

    def finish(self, state: Leaders) -> Extreme:
        if state.found.ndim:
            return side_by_side(state)
        index = int(exact.on_host(state.index, jnp.int32)) if state.found else None
        return Extreme(index, result_or_nan(state.value, state.found))


class ArgMin(_ArgBound):
    """The point with the smallest scalar, and that scalar.

    Ties go to the lowest index; a NaN is never selected.

    **Arguments:**

    - `by`: the scalar to compare: the path of an output, or a function of the output
      that returns a real scalar. Not needed if the output is one scalar.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.index`, a Python integer,
    and `.value`. With `over`, both are arrays; an index counts along the reduced dims,
    and is -1 if no point has a number.

    **Raises:** when the sweep is called, `ValueError` if the compared output is not a
    real scalar, or `by` is not a leaf of the output; `TypeError` if `by` is neither a
    path nor a function.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Linspace(0, 4, 9)
        >>> best = ep.sweep(lambda x: (x - 2) ** 2, space,
        ...     reduce=ep.reduce.ArgMin()).values
        >>> best.index, best.value.item()
        (4, 0.0)
    """

    minimal: ClassVar[bool] = True
    by: By = None
    over: Over = over_field()


class ArgMax(_ArgBound):
    """The point with the largest scalar, and that scalar.

    Ties go to the lowest index; a NaN is never selected.

    **Arguments:**

    - `by`: the scalar to compare: the path of an output, or a function of the output
      that returns a real scalar. Not needed if the output is one scalar.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.index`, a Python integer,
    and `.value`. With `over`, both are arrays; an index counts along the reduced dims,
    and is -1 if no point has a number.

    **Raises:** when the sweep is called, `ValueError` if the compared output is not a
    real scalar, or `by` is not a leaf of the output; `TypeError` if `by` is neither a
    path nor a function.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Linspace(0, 4, 9)
        >>> ep.sweep(lambda x: 2 * x, space, reduce=ep.reduce.ArgMax()).values.index
        8
    """

    minimal: ClassVar[bool] = False
    by: By = None
    over: Over = over_field()


class TopK(ScalarReducer):
    """The points with the largest (or smallest) scalars, and these scalars.

    Ties go to the lowest index; a NaN is never selected.

    **Arguments:**

    - `k`: the number of points to keep, at least 1.
    - `by`: the scalar to compare: the path of an output, or a function of the output
      that returns a real scalar. Not needed if the output is one scalar.
    - `mode`: `"max"` or `"min"`.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.index` and `.value`, arrays
    with the best first, shorter than `k` if fewer points have a number. With `over`,
    they have `k` columns, and an index counts along the reduced dims; it is -1 after
    the last point.

    **Raises:**

    - `TypeError` if `k` is not an integer; `ValueError` if `k` is below 1, or for any
      other `mode`.
    - When the sweep is called, `ValueError` if the compared output is not a real
      scalar.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Values([3.0, 1.0, 4.0, 1.0])
        >>> top = ep.sweep(lambda x: x, space, reduce=ep.reduce.TopK(3)).values
        >>> top.index.tolist(), top.value.tolist()
        ([2, 0, 1], [4.0, 3.0, 1.0])
    """

    k: int = eqx.field(static=True)
    by: By = None
    mode: Literal["max", "min"] = eqx.field(static=True, default="max")
    over: Over = over_field()

    def __check_init__(self) -> None:
        check_int("reduce.TopK", "k", self.k, 1)
        check_choice("reduce.TopK", "mode", self.mode, ("max", "min"))

    def dims_at(self, path: str, shape: tuple[int, ...]) -> ResultDims:
        return {"rank": np.arange(*shape)}, None

    def begin(self, struct: PyTree) -> Leaders:
        dtype = self.scalar(struct).dtype
        words = jnp.zeros(self.k, jnp.uint32)
        found, value = jnp.zeros(self.k, bool), jnp.zeros(self.k, dtype)
        return Leaders(exact.zero((), jnp.uint32), found, (words, words), value)

    def absorb(self, state: Leaders, values: PyTree, ok: Ok) -> Leaders:
        score = self.scalars(values)
        candidate = ok & is_not_nan(score)
        positions = jnp.arange(ok.size, dtype=jnp.uint32)
        seen = (jnp.full((), ok.size, jnp.uint32), jnp.zeros((), jnp.uint32))
        batch = Leaders(seen, candidate, (positions, jnp.zeros_like(positions)), score)
        # Sorting is expensive, and after a while few batches contain a better value.
        last = state.value[-1]
        better = score > last if self.mode == "max" else score < last
        worth = jnp.any(candidate & better) | ~state.found[-1]
        skipped = eqx.tree_at(lambda s: s.seen, state, exact.add(state.seen, seen))
        return jax.lax.cond(worth, lambda: self.merge(state, batch), lambda: skipped)

    def merge(self, first: Leaders, second: Leaders) -> Leaders:
        # Later points come second, so that a stable sort keeps ties in order.
        value = jnp.concatenate([first.value, second.value])
        found = jnp.concatenate([first.found, second.found])
        moved = exact.add(second.index, first.seen)
        low, high = (
            jnp.concatenate([a, b]) for a, b in zip(first.index, moved, strict=True)
        )
        _, _, found, low, high, value = jax.lax.sort(
            (~found, self._rank(value), found, low, high, value), num_keys=2
        )
        return Leaders(
            exact.add(first.seen, second.seen),
            found[: self.k],
            (low[: self.k], high[: self.k]),
            value[: self.k],
        )

    def _rank(self, value: Array) -> Array:
        """Return numbers by which the best are sorted first."""
        value = value.astype(jnp.int32) if value.dtype == jnp.bool_ else value
        if self.mode == "min":
            return value
        # The complement reverses the order of integers without overflow.
        return ~value if jnp.issubdtype(value.dtype, jnp.integer) else -value

    def finish(self, state: Leaders) -> Extreme:
        found = np.asarray(state.found)
        if found.ndim > 1:
            return side_by_side(state)
        index = exact.on_host(state.index, jnp.int32)
        return Extreme(index[found], np.asarray(state.value)[found])


def side_by_side(state: Leaders) -> Extreme:
    """Return the leaders of states side by side: index -1 where there is none."""
    index = exact.on_host(state.index, jnp.int32)
    index = np.where(np.asarray(state.found), index, -1)
    return Extreme(index, result_or_nan(state.value, state.found))


def is_not_nan(values: Array) -> Bool[Array, " points"]:
    """Return where there is no NaN."""
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    return ~jnp.isnan(values) if floating else jnp.ones(values.shape, bool)
