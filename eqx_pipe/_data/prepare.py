"""From records to a batch: the two pipelines of a loader, each with its keys."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, UInt32

from .._errors import StructureError, message
from .._sharding.mesh import constrain_to, mesh_like, num_shards, with_types
from .._stage import Identity, Scope, enter, fold
from .._tree import as_arrays, leaf_text, leaves_with_names
from .._types import Key, PyTree


class Numbers(NamedTuple):
    """Which records are in a batch.

    `epoch` is one for all or one for each. `record` is their number in the source (its
    lower half, and `high` its upper where there are more than 2^32), and `offset` and
    `offset_high` the place of the first one in its epoch. `ends` are the first and the
    last epoch, where there are no others.
    """

    epoch: UInt32[Array, "..."]
    record: UInt32[Array, " n"]
    high: UInt32[Array, " n"] | None
    offset: UInt32[Array, ""]
    offset_high: UInt32[Array, ""] | None
    ends: UInt32[Array, "2"] | None = None


def prepare(
    pipe: Any, batch_pipe: Any, key: Key, numbers: Numbers, records: PyTree
) -> PyTree:
    """The batch made of some records."""
    if not isinstance(pipe, Identity):
        records = _each(pipe, _named(key, "pipe"), numbers, records)
    if isinstance(batch_pipe, Identity):
        return records
    epoch = numbers.epoch if numbers.epoch.ndim == 0 else numbers.epoch[0]
    own = jr.fold_in(_named(key, "batch_pipe"), epoch)
    if numbers.offset_high is not None:
        own = jr.fold_in(own, numbers.offset_high)
    batch, _ = enter(
        Scope(own),
        "batch_pipe",
        batch_pipe,
        records,
        state=None,
        index=numbers.offset,
    )
    return _only_arrays("batch_pipe", batch)


def _named(key: Key, name: str) -> Key:
    named = fold(key, name)
    assert named is not None
    return named


def _each(pipe: Any, key: Any, numbers: Numbers, records: PyTree) -> PyTree:
    """Every record through `pipe`, each with a key of its own."""
    of_epoch = _keys_of_epochs(key, numbers)

    def one(record: PyTree, index: Any, high: Any, epoch: Any) -> PyTree:
        own = of_epoch(epoch)
        if high is not None:
            own = jr.fold_in(own, high)
        y, _ = enter(Scope(own), "pipe", pipe, record, state=None, index=index)
        return _only_arrays("pipe", y)

    axes = (
        0,
        0,
        None if numbers.high is None else 0,
        None if numbers.epoch.ndim == 0 else 0,
    )
    given = records, numbers.record, numbers.high, numbers.epoch
    return jax.vmap(one, in_axes=axes)(*given)


def _keys_of_epochs(key: Any, numbers: Numbers) -> Callable[[Any], Any]:
    """The key of an epoch, drawn for each record only where that cannot be helped."""
    if numbers.epoch.ndim == 0:
        shared = jr.fold_in(key, numbers.epoch)
        return lambda epoch: shared
    ends = numbers.ends
    if ends is None:
        return lambda epoch: jr.fold_in(key, epoch)
    first, last = jr.fold_in(key, ends[0]), jr.fold_in(key, ends[1])
    return lambda epoch: jnp.where(epoch == ends[0], first, last)


def _only_arrays(argument: str, y: PyTree) -> PyTree:
    y = as_arrays(y)
    for name, leaf in leaves_with_names(y):
        if not eqx.is_array(leaf):
            place = f" at `.{name}`" if name else ""
            raise StructureError(
                message(
                    "Loader",
                    f"the output of `{argument}`{place} is {leaf_text(leaf)}.",
                    "A batch holds arrays and numbers only. Leave the rest out.",
                )
            )
    return y


def automatic(sharding: NamedSharding) -> Mesh:
    """The mesh of a sharding with automatic axes, as our programs use it."""
    assert isinstance(sharding.mesh, Mesh)
    return with_types(sharding.mesh, AxisType.Auto)


def parts(sharding: NamedSharding) -> int:
    """Into how many parts a sharding splits the leading axis of a batch."""
    entry = sharding.spec[0] if len(sharding.spec) else None
    return num_shards(automatic(sharding), entry)


def for_count(sharding: NamedSharding | None, count: int) -> NamedSharding | None:
    """The sharding of a batch of `count` records.

    A short last batch that does not divide is not split along the leading axis.
    """
    if sharding is None or count % parts(sharding) == 0:
        return sharding
    return NamedSharding(sharding.mesh, P(None, *tuple(sharding.spec)[1:]))


def cut(sharding: NamedSharding, ndim: int) -> P:
    """The spec for a leaf that may have fewer axes than the sharding has entries."""
    return P(*tuple(sharding.spec)[:ndim])


def constrained(batch: PyTree, sharding: NamedSharding | None) -> PyTree:
    """A batch inside a program, laid out as the loader's sharding says."""
    if sharding is None:
        return batch
    mesh = automatic(sharding)

    def one(leaf: Array) -> Array:
        return constrain_to(leaf, mesh_like(mesh, leaf), cut(sharding, leaf.ndim))

    return jtu.tree_map(one, batch)


def settled(batch: PyTree, sharding: NamedSharding | None) -> PyTree:
    """A computed batch in the very sharding that the loader was given.

    Its mesh may have explicit axes, and programs name that of a single device by
    another spec.
    """
    if sharding is None:
        return batch

    def one(leaf: Array) -> Array:
        placed = NamedSharding(sharding.mesh, cut(sharding, leaf.ndim))
        if isinstance(leaf, Tracer):  # of a gradient: its sharding is not known
            explicit = AxisType.Explicit in placed.mesh.axis_types
            return jax.device_put(leaf, placed) if explicit else leaf
        return leaf if leaf.sharding == placed else jax.device_put(leaf, placed)

    return jtu.tree_map(one, batch)


def relaxed(tree: PyTree) -> PyTree:
    """Arrays of explicit meshes on the same meshes with automatic axes."""
    return typed(tree, None)


def is_explicit(mesh: Any) -> bool:
    """Whether any of its axes are explicit."""
    return AxisType.Explicit in mesh.axis_types


def typed(tree: PyTree, like: Any) -> PyTree:
    """Arrays that lie on meshes, with the kinds of axes of `like`; None: automatic."""
    types = None if like is None else like.axis_types

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
            return leaf
        own = leaf.sharding
        if not isinstance(own, NamedSharding):
            return leaf
        wanted = types or (AxisType.Auto,) * len(own.mesh.axis_names)
        if own.mesh.axis_types == wanted or len(wanted) != len(own.mesh.axis_names):
            return leaf
        assert isinstance(own.mesh, Mesh)  # an array at hand lies on devices
        mesh = Mesh(own.mesh.devices, own.mesh.axis_names, axis_types=wanted)
        return jax.device_put(leaf, NamedSharding(mesh, own.spec))

    return jtu.tree_map(one, tree)


def wide(size: int) -> bool:
    """Whether the number of a record may need more than 32 bits."""
    return size > 2**32


def halves(numbers: Any) -> tuple[Any, Any]:
    """The lower and upper half of some unsigned 64-bit numbers."""
    numbers = np.asarray(numbers, np.uint64)
    low = (numbers & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return low, (numbers >> np.uint64(32)).astype(np.uint32)
