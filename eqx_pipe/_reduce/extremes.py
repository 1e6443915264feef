"""`Min` and `Max`, leaf by leaf."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from . import exact
from .interface import (
    By,
    LeafReducer,
    Ok,
    Over,
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
