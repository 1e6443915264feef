"""`vmap_space`: a function at every point of a space, as a pure function."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, UInt32

from .._errors import value_error
from .._jaxprs.jaxpr import as_function
from .._keys import check_key
from .._spaces import Space, SpaceLike, advance, as_space, digits_of, point_key
from .._types import Device, Key, PyTree
from .compute.kernel import without_mesh
from .compute.partition import POINTS
from .compute.points import Part, check_agree, naming, parts_of
from .compute.sizes import even_out
from .options import check_batch_size, mesh_devices
from .tracing.call import call, check_fn, check_sweep_key
from .tracing.concrete import note_concrete


def vmap_space(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    *,
    key: Key | None = None,
    batch_size: SupportsIndex | None = None,
    mesh: Mesh | None = None,
) -> PyTree:
    """Computes a function at every point of a space, under `jit`, `grad` and `vmap`.

    The same as `sweep`, to rounding, as a pure function: it is differentiable with
    respect to the axes, to other leaves of the space and to what `fn` closes over.

    **Arguments:**

    - `fn`: called as `fn(point)`, or as `fn(point, key=...)` if it has a parameter of
      that name. The output is any pytree of arrays and numbers.
    - `space`: a `Space`, or a bare pytree with axes in it, which is their product.
    - `key`: a PRNG key; point i gets `space.point_key(i, key=key)`. (Keyword only.)
    - `batch_size`: how many points are vectorised at once, in a loop; by default all
      of them. (Keyword only.)
    - `mesh`: a mesh over all of whose axes the points are split; by default they are
      not split. (Keyword only.)

    **Returns:** the pytree of outputs with a leading axis over the points.

    **Raises:** as `sweep`.

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
    check_key("vmap_space", key)
    check_sweep_key("vmap_space", key)
    check_batch_size("vmap_space", batch_size, ())
    size = space.size
    if size >= 2**31:
        raise value_error(
            "vmap_space",
            f"the space has {size} points, and all of their values are returned.",
            "At most 2**31 - 1 fit one array: take a slice, `space[a:b]`.",
        )
    devices = () if mesh is None else mesh_devices("vmap_space", mesh)
    parts = parts_of(space.geometry)
    if len(parts) == 1:
        index = np.arange(size)
        return _part(fn, space, key, parts[0], index, batch_size, devices, mesh)
    values, order = [], []
    structs = []
    for part in parts:
        lane = _lane(fn, space, key, part.plain)
        with naming(part):
            structs.append(jax.eval_shape(lane, np.uint32(0)))
    check_agree("vmap_space", parts, structs)
    for part in parts:
        index = part.indices(0, part.size)
        order.append(index)
        values.append(_part(fn, space, key, part, index, batch_size, devices, mesh))
    back = np.argsort(np.concatenate(order))
    return jtu.tree_map(lambda *leaves: jnp.concatenate(leaves)[back], *values)


def _part(
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    part: Part,
    index: np.ndarray,
    batch_size: SupportsIndex | None,
    devices: tuple[Device, ...],
    mesh: Mesh | None,
) -> PyTree:
    """The values at the points of a part, in the order of `index`."""
    size, count = len(index), max(1, len(devices))
    if size == 0:
        lane = _lane(fn, space._with(span=None, rows=None), key, part.plain)
        out = jax.eval_shape(lane, np.uint32(0))
        return jtu.tree_map(lambda leaf: jnp.empty((0, *leaf.shape), leaf.dtype), out)
    asked = size if batch_size is None else operator.index(batch_size)
    batch = even_out(min(asked, size), size, count)
    blocks = _index_blocks(index, batch, count)
    if mesh is None:
        values = _batches(_lane(fn, space, key, part.plain), blocks)
    else:
        values = _on_devices(fn, space, key, part.plain, blocks, mesh)
    return jtu.tree_map(
        lambda leaf: leaf.reshape((blocks.size, *leaf.shape[3:]))[:size], values
    )


