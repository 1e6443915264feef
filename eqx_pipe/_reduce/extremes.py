"""`Min` and `Max`, leaf by leaf; `ArgMin` and `ArgMax`, of one scalar."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool

from .._types import PyTree
from . import exact
from .leafwise import LeafReducer
from .reducer import AbstractReducer, By, Ok, Over, over_field, scalar, scalar_of_each


class _Bound(LeafReducer):
    """What `Min` and `Max` are, whichever end `minimal` asks for."""

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
        return _result(state, count > 0)


class Min(_Bound):
    """The smallest value of each output leaf, entry by entry.

    A NaN comes through, as in NumPy; without any point there are NaNs and zeros.

    **Arguments:**

    - `by`: what to reduce: the path of an output or a function of it. By default all.
    - `over`: the dims that are reduced, a name or several; the result is then labelled
      along the others. By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is no leaf of the output;
    `TypeError` if what is reduced has no order, as strings and keys.

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

    A NaN comes through, as in NumPy; without any point there are NaNs and zeros.

    **Arguments:**

    - `by`: what to reduce: the path of an output or a function of it. By default all.
    - `over`: the dims that are reduced, a name or several; the result is then labelled
      along the others. By default all points are reduced to one result. (Keyword only.)

    **Raises:** when the sweep is called, `ValueError` if `by` is no leaf of the output;
    `TypeError` if what is reduced has no order, as strings and keys.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(2, 3, 4),
        ...     reduce=ep.reduce.Max()).values.item()
        3.0
    """

    minimal: ClassVar[bool] = False
    by: By = None
    over: Over = over_field()


class Extreme(eqx.Module):
    """What `ArgMin` and `ArgMax` find.

    `index` is the flat index of the point, `None` if there was no number at all;
    `value` is the scalar there. With `TopK` both are arrays, the best first.
    """

    index: int | np.ndarray | None
    value: np.ndarray | np.generic


class Leaders(eqx.Module):
    """How many points there were, the best of them, and where it is among them.

    With `TopK` the best are `k`, of which the first that are `found` are there.
    """

    seen: exact.Pair
    found: Bool[Array, "*k"]
    index: exact.Pair
    value: Array


class _ArgBound(AbstractReducer):
    """What `ArgMin` and `ArgMax` are, whichever end `minimal` asks for."""

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
        return Extreme(index, _result(state.value, state.found))


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

    **Raises:** when the sweep is called, `ValueError` if what is compared is no real
    scalar, or `by` no leaf of the output; `TypeError` if `by` is neither path nor
    function.

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

    **Raises:** when the sweep is called, `ValueError` if what is compared is no real
    scalar, or `by` no leaf of the output; `TypeError` if `by` is neither path nor
    function.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Linspace(0, 4, 9)
        >>> ep.sweep(lambda x: 2 * x, space, reduce=ep.reduce.ArgMax()).values.index
        8
    """

    minimal: ClassVar[bool] = False
    by: By = None
    over: Over = over_field()


def side_by_side(state: Leaders) -> Extreme:
    """Return the leaders of states side by side: index -1 where there is none."""
    index = exact.on_host(state.index, jnp.int32)
    index = np.where(np.asarray(state.found), index, -1)
    return Extreme(index, _result(state.value, state.found))


def worst_of(dtype: DTypeLike, minimal: bool) -> np.ndarray:
    """The number that never wins: the largest for a minimum, the smallest otherwise."""
    if dtype == jnp.bool_:
        return np.asarray(minimal)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return np.asarray(limits.max if minimal else limits.min, dtype)
    return np.asarray(np.inf if minimal else -np.inf, dtype)


def is_not_nan(values: Array) -> Bool[Array, " points"]:
    """Where there is no NaN."""
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    return ~jnp.isnan(values) if floating else jnp.ones(values.shape, bool)


def _result(leaf: Any, found: Any) -> np.ndarray | np.generic:
    """A value on the host; without any point NaN, or zero where there is no NaN."""
    value = np.asarray(leaf)
    floating = jnp.issubdtype(value.dtype, jnp.floating)
    nothing = np.full_like(value, np.nan if floating else 0)
    return np.where(exact.before(np.asarray(found), value), value, nothing)[()]
