"""A batch of lanes, and the two loops over batches.

One loop would not do. Reverse mode through a loop that writes into buffers costs 1.6
times the memory of one that stacks its outputs, and 32 times with `remat`. A loop that
stacks has a fixed length, and the number of batches of a sweep is data: with a loop of
fixed length XLA removes the loop where there is one batch, and the same point rounds
differently.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, UInt32

from .._types import PyTree


def batch_of(lane: Callable[[Any], PyTree], ids: Any) -> PyTree:
    """Return a lane's outputs at each row of `ids`, vectorised if there are several.

    Under `jax.vmap` both branches of a `cond` run, a loop runs its body for lanes that
    have finished, and a callback of nothing that differs runs once for all of them. A
    single row is computed as the lane is written.
    """
    if len(ids) > 1:
        return jax.vmap(lane)(ids)
    # An output that is a constant is a literal of JAX's, and no array.
    return jtu.tree_map(lambda out: jnp.expand_dims(out, 0), lane(ids[0]))


def stacked(
    batch: Callable[[Any], PyTree], xs: PyTree, *, remat: bool = False
) -> PyTree:
    """Return `batch` of each row of `xs`, one after the other, stacked.

    It is differentiable; `remat` keeps no intermediate value of a batch for the reverse
    pass. A single batch needs no loop.
    """
    run = jax.checkpoint(batch) if remat else batch
    if jtu.tree_leaves(xs)[0].shape[0] == 1:
        out = run(jtu.tree_map(lambda x: x[0], xs))
        return jtu.tree_map(lambda leaf: leaf[None], out)
    return jax.lax.map(run, xs)


def filled(
    batch: Callable[[UInt32[Array, ""]], list[Array]],
    count: Callable[[], UInt32[Array, ""]],
    buffers: list[Array],
    at: Callable[[UInt32[Array, ""]], UInt32[Array, ""]],
) -> list[Array]:
    """Fill `buffers` with the rows of `batch(0)`, ..., `batch(count() - 1)`.

    `at(number)` is the row at which those of a batch begin. `count` and `at` read data
    within the loop, where XLA makes it a part of other steps.
    """

    def step(state: tuple[Any, list[Array]]) -> tuple[Any, list[Array]]:
        number, buffers = state
        into, rows = at(number), batch(number)
        written = [_put(b, r, into) for b, r in zip(buffers, rows, strict=True)]
        return jax.lax.add(number, np.uint32(1)), written

    def goes_on(state: tuple[Any, list[Array]]) -> Array:
        return jax.lax.lt(state[0], count())

    return jax.lax.while_loop(goes_on, step, (np.uint32(0), buffers))[1]


def _put(buffer: Array, rows: Array, at: UInt32[Array, ""]) -> Array:
    # An index without sign, since JAX takes a negative one to count from the end.
    origin = [np.uint32(0)] * (buffer.ndim - 1)
    return jax.lax.dynamic_update_slice(buffer, rows, (at, *origin))
