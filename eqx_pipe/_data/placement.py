"""Place batches and records on devices by the loader's sharding.

Most functions take the user's sharding, or None, and the number of records in the
batch: a short last batch that does not divide is not split along its leading axis.

Explicit axes of a mesh are part of an array's type, and a program accepts only one kind
of axes. The loader's programs use automatic axes, whatever the user's meshes have:
arrays are converted at the boundary, which moves no data.
"""

import contextlib
from contextlib import AbstractContextManager

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from .._errors import describe_value, type_error, value_error
from .._mesh_context import is_explicit, no_context, with_axis_types
from .._sharding import (
    constrain_to,
    fitting_sizes,
    mesh_like,
    num_shards,
    shard,
    with_types,
)
from .._types import PyTree
from .source import DeviceSource, Source

_BY_PROGRAM_BYTES = 2**20
"""A batch of at most this many bytes is moved to the device by a program."""


def check_sharding(sharding: object, batch_size: int) -> NamedSharding | None:
    """Return the sharding for batches; raise unless it splits them evenly."""
    if sharding is None:
        return None
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        raise type_error(
            "data.Loader",
            f"`sharding` is {describe_value(sharding)}.",
            "Give a `jax.sharding.NamedSharding(mesh, PartitionSpec('data'))` over a "
            "mesh of devices.",
        )
    parts = num_parts(sharding)
    if batch_size % parts:
        raise value_error(
            "data.Loader",
            f"`batch_size` is {batch_size}, which {sharding.spec} splits into "
            f"{parts} parts.",
            f"Give a batch size that divides by {parts}, such as "
            f"{fitting_sizes(batch_size, parts)}.",
        )
    return sharding


def num_parts(sharding: NamedSharding) -> int:
    """Return the number of parts of the leading axis of a batch."""
    entry = sharding.spec[0] if len(sharding.spec) else None
    return num_shards(auto_mesh(sharding), entry)


def without_users_mesh(
    sharding: NamedSharding | None,
) -> AbstractContextManager[object]:
    """Leave the user's `jax.set_mesh` if the loader has its own mesh."""
    return contextlib.nullcontext() if sharding is None else no_context()


def constrained(batch: PyTree, sharding: NamedSharding | None, count: int) -> PyTree:
    """Constrain a batch inside a program to the loader's sharding."""
    if sharding is None:
        return batch
    mesh, wanted = auto_mesh(sharding), _for_count(sharding, count)

    def one(leaf: Array) -> Array:
        return constrain_to(leaf, mesh_like(mesh, leaf), spec_of(wanted, leaf.ndim))

    return jtu.tree_map(one, batch)


def in_users_sharding(
    batch: PyTree, sharding: NamedSharding | None, count: int
) -> PyTree:
    """Return a computed batch in exactly the sharding that the user gave.

    Its mesh may have explicit axes, and programs use another spec for the sharding of a
    single device.
    """
    if sharding is None:
        return batch
    wanted = _for_count(sharding, count)

    def one(leaf: Array) -> Array:
        target = NamedSharding(sharding.mesh, spec_of(wanted, leaf.ndim))
        if isinstance(leaf, Tracer):  # under a gradient: its sharding is unknown
            return jax.device_put(leaf, target) if is_explicit(target.mesh) else leaf
        return leaf if leaf.sharding == target else jax.device_put(leaf, target)

    return jtu.tree_map(one, batch)


def local_rows(sharding: NamedSharding | None, count: int) -> list[int] | None:
    """Return the rows of a batch that this process holds, or None for all."""
    if sharding is None or sharding.is_fully_addressable:
        return None
    parts = _rows_only(sharding, count).addressable_devices_indices_map((count,))
    slices = [index[0] for index in parts.values() if index is not None]
    return sorted({row for part in slices for row in range(*part.indices(count))})


def to_devices(
    tree: PyTree, sharding: NamedSharding | None, count: int, rows: list[int] | None
) -> PyTree:
    """Return arrays of this process's own rows as global arrays on the devices."""
    if sharding is None:
        size = sum(leaf.nbytes for leaf in jtu.tree_leaves(tree))
        with no_context():
            return (_on_device if size <= _BY_PROGRAM_BYTES else jax.device_put)(tree)
    target = _rows_only(sharding, count)
    if rows is None:
        return jax.device_put(tree, target)

    def one(leaf: np.ndarray) -> Array:
        shape = (count, *leaf.shape[1:])
        if not rows:  # no device of this process holds any rows
            return jax.make_array_from_single_device_arrays(
                shape, target, [], dtype=leaf.dtype
            )
        return jax.make_array_from_process_local_data(target, leaf, shape)

    return jtu.tree_map(one, tree)


@jax.jit
def _on_device(tree: PyTree) -> PyTree:
    # Arguments of a program reach the device in about 20 us, by `device_put` in about
    # 90 (two arrays of some kilobytes). But a program copies its arguments, while
    # `device_put` uses the arrays themselves if it can, which is faster for large
    # arrays.
    return jtu.tree_map(jnp.asarray, tree)


def replicated(tree: PyTree, sharding: NamedSharding | None) -> PyTree:
    """Copy values that all processes have, such as a key, to every device."""
    if sharding is None:
        return tree
    target = NamedSharding(auto_mesh(sharding), P())
    if sharding.is_fully_addressable:
        return jax.device_put(tree, target)

    def one(leaf: np.ndarray | Array) -> Array:
        return jax.make_array_from_process_local_data(target, np.asarray(leaf))

    return jtu.tree_map(one, tree)


def source_on_mesh(source: Source, sharding: NamedSharding | None) -> Source:
    """Copy a device source to all devices of the mesh, so no batch moves it again."""
    if sharding is None or not isinstance(source, DeviceSource):
        return source
    arrays = [x for x in jtu.tree_leaves(source) if eqx.is_array(x)]
    on_mesh = all(_is_on(x, sharding) for x in arrays)
    with no_context():
        source = source if on_mesh else shard(source, auto_mesh(sharding), P())
        # Explicit axes are part of the types of arrays: use those of the user's mesh.
        return with_axis_types(source, sharding.mesh.axis_types)


def _for_count(sharding: NamedSharding, count: int) -> NamedSharding:
    """Return the sharding of a batch of `count` records."""
    if count % num_parts(sharding) == 0:
        return sharding
    return NamedSharding(sharding.mesh, P(None, *tuple(sharding.spec)[1:]))


def spec_of(sharding: NamedSharding, ndim: int) -> P:
    """Return the spec for a leaf, which may have fewer axes than the sharding."""
    return P(*tuple(sharding.spec)[:ndim])


def _rows_only(sharding: NamedSharding, count: int) -> NamedSharding:
    """Return the sharding of records, which splits only the leading axis."""
    return NamedSharding(auto_mesh(sharding), spec_of(_for_count(sharding, count), 1))


def _is_on(x: object, sharding: NamedSharding) -> bool:
    if isinstance(x, Tracer):
        return True
    if not isinstance(x, jax.Array) or not isinstance(x.sharding, NamedSharding):
        return False
    return x.sharding.device_set == sharding.device_set


def auto_mesh(sharding: NamedSharding) -> Mesh:
    """Return the mesh of a sharding with automatic axes, as the programs use it."""
    assert isinstance(sharding.mesh, Mesh)
    return with_types(sharding.mesh, AxisType.Auto)
