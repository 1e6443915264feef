"""Lookup tables with the values of evenly spaced axes.

A value read from a table is bitwise identical in a sweep, in `space.point(i)` and in a
coordinate. A value computed by a formula may differ, since XLA may fuse a
multiplication and an addition in one program but not in another. Tables are computed in
float64, whatever the dtype of the axis. A long axis has two short tables instead of one
long one: its value is an entry of `coarse` joined with an entry of `fine`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, Int

from .._tree import on_device
from .numbers import warn_if_alike

BLOCK = 2**16
"""Axes up to this length have one table; longer axes have a fine table of this length.

The longest axis then has two tables of at most 2**16 entries, small enough to be inputs
of a program instead of being computed in each.
"""


class Lookup(eqx.Module):
    """The values at `n` positions: `coarse[i]`, or with a `fine` part joined to it.

    The last entry of `coarse` is the value at the last position, exactly.
    """

    coarse: Inexact[Array, "coarse *shape"]
    fine: Inexact[Array, "fine *shape"] | None


def look_up(
    lookup: Lookup, i: Int[Array, ""], n: int, join: Callable[[Any, Any], Any]
) -> Inexact[Array, "..."]:
    """Return the value at position `i` of `n`."""
    coarse, fine = lookup.coarse, lookup.fine
    if fine is None:
        return take(coarse, i)
    last = i == n - 1
    block = jnp.where(last, coarse.shape[0] - 1, i // BLOCK)
    value = join(take(coarse, block), take(fine, jnp.where(last, 0, i % BLOCK)))
    # The select separates this arithmetic from the arithmetic of the user's function,
    # so that XLA cannot fuse the two with a single rounding.
    return jnp.where(last, take(coarse, block), value)


def take(table: Array | np.ndarray, i: Int[Array, ""]) -> Array:
    """Return `table[i]` for a position within bounds."""
    # Not `dynamic_index_in_dim`, which JAX 0.12 traces and lowers as a function.
    origin = [jnp.zeros_like(i)] * (table.ndim - 1)
    row = jax.lax.dynamic_slice(
        table, [i, *origin], (1, *table.shape[1:]), allow_negative_indices=False
    )
    return jax.lax.squeeze(row, [0])


def tabulate(
    function: str,
    whole: Callable[[Any, Any], Any],
    part: Callable[[Any, Any], Any],
    first: Any,
    last: Any,
    n: int,
) -> Lookup:
    """Return the table of an axis with `n` values from `first` to `last`.

    `function` is the name of the axis class, for messages. `whole(xp, t)` returns the
    values at the fractions `t` between the ends, and `part(xp, t)` the steps (terms or
    factors) that move a value by the fractions `t`. Both use the array module `xp`:
    NumPy for plain numbers, `jax.numpy` for traced ones.
    """
    traced = isinstance(first, jax.Array)
    xp, dtype = (jnp if traced else np), first.dtype

    def entries(fn: Callable[[Any, Any], Any], positions: Any) -> Any:
        fractions = positions / max(n - 1, 1)
        fractions = fractions.reshape((-1,) + (1,) * first.ndim)
        with np.errstate(over="ignore"):
            return fn(xp, fractions.astype(dtype) if traced else fractions)

    step = 1 if n <= BLOCK else BLOCK
    coarse = entries(whole, np.arange(0, n, step, dtype=np.float64))
    if not traced:
        warn_if_alike(function, coarse, dtype)
    # Both ends are exactly the user's numbers, which the formula would round.
    middle = coarse[1:-1] if step == 1 else coarse[1:]
    ends = [first[None], middle.astype(dtype), last[None]]
    coarse = xp.concatenate(ends if n > 1 else ends[:1])
    fine = None
    if step > 1:
        fine = entries(part, np.arange(BLOCK, dtype=np.float64)).astype(dtype)
    return Lookup(on_device(coarse), None if fine is None else on_device(fine))
