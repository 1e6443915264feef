"""`TopK`: the best few points."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._check import check_choice, check_int
from .._types import PyTree
from . import exact
from .extremes import Extreme, Leaders, is_not_nan, side_by_side
from .reducer import AbstractReducer, By, Ok, Over, over_field, scalar, scalar_of_each


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
    behind the last point.

    **Raises:**

    - `TypeError`, `ValueError` if `k` is no integer of at least 1, or `mode` neither of
      the two.
    - When the sweep is called, `ValueError` if what is compared is no real scalar.

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
        """What sorts the best first."""
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
