"""`Min` and `Max`, leaf by leaf; `ArgMin` and `ArgMax`, of one scalar."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool

from .._types import PyTree
from . import exact
from .base import Reduction, choose, numbers, pick_all, picked, scalar


class Bounds(eqx.Module):
    """Whether there was any point, and the extreme value of each leaf."""

    found: Bool[Array, ""]
    values: PyTree


class Min(Reduction):
    """The smallest value of each output leaf, entry by entry.

    A NaN comes through, as in NumPy; without any point there are NaNs and zeros.

    **Arguments:**

    - `by`: what to reduce: the path of an output or a function of it. By default all.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(2, 3, 4), reduce=ep.Min()).values.item()
        2.0
    """

    by: Any = None

    def init(self, struct: PyTree) -> Bounds:
        return _no_bounds("Min", self.by, struct, 1)

    def absorb(
        self, state: Bounds, values: PyTree, ok: Bool[Array, " points"]
    ) -> Bounds:
        chosen = pick_all("Min", self.by, values)
        worst = jtu.tree_map(lambda leaf: worst_of(leaf.dtype, 1), chosen)
        kept = _kept(chosen, worst, ok)
        least = jtu.tree_map(lambda leaf: jnp.min(leaf, axis=0), kept)
        return self.merge(state, Bounds(jnp.any(ok), least))

    def merge(self, first: Bounds, second: Bounds) -> Bounds:
        least = jtu.tree_map(jnp.minimum, first.values, second.values)
        return Bounds(first.found | second.found, least)

    def finish(self, state: Bounds) -> PyTree:
        return _bounds(state)


class Max(Reduction):
    """The largest value of each output leaf, entry by entry.

    A NaN comes through, as in NumPy; without any point there are NaNs and zeros.

    **Arguments:**

    - `by`: what to reduce: the path of an output or a function of it. By default all.

    !!! example

        >>> import eqx_pipe as ep
        >>> ep.sweep(lambda x: x, ep.Linspace(2, 3, 4), reduce=ep.Max()).values.item()
        3.0
    """

    by: Any = None

    def init(self, struct: PyTree) -> Bounds:
        return _no_bounds("Max", self.by, struct, -1)

    def absorb(
        self, state: Bounds, values: PyTree, ok: Bool[Array, " points"]
    ) -> Bounds:
        chosen = pick_all("Max", self.by, values)
        worst = jtu.tree_map(lambda leaf: worst_of(leaf.dtype, -1), chosen)
        kept = _kept(chosen, worst, ok)
        most = jtu.tree_map(lambda leaf: jnp.max(leaf, axis=0), kept)
        return self.merge(state, Bounds(jnp.any(ok), most))

    def merge(self, first: Bounds, second: Bounds) -> Bounds:
        most = jtu.tree_map(jnp.maximum, first.values, second.values)
        return Bounds(first.found | second.found, most)

    def finish(self, state: Bounds) -> PyTree:
        return _bounds(state)


class Extreme(eqx.Module):
    """What `ArgMin` and `ArgMax` find.

    `index` is the flat index of the point, `None` if there was no number at all;
    `value` is the scalar there. With `TopK` both are arrays, the best first.
    """

    index: Any
    value: Any


class Place(eqx.Module):
    """How many points there were, the best of them, and where it is among them."""

    seen: exact.Pair
    found: Bool[Array, ""]
    index: exact.Pair
    value: Array


class ArgMin(Reduction):
    """The point with the smallest scalar, and that scalar.

    Ties go to the lowest index, NaNs never win.

    **Arguments:**

    - `by`: what is compared: the path of a scalar output, or a function of the output
      that gives a real scalar. Not needed if the output is one scalar.

    **Returns:** (as the sweep's `.values`) an object with `.index`, a Python integer,
    and `.value`.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Linspace(0, 4, 9)
        >>> best = ep.sweep(lambda x: (x - 2) ** 2, space, reduce=ep.ArgMin()).values
        >>> best.index, best.value.item()
        (4, 0.0)
    """

    by: Any = None

    def init(self, struct: PyTree) -> Place:
        return _nowhere("ArgMin", self.by, struct)

    def absorb(self, state: Place, values: PyTree, ok: Bool[Array, " points"]) -> Place:
        return self.merge(state, _place(choose("ArgMin", self.by, values), ok, 1))

    def merge(self, first: Place, second: Place) -> Place:
        return _better(first, second, second.value < first.value)

    def finish(self, state: Place) -> Extreme:
        return _extreme(state)


class ArgMax(Reduction):
    """The point with the largest scalar, and that scalar.

    Ties go to the lowest index, NaNs never win.

    **Arguments:**

    - `by`: what is compared: the path of a scalar output, or a function of the output
      that gives a real scalar. Not needed if the output is one scalar.

    **Returns:** (as the sweep's `.values`) an object with `.index`, a Python integer,
    and `.value`.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Linspace(0, 4, 9)
        >>> ep.sweep(lambda x: 2 * x, space, reduce=ep.ArgMax()).values.index
        8
    """

    by: Any = None

    def init(self, struct: PyTree) -> Place:
        return _nowhere("ArgMax", self.by, struct)

    def absorb(self, state: Place, values: PyTree, ok: Bool[Array, " points"]) -> Place:
        return self.merge(state, _place(choose("ArgMax", self.by, values), ok, -1))

    def merge(self, first: Place, second: Place) -> Place:
        return _better(first, second, second.value > first.value)

    def finish(self, state: Place) -> Extreme:
        return _extreme(state)


def worst_of(dtype: Any, sign: int) -> np.ndarray:
    """The number that never wins: the largest for `sign=1`, the smallest for -1."""
    if dtype == jnp.bool_:
        return np.asarray(sign > 0)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return np.asarray(limits.max if sign > 0 else limits.min, dtype)
    return np.asarray(sign * np.inf, dtype)


def is_number(values: Array) -> Bool[Array, " points"]:
    """Where there is no NaN."""
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    return ~jnp.isnan(values) if floating else jnp.ones(values.shape, bool)


def _no_bounds(function: str, by: Any, struct: PyTree, sign: int) -> Bounds:
    numbers(function, by, struct, ordered=True)
    empty = jtu.tree_map(
        lambda leaf: jnp.full(leaf.shape, worst_of(leaf.dtype, sign)),
        picked(function, by, struct),
    )
    return Bounds(jnp.zeros((), bool), empty)


def _kept(values: PyTree, worst: PyTree, ok: Bool[Array, " points"]) -> PyTree:
    def one(leaf: Array, other: Any) -> Array:
        shape = ok.shape + (1,) * (leaf.ndim - 1)
        return jnp.where(ok.reshape(shape), leaf, other)

    return jtu.tree_map(one, values, worst)


def _bounds(state: Bounds) -> PyTree:
    def one(leaf: Array) -> Any:
        value = np.asarray(leaf)
        if not state.found:
            floating = jnp.issubdtype(value.dtype, jnp.floating)
            value = np.full_like(value, np.nan if floating else 0)
        return value[()]

    return jtu.tree_map(one, state.values)


def _nowhere(function: str, by: Any, struct: PyTree) -> Place:
    zero = exact.zero((), jnp.uint32)
    value = jnp.zeros((), scalar(function, by, struct).dtype)
    return Place(zero, jnp.zeros((), bool), zero, value)


def _place(values: Array, ok: Bool[Array, " points"], sign: int) -> Place:
    """The best of a batch."""
    candidate = ok & is_number(values)
    kept = jnp.where(candidate, values, worst_of(values.dtype, sign))
    best = jnp.min(kept) if sign > 0 else jnp.max(kept)
    # Two passes that vectorise are faster than `argmin`.
    positions = jnp.arange(ok.size, dtype=jnp.uint32)
    wins = candidate & (kept == best)
    index = jnp.min(jnp.where(wins, positions, np.uint32(ok.size - 1)))
    value = _take(values, index)
    zero = jnp.zeros((), jnp.uint32)
    seen = (jnp.full((), ok.size, jnp.uint32), zero)
    return Place(seen, jnp.any(candidate), (index, zero), value)


def _take(values: Array, index: Array) -> Array:
    """`values[index]` for an index within bounds."""
    return values.at[index].get(mode="promise_in_bounds")


def _better(first: Place, second: Place, wins: Bool[Array, ""]) -> Place:
    """The later one if it `wins` and has anything to show."""
    later = second.found & (wins | ~first.found)
    moved = exact.add(second.index, first.seen)
    low, high = (
        jnp.where(later, b, a) for a, b in zip(first.index, moved, strict=True)
    )
    return Place(
        exact.add(first.seen, second.seen),
        first.found | second.found,
        (low, high),
        jnp.where(later, second.value, first.value),
    )


def _extreme(state: Place) -> Extreme:
    value = np.asarray(state.value)
    if state.found:
        return Extreme(exact.whole(state.index), value[()])
    floating = jnp.issubdtype(value.dtype, jnp.floating)
    return Extreme(None, np.full_like(value, np.nan if floating else 0)[()])
