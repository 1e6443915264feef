"""Arrays on the host as a source: of NumPy, memory maps, of Zarr and HDF5 files."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Integer

from .._tree import leaves_with_names
from .._types import PyTree
from .records import HostRecords, check_leading


def is_of(library: str, value: object) -> bool:
    """Return whether the class of a value, or a base of it, comes from a library."""
    return any(
        base.__module__.partition(".")[0] == library for base in type(value).__mro__
    )


class HostArrays(HostRecords):
    """A pytree of arrays on the host as a source, read by one index for each of them.

    Record `i` is what stands at index `i` of every leading axis. The arrays may be
    memory maps, or those of a Zarr or HDF5 file.
    """

    def __init__(self, tree: PyTree):
        self.tree: PyTree = jtu.tree_map(_plain, _as_pytree(tree))
        leaves = leaves_with_names(self.tree)
        self.size: int = check_leading("data.Loader", leaves)
        self.thread_safe = all(isinstance(leaf, np.ndarray) for _, leaf in leaves)

    @staticmethod
    def fits(tree: Any) -> bool:
        """Return whether these are arrays with leading axes, not all on the device."""
        if not (isinstance(tree, Mapping | tuple) or _is_array(tree)):
            return False
        leaves = jtu.tree_leaves(_as_pytree(tree))
        on_device = all(isinstance(leaf, jax.Array) for leaf in leaves)
        return not on_device and all(_is_array(x) and x.ndim > 0 for x in leaves)

    def __len__(self) -> int:
        return self.size

    def take(self, indices: Integer[np.ndarray, " n"]) -> PyTree:
        first, n = int(indices[0]), len(indices)
        in_order = int(indices[-1]) == first + n - 1 and (np.diff(indices) == 1).all()
        # A slice of a file is one read; an index reads row by row.
        at = slice(first, first + n) if in_order else indices.astype(np.int64)
        return jtu.tree_map(lambda leaf: _rows(leaf, at), self.tree)


def _as_pytree(tree: Any) -> PyTree:
    """Return a mapping that JAX does not look into, as an HDF5 file, as a dict."""
    is_leaf = isinstance(tree, Mapping) and jtu.all_leaves([tree])
    return dict(tree) if is_leaf else tree


def _plain(leaf: Any) -> Any:
    # A memory map would make a map of every batch that is read from it.
    return np.asarray(leaf) if isinstance(leaf, np.ndarray | jax.Array) else leaf


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray | jax.Array):
        return True
    return (is_of("zarr", leaf) or is_of("h5py", leaf)) and hasattr(leaf, "ndim")


def _rows(leaf: Any, at: np.ndarray | slice) -> np.ndarray:
    """Return rows of one array, as an array of their own: here a file is read."""
    if isinstance(at, slice):
        # Copied: JAX reads what it is given later, or takes it for its own.
        return np.array(leaf[at])
    if isinstance(leaf, np.ndarray):
        # `take` needs half the time, but first copies all of a view with strides,
        # which may be a file larger than memory.
        return leaf.take(at, axis=0) if leaf.flags.c_contiguous else leaf[at]
    if is_of("zarr", leaf):
        return np.asarray(leaf.oindex[at])
    # HDF5 takes numbers in ascending order, each once.
    once, where = np.unique(at, return_inverse=True)
    return np.asarray(leaf[once])[where]
