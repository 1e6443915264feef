"""`ArgMin`, `ArgMax` and `TopK`: the best points by one scalar."""

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .._check import check_choice, check_int
from .._types import PyTree
from . import exact
from .extremes import result_or_nan, worst_of
from .interface import (
    AbstractReducer,
    By,
    Ok,
    Over,
    over_field,
    scalar,
    scalar_of_each,
)


class Extreme(eqx.Module):
    """The result of `ArgMin`, `ArgMax` and `TopK`.

    `index` is the flat index of the point, `None` if there was no number at all;
    `value` is the scalar there. With `TopK` both are arrays, the best first.
    """

    index: int | np.ndarray | None
    value: np.ndarray | np.generic


class Leaders(eqx.Module):
    """The number of points, the best of them, and its place among them.

    With `TopK` the best are `k`, of which the first that are `found` are there.
    """

    seen: exact.Pair
    found: Bool[Array, "*k"]
    index: exact.Pair
    value: Array


class _ArgBound(AbstractReducer):
    """The base of `ArgMin` and `ArgMax`, which differ in the end that wins."""

    minimal: eqx.AbstractClassVar[bool]

    def begin(self, struct: PyTree) -> Leaders:
        zero = exact.zero((), jnp.uint32)
        dtype = scalar(self, struct).dtype
        return Leaders(zero, jnp.zeros((), bool), zero, jnp.zeros((), dtype))

    def absorb(self, state: Leaders, values: PyTree, ok: Ok) -> Leaders:
        scores = scalar_of_each(self, values)
        candidate = ok & is_not_nan(scores)
        kept = jnp.where(candidate, scores, worst_of(scores.dtype, self.minimal))
        best = jnp.min(kept) if self.minimal else jnp.max(kept)
        # Two passes that vectorise are faster than `argmin`.
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
        # Not `<=`: of equal values the earlier one stays.
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
        index = exact.as_int(state.index) if state.found else None
        return Extreme(index, result_or_nan(state.value, state.found))


class ArgMin(_ArgBound):
    """The point with the smallest scalar, and that scalar.

    Ties go to the lowest index, NaNs never win.

    **Arguments:**

    - `by`: what is compared: the path of a scalar output, or a function of the output
      that gives a real scalar. Not needed if the output is one scalar.
    - `over`: the dims that are reduced, a name or several; the result is then labelled
      along the others. By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.index`, a Python integer,
    and `.value`; with `over` arrays of them, in which an index counts along the dims
    that are reduced and is -1 where there was no number.

    **Raises:** when the sweep is called, `ValueError` if what is compared is not a
    real scalar, or `by` not a leaf of the output; `TypeError` if `by` is neither path
    nor function.

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

    Ties go to the lowest index, NaNs never win.

    **Arguments:**

    - `by`: what is compared: the path of a scalar output, or a function of the output
      that gives a real scalar. Not needed if the output is one scalar.
    - `over`: the dims that are reduced, a name or several; the result is then labelled
      along the others. By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.index`, a Python integer,
    and `.value`; with `over` arrays of them, in which an index counts along the dims
    that are reduced and is -1 where there was no number.

    **Raises:** when the sweep is called, `ValueError` if what is compared is not a
    real scalar, or `by` not a leaf of the output; `TypeError` if `by` is neither path
    nor function.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Linspace(0, 4, 9)
        >>> ep.sweep(lambda x: 2 * x, space, reduce=ep.reduce.ArgMax()).values.index
        8
    """

    minimal: ClassVar[bool] = False
    by: By = None
    over: Over = over_field()


class TopK(AbstractReducer):
    """The points with the largest (or smallest) scalars, and these scalars.

    Ties go to the lowest index, NaNs never win.

    **Arguments:**

    - `k`: how many, at least 1.
    - `by`: what is compared: the path of a scalar output, or a function of the output
      that gives a real scalar. Not needed if the output is one scalar.
    - `mode`: `"max"` or `"min"`.
    - `over`: the dims that are reduced, a name or several; the result is then labelled
      along the others. By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.index` and `.value`, arrays
    with the best first, shorter than `k` if there are not that many points. With `over`
    they have `k` columns, and an index counts along the dims that are reduced; it is -1
    after the last point.

    **Raises:**

    - `TypeError`, `ValueError` unless `k` is an integer of at least 1, and `mode` one
      of the two.
    - When the sweep is called, `ValueError` if what is compared is not a real
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

    def begin(self, struct: PyTree) -> Leaders:
        dtype = scalar(self, struct).dtype
        words = jnp.zeros(self.k, jnp.uint32)
        found, value = jnp.zeros(self.k, bool), jnp.zeros(self.k, dtype)
        return Leaders(exact.zero((), jnp.uint32), found, (words, words), value)

    def absorb(self, state: Leaders, values: PyTree, ok: Ok) -> Leaders:
        score = scalar_of_each(self, values)
        candidate = ok & is_not_nan(score)
        positions = jnp.arange(ok.size, dtype=jnp.uint32)
        seen = (jnp.full((), ok.size, jnp.uint32), jnp.zeros((), jnp.uint32))
        batch = Leaders(seen, candidate, (positions, jnp.zeros_like(positions)), score)
        # Sorting is expensive, and soon few batches have anything to add.
        last = state.value[-1]
        better = score > last if self.mode == "max" else score < last
        worth = jnp.any(candidate & better) | ~state.found[-1]
        skipped = eqx.tree_at(lambda s: s.seen, state, exact.add(state.seen, seen))
        return jax.lax.cond(worth, lambda: self.merge(state, batch), lambda: skipped)

    def merge(self, first: Leaders, second: Leaders) -> Leaders:
        # The later points come second, so that a stable sort keeps ties in order.
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
        # The complement turns integers round without overflow.
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
