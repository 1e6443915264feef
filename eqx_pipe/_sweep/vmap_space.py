"""`vmap_space`: a function at every point of a space, as a pure function."""

import functools as ft
import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Int, UInt32

from .._check import check_int
from .._errors import value_error
from .._keys import check_key
from .._spaces import Space, SpaceLike, advance, as_space, digits_of, point_key
from .._types import Key, PyTree
from .._vmap import batch_of, even_out, stacked
from .call import call
from .compute.cases import case_numbers, cases_of, check_agree, groups_of, naming
from .options import check_fn, check_sweep_key


def vmap_space(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    *,
    key: Key | None = None,
    batch_size: SupportsIndex | None = None,
) -> PyTree:
    """Compute a function at every point of a space, under `jit`, `grad` and `vmap`.

    This is `sweep` as a pure function: it is differentiable with respect to the axes,
    other leaves of the space and values that `fn` closes over.

    **Arguments:**

    - `fn`: called as `fn(point)`, or as `fn(point, key=...)` if it has a parameter of
      that name. The output is any pytree of arrays and numbers.
    - `space`: a `Space`, or a bare pytree with axes in it, which is their product.
    - `key`: a PRNG key; point i gets `space.point_key(i, key=key)`. (Keyword only.)
    - `batch_size`: the number of points vectorised at once, in a loop over batches; by
      default all points. (Keyword only.)

    **Returns:** the pytree of outputs, as JAX arrays with a leading axis over the
    points.

    **Raises:** as `sweep`, and `ValueError` for `2**31` points or more.

    **Laws:** equal to `sweep(...).values`, to rounding, for every batch size.

    !!! example

        >>> import eqx_pipe as ep, jax
        >>> def total(lo):
        ...     return ep.vmap_space(lambda x: x**2, ep.Linspace(lo, 1.0, 3)).sum()
        >>> jax.jit(jax.grad(total))(0.0).item()
        0.5
    """
    check_fn("vmap_space", fn)
    space = as_space("vmap_space", space)
    check_key("vmap_space", key)
    check_sweep_key("vmap_space", key)
    if batch_size is not None:
        check_int("vmap_space", "batch_size", batch_size, 1)
    size = space.size
    if size >= 2**31:
        raise value_error(
            "vmap_space",
            f"the space has {size} points, and all of their values are returned.",
            "At most 2**31 - 1 fit one array: take a slice, `space[a:b]`.",
        )
    geometry = space.geometry
    parts = cases_of(geometry)
    lanes = [ft.partial(_lane, fn, key, part.plain) for part in parts]
    if len(parts) > 1:
        structs = []
        for part, lane in zip(parts, lanes, strict=True):
            with naming(part):
                structs.append(jax.eval_shape(lane(space), np.uint32(0)))
        check_agree("vmap_space", parts, structs)
    numbers = case_numbers(geometry, groups_of(geometry), np.arange(size))
    order = [np.flatnonzero(numbers == part.number) for part in parts]
    most = max(1, size) if batch_size is None else operator.index(batch_size)
    values = [
        _values(lane, space, index, most)
        for lane, index in zip(lanes, order, strict=True)
    ]
    if len(parts) == 1:
        return values[0]
    back = np.argsort(np.concatenate(order))
    return jtu.tree_map(lambda *leaves: jnp.concatenate(leaves)[back], *values)


def _values(
    lane_of: Callable[[Space], Callable[..., PyTree]],
    space: Space,
    index: Int[np.ndarray, " points"],
    most: int,
) -> PyTree:
    """Return the values at the points of `index`, in batches of at most `most`."""
    size = len(index)
    if size == 0:
        lane = lane_of(space._with(span=None, rows=None))
        out = jax.eval_shape(lane, np.uint32(0))
        return jtu.tree_map(lambda leaf: jnp.empty((0, *leaf.shape), leaf.dtype), out)
    batch = even_out(min(most, size), size, 1)
    # Pad with the last point to whole batches, since a shorter batch would need another
    # program.
    number = np.minimum(np.arange(-(-size // batch) * batch), size - 1)
    rows = index[number].astype(np.uint32).reshape(-1, batch)
    values = stacked(ft.partial(batch_of, lane_of(space)), rows)
    return jtu.tree_map(
        lambda leaf: leaf.reshape((rows.size, *leaf.shape[2:]))[:size], values
    )


def _lane(
    fn: Callable[..., Any], key: Key | None, plain: Sequence[int], space: Space
) -> Callable[..., PyTree]:
    """Return the function of a point's index."""
    geometry = space.geometry
    lengths, rows = geometry.lengths, geometry.rows
    first = [np.uint32(digit) for digit in digits_of(geometry.start, lengths)]

    # A single lane gets an element of a NumPy array.
    def lane(i: UInt32[Array, ""] | np.uint32) -> PyTree:
        i = jnp.asarray(i)
        if rows is not None:
            digits = list(rows[i])
        else:
            digits = advance([jnp.asarray(digit) for digit in first], i, lengths)
        positions = [digit.astype(jnp.int32) for digit in digits]
        point = geometry.point(geometry.leaves, space.key, positions, plain)
        own = point_key(key, geometry.key_digits(positions))
        return call("vmap_space", fn, point, own)

    return lane
