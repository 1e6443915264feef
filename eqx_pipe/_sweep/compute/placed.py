"""Arrays put where a sweep runs; small ones stay there for the next sweep.

A copy to every device takes longer than a small sweep. Arrays of JAX do not change, so
those that live on from one sweep to the next (tables of axes, keys, small weights) are
copied once. A copy goes when its array goes.
"""

import math
from typing import Any

import jax
import jax.tree_util as jtu

from ..._cache import WeakCache
from ..._types import PyTree

_MOST_BYTES = 2**20
_copies: WeakCache[dict[Any, jax.Array]] = WeakCache()


def put(tree: PyTree, place: jax.sharding.Sharding) -> PyTree:
    """The arrays of a pytree, copied to where `place` says unless they are there."""
    leaves, structure = jtu.tree_flatten(tree)
    found = [(_copies.get(leaf) or {}).get(place) for leaf in leaves]
    new = [k for k, there in enumerate(found) if there is None]
    if new:
        copies = jax.device_put([leaves[k] for k in new], place)
        for k, copy in zip(new, copies, strict=True):
            found[k] = copy
            _keep(leaves[k], place, copy)
    return jtu.tree_unflatten(structure, found)


def _keep(leaf: Any, place: jax.sharding.Sharding, copy: jax.Array) -> None:
    # Others may change; and what is its own copy would never go.
    if not isinstance(leaf, jax.Array) or copy is leaf:
        return
    if math.prod(leaf.shape) * leaf.dtype.itemsize <= _MOST_BYTES:
        copies = _copies.get(leaf)
        copies = _copies.put(leaf, {}) if copies is None else copies
        copies[place] = copy
