"""`vmap_space`: a function at every point of a space, as a pure function."""

import functools as ft
import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, UInt32

from .._check import check_int
from .._errors import value_error
from .._keys import check_mapped_key
from .._spaces import Space, SpaceLike, advance, as_space, digits_of, point_key
from .._types import Key, PyTree
from .._vmap import local_devices, vmap
from .call import call
from .compute.cases import cases_of, check_agree, naming, rows_of
from .request import check_fn


def vmap_space(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    *,
    key: Key | None = None,
    batch_size: SupportsIndex | None = None,
    mesh: Mesh | None = None,
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
    - `mesh`: a mesh; the points are split over all of its axes. By default they are not
      split. (Keyword only.)

    **Returns:** the pytree of outputs, as JAX arrays with a leading axis over the
    points.

    **Raises:** as `sweep`, and `ValueError` for `2**31` points or more.

    **Laws:** equal to `sweep(...).values`, to rounding, for every batch size and mesh.

    !!! example

        >>> import eqx_pipe as ep, jax
        >>> def total(lo):
        ...     return ep.vmap_space(lambda x: x**2, ep.Linspace(lo, 1.0, 3)).sum()
        >>> jax.jit(jax.grad(total))(0.0).item()
        0.5
    """
    check_fn("vmap_space", fn)
    space = as_space("vmap_space", space)
    check_mapped_key("vmap_space", key)
    if batch_size is not None:
        check_int("vmap_space", "batch_size", batch_size, 1)
    size = space.size
    if size >= 2**31:
        raise value_error(
            "vmap_space",
            f"the space has {size} points, and all of their values are returned.",
            "At most 2**31 - 1 fit one array: take a slice, `space[a:b]`.",
        )
    if mesh is not None:
        local_devices("vmap_space", mesh)
    parts = cases_of(space.geometry)
    lanes = [ft.partial(_lane, fn, plain=part.plain) for part in parts]
    if len(parts) > 1:
        structs = []
        for part, lane in zip(parts, lanes, strict=True):
            with naming(part):
                structs.append(jax.eval_shape(lane(space, key), np.uint32(0)))
        check_agree("vmap_space", parts, structs)
    order = rows_of(space.geometry, parts)
    batch = max(size, 1) if batch_size is None else operator.index(batch_size)
    values = [
        _values(lane, space, key, index, batch, mesh)
        for lane, index in zip(lanes, order, strict=True)
    ]
    if len(parts) == 1:
        return values[0]
    back = np.argsort(np.concatenate(order))
    return jtu.tree_map(lambda *leaves: jnp.concatenate(leaves)[back], *values)


def _values(
    lane_of: Callable[[Space, Key | None], Callable[..., PyTree]],
    space: Space,
    key: Key | None,
    index: np.ndarray,
    batch_size: int,
    mesh: Mesh | None,
) -> PyTree:
    """Return the values at the points of `index`, in that order."""
    if len(index) == 0:
        lane = lane_of(space._with(span=None, rows=None), key)
        out = jax.eval_shape(lane, np.uint32(0))
        return jtu.tree_map(lambda leaf: jnp.empty((0, *leaf.shape), leaf.dtype), out)
    # Explicit arrays cannot be closed over on a mesh, so they are arguments.
    given, static = eqx.partition((space, key), eqx.is_array)

    def at(given: PyTree, i: UInt32[Array, ""]) -> PyTree:
        return lane_of(*eqx.combine(given, static))(i)

    every = vmap(at, in_axes=(None, 0), batch_size=batch_size, mesh=mesh)
    return every(given, index.astype(np.uint32))


def _lane(
    fn: Callable[..., Any], space: Space, key: Key | None, plain: Sequence[int]
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
        lane_key = point_key(key, geometry.key_digits(positions))
        return call("vmap_space", fn, point, lane_key)

    return lane
