"""Host arrays as one batch on the devices, each process giving its own rows."""

from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .._types import PyTree
from .prepare import automatic, cut


def rows_only(sharding: NamedSharding) -> NamedSharding:
    """A sharding of records: that of the leading axis alone."""
    return NamedSharding(automatic(sharding), cut(sharding, 1))


def own_rows(sharding: NamedSharding | None, count: int) -> list[int]:
    """Which of `count` rows this process holds."""
    if sharding is None or sharding.is_fully_addressable:
        return list(range(count))
    parts: Any = rows_only(sharding).addressable_devices_indices_map((count,))
    held = {row for (part,) in parts.values() for row in range(*part.indices(count))}
    return sorted(held)


def spread(
    tree: PyTree, sharding: NamedSharding | None, count: int, rows: list[int]
) -> PyTree:
    """Arrays of some rows (of `count`, this process's own) as arrays of all rows."""
    if sharding is None:
        return jax.device_put(tree)
    placed = rows_only(sharding)
    if sharding.is_fully_addressable:
        return jax.device_put(tree, placed)
    where = np.zeros(count, np.int64)
    where[rows] = np.arange(len(rows))

    def one(leaf: Any) -> Any:
        def part(index: Any) -> Any:
            return leaf[(where[index[0]], *index[1:])]

        return jax.make_array_from_callback((count, *leaf.shape[1:]), placed, part)

    return jtu.tree_map(one, tree)


def everywhere(value: Any, sharding: NamedSharding | None) -> Any:
    """What all processes know, such as a key, whole on every device of a sharding."""
    if sharding is None:
        return value
    placed = NamedSharding(automatic(sharding), P())
    if sharding.is_fully_addressable:
        return jax.device_put(value, placed)

    def one(leaf: Any) -> Any:
        host = np.asarray(leaf)

        def fetch(index: Any) -> np.ndarray:
            return host[index]

        return jax.make_array_from_callback(host.shape, placed, fetch)

    return jtu.tree_map(one, value)
