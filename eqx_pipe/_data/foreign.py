"""Sources of other libraries: how each is best read."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Integer

from .._errors import structure_error
from .._tree import leaves_with_names
from .._types import PyTree
from .records import HostRecords, check_leading, named


def is_of(library: str, value: object) -> bool:
    """Whether the class of a value, or a base of it, comes from a library."""
    return any(
        base.__module__.partition(".")[0] == library for base in type(value).__mro__
    )


def is_grain(source: object) -> bool:
    """Whether it is a `MapDataset` of Grain."""
    names = [base.__name__ for base in type(source).__mro__]
    return "MapDataset" in names and is_of("grain", source)


def has_columns(source: object) -> bool:
    """Whether it is a Hugging Face dataset, which reads many records at once."""
    return hasattr(source, "column_names") and hasattr(source, "with_format")


def is_thread_safe(source: object) -> bool:
    """Whether it is known that several threads may read it at a time."""
    ours = getattr(source, "thread_safe", None)
    return ours if isinstance(ours, bool) else is_grain(source)


def reader_of(source: Any) -> Callable[[np.ndarray], Any] | None:
    """How to ask a source for many records at once; None if it cannot be asked.

    It returns a list of them, or one record whose arrays hold them all.
    """
    if isinstance(source, HostRecords):
        return source.take
    if has_columns(source):
        return Columns(source)
    # Of Grain's datasets, and of the sources for them that read in batches.
    own = getattr(source, "_getitems", None) if is_grain(source) else None
    many = getattr(source, "__getitems__", own)
    return None if many is None else lambda at: many(at.tolist())


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
        """Whether these are arrays with a leading axis, and not all on the device."""
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
    """A mapping that is none, as a file of HDF5, as a dictionary."""
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
    """Rows of one array, as an array of their own: here is where a file is read."""
    if isinstance(at, slice):
        # Copied: JAX reads what it is given later, or takes it for its own.
        return np.array(leaf[at])
    if isinstance(leaf, np.ndarray):
        return leaf.take(at, axis=0)  # half the time of `leaf[at]`
    if is_of("zarr", leaf):
        return np.asarray(leaf.oindex[at])
    # HDF5 takes numbers in ascending order, each once.
    once, where = np.unique(at, return_inverse=True)
    return np.asarray(leaf[once])[where]


class Columns:
    """Reads columns of a Hugging Face dataset, and looks out for missing numbers.

    In NumPy a missing number is NaN, which cannot be told from one that is meant.
    """

    def __init__(self, source: Any):
        # A `set_transform` of the user may well fill them.
        form = getattr(source, "format", {}).get("type")
        table: Any = getattr(source, "data", None)
        known = hasattr(table, "column") and form != "custom"
        names = source.column_names if known else []
        self._names = [name for name in names if _missing(table.column(name))]
        self._rows = source.with_format("arrow") if self._names else None
        self._source = source

    def __call__(self, at: np.ndarray) -> PyTree:
        indices = at.tolist()
        self._check_gaps(indices)
        return jtu.tree_map(np.asarray, dict(self._source[indices]))

    def _check_gaps(self, indices: list[int]) -> None:
        if self._rows is None:
            return
        rows = self._rows[indices]
        for at, i in enumerate(indices):
            for name in self._names:
                if _missing(rows.column(name).slice(at, 1)):
                    error = structure_error(
                        "data.Loader",
                        f"record {i} of the source has a gap: a number of its column "
                        f"`{name}` is missing.",
                        "Leave such records out, or fill them, with NaN where that is "
                        "meant: `dataset.filter(...)` or `dataset.map(...)`.",
                    )
                    raise named(error, i)


def _missing(array: Any) -> bool:
    """Whether numbers are missing in an Arrow array, or in lists or structs in it."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        return any(_missing(chunk) for chunk in array.chunks)
    if isinstance(array, pa.ExtensionArray):
        return _missing(array.storage)
    kind = array.type
    if pa.types.is_struct(kind):
        return any(_missing(field) for field in array.flatten())
    if pa.types.is_nested(kind) and hasattr(array, "flatten"):
        return _missing(array.flatten()) or (
            array.null_count > 0 and _numeric(kind.value_type)
        )
    return array.null_count > 0 and _numeric(kind)


def _numeric(kind: Any) -> bool:
    import pyarrow as pa

    while pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        kind = kind.value_type
    types = pa.types
    return types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)
