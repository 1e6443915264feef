"""Batches of lanes: a loop on each device that also differentiates in little memory.

Where lanes do not fill the last batch, the first lanes are computed again, and the
outputs of these copies are dropped. In reverse mode a dropped output would get the
cotangent zero, and 0 * inf is NaN where `jax.vmap` has inf. Copies have equal tangents,
so the derivative of dropping may add any small part of them: a copy gets a small
part of its lane's cotangent, which is lost in rounding unless the derivative is
infinite.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool

from .._tree import broadcast_mask
from .._types import PyTree

First: TypeAlias = Bool[Array, " lanes"]
"""False for the copies among lanes."""

Step: TypeAlias = Callable[[PyTree, list[Any], First | None], tuple[PyTree, PyTree]]
"""Returns the carry after a batch, and its outputs, with lanes along their axis 0.

It gets the carry, the arrays of the batch, and which lanes are first copies (`None` if
all are).
"""


def in_batches(
    step: Step, init: PyTree, lanes: list[Any], batch_size: int, *, remat: bool = True
) -> tuple[PyTree, PyTree]:
    """Return the last carry, and the outputs of all lanes.

    `lanes` are arrays with lanes along axis 0, at least one. With `remat`, reverse mode
    computes a batch again, so it keeps nothing but the carries.
    """
    size = len(lanes[0])
    count = -(-size // batch_size)
    if count == 1:
        return step(init, lanes, None)
    total = count * batch_size
    first = None if total == size else np.arange(total) < size
    rows, first = jtu.tree_map(
        lambda x: x.reshape(count, batch_size, *x.shape[1:]),
        (repeated(lanes, total), first),
    )

    def body(carry: PyTree, xs: Any) -> tuple[PyTree, PyTree]:
        return step(carry, *xs)

    # A scan keeps the compiler from merging the two computations of a batch.
    body = jax.checkpoint(body, prevent_cse=False) if remat else body
    carry, outputs = jax.lax.scan(body, init, (rows, first))
    return carry, jtu.tree_map(
        lambda y: first_copies(y.reshape(total, *y.shape[2:]), size), outputs
    )


def repeated(lanes: Sequence[Any], total: int) -> list[Any]:
    """Return `total` lanes: all of them, and as many again as are missing."""
    if not lanes or len(lanes[0]) == total:
        return list(lanes)
    size = len(lanes[0])
    copies, rest = divmod(total, size)
    return [jnp.concatenate([*[x] * copies, x[:rest]]) for x in lanes]


def first_copies(y: Any, size: int) -> Any:
    """Return the outputs of the first copies, without those of the others."""
    if len(y) == size:
        return y
    return _first_copies(y, size) if _varies(y) else y[:size]


def _varies(y: Any) -> bool:
    return jnp.issubdtype(y.dtype, jnp.inexact)


@ft.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _first_copies(y: Array, size: int) -> Array:
    return y[:size]


@_first_copies.defjvp
def _(size: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (y,), (dy,) = primals, tangents
    total = dy[:size]
    for k in range(size, len(dy), size):
        part = dy[k : k + size]
        total = total.at[: len(part)].add(_shares(part, False))
    return y[:size], total


def _shares(y: Array, first: Any) -> Array:
    """Return first copies, and a small part of others."""
    # Two parts multiply if there are copies among devices and among batches.
    small = {"float16": 2.0**-12, "float64": 2.0**-128}
    share = small.get(jnp.finfo(y.dtype).dtype.name, 2.0**-48)
    first = jnp.asarray(first)
    first = jnp.expand_dims(first, range(first.ndim, y.ndim))
    return jnp.where(first, y, y * np.asarray(share, y.dtype))


def summed(y: Array, first: First | None) -> Array:
    """Return the sum over the lanes, of first copies alone."""
    if first is None:
        return jnp.sum(y, axis=0)
    return _summed(y, first) if _varies(y) else _sum_of_first(y, first)


def _sum_of_first(y: Array, first: First) -> Array:
    return jnp.sum(jnp.where(broadcast_mask(first, y), y, jnp.zeros_like(y)), axis=0)


@jax.custom_jvp
def _summed(y: Array, first: First) -> Array:
    return _sum_of_first(y, first)


@_summed.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    y, first = primals
    return _sum_of_first(y, first), jnp.sum(_shares(tangents[0], first), axis=0)
