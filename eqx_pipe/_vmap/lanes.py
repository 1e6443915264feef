"""Batches of lanes: a loop on each device that also differentiates in little memory.

Where lanes do not fill the last batch, the first lanes are computed again, and their
second outputs are dropped. In reverse mode a dropped output would get the cotangent
zero, and 0 * inf is NaN. So the derivative of dropping is another linear function of
equal copies: their mean. Each copy gets its share of the lane's cotangent, and a
gradient is infinite where that of `jax.vmap` is.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Float

from .._tree import broadcast_mask
from .._types import PyTree

Marks = tuple[Bool[Array, " lanes"], Float[Array, " lanes"]]
"""Which lanes are first copies, and the share of each copy in the derivative."""

Step = Callable[[PyTree, list[Any], Marks | None], tuple[PyTree, PyTree]]
"""Returns the carry after a batch, and its outputs, with lanes along their axis 0.

It gets the carry, the arrays of the batch, and the `Marks`, if there are any.
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
    marks = None if total == size else marks_of(size, total)
    rows, marks = jtu.tree_map(
        lambda x: x.reshape(count, batch_size, *x.shape[1:]),
        (repeated(lanes, total), marks),
    )

    def body(carry: PyTree, xs: tuple[list[Any], Any]) -> tuple[PyTree, PyTree]:
        return step(carry, *xs)

    # A scan keeps the compiler from merging the two computations of a batch.
    body = jax.checkpoint(body, prevent_cse=False) if remat else body
    carry, outputs = jax.lax.scan(body, init, (rows, marks))
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


def marks_of(
    size: int, total: int
) -> tuple[Bool[np.ndarray, " total"], Float[np.ndarray, " total"]]:
    """Return which lanes of `repeated` are first copies, and the share of each copy."""
    lane = np.arange(total) % size
    shares = 1 / np.bincount(lane)[lane]
    return np.arange(total) < size, shares.astype(np.float32)


def first_copies(y: Any, size: int) -> Any:
    """Return the outputs of the first copies; they vary with the mean of all copies."""
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
    mean = _times(dy, marks_of(size, len(dy))[1])
    total, *rest = (mean[k : k + size] for k in range(0, len(dy), size))
    for part in rest:
        total = total.at[: len(part)].add(part)
    return y[:size], total


def _times(y: Array, factors: Any) -> Array:
    """Return lanes times a factor each, in their own dtype."""
    return y * broadcast_mask(jnp.asarray(factors), y).astype(y.dtype)


def summed(y: Array, marks: Marks | None) -> Array:
    """Return the sum over the lanes, of first copies alone."""
    if marks is None:
        return jnp.sum(y, axis=0)
    return _summed(y, *marks) if _varies(y) else _sum_of_first(y, marks[0])


def _sum_of_first(y: Array, first: Bool[Array, " lanes"]) -> Array:
    return jnp.sum(jnp.where(broadcast_mask(first, y), y, jnp.zeros_like(y)), axis=0)


@jax.custom_jvp
def _summed(
    y: Array, first: Bool[Array, " lanes"], share: Float[Array, " lanes"]
) -> Array:
    return _sum_of_first(y, first)


@_summed.defjvp
def _(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    y, first, share = primals
    return _sum_of_first(y, first), jnp.sum(_times(tangents[0], share), axis=0)


def latest(carry: Any, y: Any, share: float) -> Any:
    """Return `y`, which is equal for all batches, and varies with their mean."""
    return _latest(carry, y, share) if _varies(y) and share < 1 else y


@ft.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _latest(carry: Array, y: Array, share: float) -> Array:
    return y


@_latest.defjvp
def _(
    share: float, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    before, of_y = tangents
    return primals[1], before + of_y * np.asarray(share, of_y.dtype)