def _index_blocks(index: np.ndarray, batch: int, num_devices: int) -> np.ndarray:
    """Indices as `(devices, batches, batch)`; what is left over repeats the last."""
    batches = -(-len(index) // (batch * num_devices))
    number = np.minimum(np.arange(num_devices * batches * batch), len(index) - 1)
    return index[number].astype(np.uint32).reshape(num_devices, batches, batch)


def _lane(
    fn: Callable[..., Any], space: Space, key: Key | None, plain: Sequence[int]
) -> Callable[[UInt32[Array, ""]], PyTree]:
    """The function of a point's index."""
    geometry = space.geometry
    lengths, rows = geometry.lengths, geometry.rows
    first = [np.uint32(digit) for digit in digits_of(geometry.start, lengths)]

    def lane(i: UInt32[Array, ""]) -> PyTree:
        digits = [jnp.asarray(digit) for digit in first]
        if rows is not None:
            digits = list(rows[i])
        else:
            digits = advance(digits, i, lengths)
        positions = [digit.astype(jnp.int32) for digit in digits]
        point = geometry.point(geometry.leaves, space.key, positions, plain)
        own = point_key(key, geometry.key_digits(positions))
        try:
            return call("vmap_space", fn, point, own)
        except Exception as error:
            note_concrete(error)
            raise

    return lane


def _batches(lane: Callable[..., PyTree], index: Any) -> PyTree:
    """`(devices, batches, batch)` indices, one batch after the other."""
    if index.shape[:2] == (1, 1):
        return jtu.tree_map(lambda leaf: leaf[None, None], jax.vmap(lane)(index[0, 0]))
    # Whole batches: `lax.map(batch_size=)` would trace a second body for the rest.
    values = jax.lax.map(jax.vmap(lane), jnp.asarray(index[0]))
    return jtu.tree_map(lambda leaf: leaf[None], values)


def _on_devices(
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    plain: Sequence[int],
    index: Any,
    mesh: Mesh,
) -> PyTree:
    """The same, each device with its own row of `index`."""
    context = jax.sharding.get_abstract_mesh()
    if context.empty:
        mesh = Mesh(mesh.devices.reshape(-1), (POINTS,), axis_types=(AxisType.Auto,))
        # What the function closes over, traced values too, is handed in as an argument,
        # so that gradients flow back to it.
        lane = _lane(fn, space, key, plain)
        make: Any = jax.make_jaxpr(lane, return_shape=True)
        jaxpr, out = make(np.uint32(0))
        structure = jtu.tree_structure(out)
        given = list(jaxpr.consts)

        def alone(row: Array, given: Any) -> PyTree:
            def one(i: Array) -> PyTree:
                leaves = as_function(jaxpr, given)(i)
                return jtu.tree_unflatten(structure, leaves)

            return _batches(one, row)

        on_device = without_mesh(alone)
    else:
        # JAX's equations remember the mesh under which they were traced, so the
        # function has to be traced inside of the map.
        given, static = eqx.partition((space, key), eqx.is_array)
        if AxisType.Explicit in context.axis_types:
            index = jax.sharding.reshard(index, P(mesh.axis_names))

        def on_device(row: Array, given: Any) -> PyTree:
            here, own = eqx.combine(given, static)
            lane = _lane(fn, here, own, plain)
            return _batches(lane, row)

    split = P(mesh.axis_names)
    # Not checked: loops of the user's, whose carry begins as a constant, would be
    # refused. The specs are ours.
    values = jax.shard_map(
        on_device, mesh=mesh, in_specs=(split, P()), out_specs=split, check_vma=False
    )(index, given)
    if AxisType.Explicit in context.axis_types:
        # Uneven slices of an array with explicit sharding are not implemented in JAX.
        values = jtu.tree_map(lambda leaf: jax.sharding.reshard(leaf, P()), values)
    return values
