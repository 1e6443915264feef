"""Arrays put where a sweep runs; small ones stay there for the next sweep.

A copy to every device takes longer than a small sweep. Arrays of JAX do not change, so
those that live on from one sweep to the next (tables of axes, keys, small weights) are
copied once. A copy goes when its array goes.
"""

import math
import threading
import weakref
from typing import Any

import jax
import jax.tree_util as jtu

from ..._types import PyTree

_KEPT_BYTES = 2**20
_kept: dict[int, tuple[Any, dict[Any, Any]]] = {}
_lock = threading.RLock()


def put(tree: PyTree, place: Any) -> PyTree:
    """The arrays of a pytree, copied to where `place` says unless they are there."""
    leaves, structure = jtu.tree_flatten(tree)
    found = [_known(leaf, place) for leaf in leaves]
    new = [k for k, there in enumerate(found) if there is None]
    if new:
        copies = jax.device_put([leaves[k] for k in new], place)
        for k, copy in zip(new, copies, strict=True):
            found[k] = copy
            _keep(leaves[k], place, copy)
    return jtu.tree_unflatten(structure, found)


def _known(leaf: Any, place: Any) -> Any:
    """The copy of an array, or `None`."""
    with _lock:
        there = _kept.get(id(leaf))
        # An address is used again, perhaps before the entry of its last owner is gone.
        if there is None or there[0]() is not leaf:
            return None
        return there[1].get(place)


def _keep(leaf: Any, place: Any, copy: Any) -> None:
    # Others may change; and what is its own copy would never go.
    if not isinstance(leaf, jax.Array) or copy is leaf:
        return
    if math.prod(leaf.shape) * leaf.dtype.itemsize > _KEPT_BYTES:
        return
    address = id(leaf)
    with _lock:
        there = _kept.get(address)
        if there is None or there[0]() is not leaf:
            there = (weakref.ref(leaf, lambda ref: _forget(address, ref)), {})
            _kept[address] = there
        there[1][place] = copy


def _forget(address: int, ref: Any) -> None:
    with _lock:
        there = _kept.get(address)
        if there is not None and there[0] is ref:
            del _kept[address]
