"""`vmap_space`: a function at every point of a space, as a pure function."""

import operator
from collections.abc import Callable
from typing import SupportsIndex

import equinox as eqx
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, UInt32

from .._check import check_int, check_is
from .._errors import value_error
from .._keys import check_mapped_key
from .._run import call
from .._spaces import SpaceLike, as_space
from .._types import Key, PyTree
from .._vmap import local_devices, vmap
from .request import FN_FIRST


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

    **Raises:** as `sweep`; also `TypeError` for `Static` axes, of which each value
    needs a program of its own, and `ValueError` for `2**31` points or more.

    **Laws:** equal to `sweep(...).values`, to rounding, for every batch size and mesh.

    !!! example

        >>> import eqx_pipe as ep, jax
        >>> def total(lo):
        ...     return ep.vmap_space(lambda x: x**2, ep.Linspace(lo, 1.0, 3)).sum()
        >>> jax.jit(jax.grad(total))(0.0).item()
        0.5
    """
    check_is("vmap_space", "fn", fn, Callable, FN_FIRST)
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
    # No point of an empty part is computed, but the function is traced at one.
    space = space if size else space._with(span=None, rows=None)
    # Explicit arrays cannot be closed over on a mesh, so they are arguments.
    arrays, rest = eqx.partition((space, key), eqx.is_array)

    def at(arrays: PyTree, i: UInt32[Array, ""]) -> PyTree:
        space, key = eqx.combine(arrays, rest)
        return call("vmap_space", fn, space.point(i), space.point_key(i, key=key))

    batch = max(size, 1) if batch_size is None else operator.index(batch_size)
    every = vmap(at, in_axes=(None, 0), batch_size=batch, mesh=mesh)
    return every(arrays, np.arange(size, dtype=np.uint32))
