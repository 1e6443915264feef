"""Sources on the host, and the values accepted as sources."""

import contextlib
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Integer

from .._cache import WeakCache
from .._check import check_dense
from .._errors import describe_value, type_error, value_error
from .._tree import leaf_text, leaves_with_names
from .._types import PyTree
from .device_source import ArraySource, DeviceSource, as_numbers
from .records import (
    MOST_RECORDS,
    SPARSE,
    HostRecords,
    are_stacked,
    as_numpy,
    check_leading,
    fitting,
    listed,
    stacked,
    struct_of,
)

# With small records 16 threads were slower than none; four are enough for a disk.
_THREADS = 4
# A megabyte takes longer to read than to pass between threads. The exact values do not
# matter.
_CHUNK_BYTES = 2**20
_CHUNK_BATCHES = 8

# Loaders of one source, such as for training and validation, share its lock.
_locks: WeakCache[AbstractContextManager[Any]] = WeakCache()


def is_of(library: str, value: object) -> bool:
    """Return whether the class of a value, or a base of it, comes from a library."""
    return any(
        base.__module__.partition(".")[0] == library for base in type(value).__mro__
    )


class HostArrays(HostRecords):
    """A pytree of arrays on the host as a source, read by one index per array.

    Record `i` is entry `i` of every leading axis. The arrays may be memory maps, or
    arrays of a Zarr or HDF5 file.
    """

    def __init__(self, tree: PyTree):
        tree = _as_pytree(tree)
        check_dense("data.Loader", "`source`", tree, SPARSE)
        self.tree: PyTree = jtu.tree_map(_plain, tree)
        leaves = leaves_with_names(self.tree)
        self.size: int = check_leading("data.Loader", leaves)
        self.thread_safe = all(isinstance(leaf, np.ndarray) for _, leaf in leaves)

    @staticmethod
    def fits(tree: Any) -> bool:
        """Return whether all leaves are arrays with an axis, not all on the device."""
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
    """Return a mapping that is not a pytree, such as an HDF5 file, as a dict."""
    is_leaf = isinstance(tree, Mapping) and jtu.all_leaves([tree])
    return dict(tree) if is_leaf else tree


def _plain(leaf: Any) -> Any:
    # Otherwise every batch read from a memory map would be a memory map.
    if isinstance(leaf, np.ndarray | jax.Array):
        return as_numpy("data.Loader", "an array of `source`", leaf)
    return leaf


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray | jax.Array):
        return True
    return (is_of("zarr", leaf) or is_of("h5py", leaf)) and hasattr(leaf, "ndim")


def _rows(leaf: Any, at: np.ndarray | slice) -> np.ndarray:
    """Return rows of one array as a new array; this reads a file."""
    if isinstance(at, slice):
        # Copied: JAX may read the array later, or use its memory.
        return np.array(leaf[at])
    if isinstance(leaf, np.ndarray):
        # `take` needs half the time, but first copies all of a view with strides,
        # which may be a file larger than memory.
        return leaf.take(at, axis=0) if leaf.flags.c_contiguous else leaf[at]
    if is_of("zarr", leaf):
        return np.asarray(leaf.oindex[at])
    # HDF5 requires indices in ascending order without repetitions.
    once, where = np.unique(at, return_inverse=True)
    return np.asarray(leaf[once])[where]


@runtime_checkable
class Records(Protocol):
    """Records on the host by index: an array or memory map, a dataset, a list.

    If a source has `__getitems__`, a loader calls it once per batch with a list of
    indices. It returns a list of records, or one record whose arrays hold all records
    along a leading axis.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> PyTree: ...


class HostSource:
    """A host source, with the structure, shapes and dtypes of its records.

    Compared by identity, so it is the same leaf in every loader made from it. Only
    sources that are known to be thread-safe are read by several threads at a time.
    """

    def __init__(self, source: Records):
        # Its class is unknown, so its methods are looked up.
        given: Any = source
        self.has_columns: bool = _has_columns(source)
        format = getattr(source, "format", {}) if self.has_columns else {}
        # Columns as Python lists of numbers would be slow.
        is_plain = format.get("type", "") is None
        self.source: Any = given.with_format("numpy") if is_plain else given
        self.size: int = _size_of(source)
        # Arrays are read fast, so more threads slow each other down.
        most = 2 if isinstance(source, HostArrays) else _THREADS
        own = getattr(source, "thread_safe", None)
        thread_safe = own if isinstance(own, bool) else _is_grain(source)
        self.threads = most if thread_safe else 1
        self._lock = contextlib.nullcontext() if thread_safe else _lock_of(source)
        self._struct: PyTree = None
        self._reader = self._reader_of_many()

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<{type(self.source).__name__} of {self.size} records>"

    def struct(self) -> PyTree:
        """Return the shapes and dtypes of record 0."""
        if self._struct is None:
            try:
                self._struct = struct_of(self._record(0))
            except KeyError as error:
                error.add_note(
                    "A loader asks a source for records by number, from 0. Convert a "
                    "table of named columns, such as a data frame: "
                    "`ArraySource({name: table[name].to_numpy() for name in table})`."
                )
                raise
        return self._struct

    def chunk(self, batch_size: int) -> int:
        """Return the number of batches that a thread reads at a time.

        It is one, except for small batches from arrays, which take as long to pass
        between threads as to read. The time that other sources take is unknown.
        """
        if not isinstance(self.source, HostArrays):
            return 1
        leaves = jtu.tree_leaves(self.struct())
        size = batch_size * sum(s.size * s.dtype.itemsize for s in leaves)
        return max(1, min(_CHUNK_BATCHES, _CHUNK_BYTES // max(1, size)))

    def read(self, indices: Integer[np.ndarray, " n"]) -> PyTree:
        """Return records by index, stacked along a leading axis, as new arrays."""
        struct, n = self.struct(), len(indices)
        if n == 0:  # one of several processes, without rows of this batch
            return jtu.tree_map(lambda s: np.empty((0, *s.shape), s.dtype), struct)
        with self._lock:
            if self._reader is not None:
                found = _ask(self._reader, indices, indices)
                if are_stacked(found, struct):
                    columns = fitting(found, n, struct)
                    if columns is not None:
                        return columns
                elif not self.has_columns:
                    return stacked(indices.tolist(), listed(found, n), struct)
            # One by one: the source has no other way, or to find the record that does
            # not fit.
            numbers = indices.tolist()
            return stacked(numbers, [self._record(i) for i in numbers], struct)

    def _record(self, i: int) -> PyTree:
        return _ask(self.source.__getitem__, i, [i])

    def _reader_of_many(self) -> Callable[[np.ndarray], Any] | None:
        """Return a function that reads many records at once, or None if there is none.

        It returns a list of records, or one record whose arrays hold them all.
        """
        source = self.source
        if isinstance(source, HostRecords):
            return source.take
        if isinstance(source, DeviceSource):  # in a mixture with others
            return lambda at: jax.device_get(
                as_numbers(source.take(jnp.asarray(at.astype(np.uint32))))
            )
        if self.has_columns:
            return lambda at: jtu.tree_map(np.asarray, dict(source[at.tolist()]))
        # Grain's datasets, and its sources that read in batches, have `_getitems`.
        own = getattr(source, "_getitems", None) if _is_grain(source) else None
        many = getattr(source, "__getitems__", own)
        return None if many is None else lambda at: many(at.tolist())


def _size_of(source: Records) -> int:
    """Return the number of records, after a check."""
    try:
        size = len(source)
    except OverflowError:  # Python allows less than 2^63
        size = 2**63
    except TypeError as error:  # such as a sparse matrix of SciPy
        raise type_error(
            "data.Loader",
            f"the `{type(source).__name__}` has no length: {error}.",
            "Give a source with a number of records, whose `__len__` returns it.",
        ) from error
    if size > MOST_RECORDS:
        raise value_error(
            "data.Loader",
            f"the source has {size} records or more, and there can be 2^62.",
            "Let `__len__` return a smaller number.",
        )
    return size


def _has_columns(source: object) -> bool:
    """Return whether a source is a Hugging Face dataset, which reads in batches."""
    return hasattr(source, "column_names") and hasattr(source, "with_format")


def _is_grain(source: object) -> bool:
    """Return whether `source` is a `MapDataset` of Grain."""
    names = [base.__name__ for base in type(source).__mro__]
    return "MapDataset" in names and is_of("grain", source)


def _lock_of(source: object) -> AbstractContextManager[Any]:
    try:
        return _locks.get(source) or _locks.put(source, threading.RLock())
    except TypeError:  # lists and other types without weak references
        return threading.RLock()


def _ask(
    read: Callable[[Any], Any], at: Any, records: Sequence[int] | np.ndarray
) -> Any:
    """Return `read(at)`; add a note with the records to any error."""
    try:
        return read(at)
    except Exception as error:
        shown = ", ".join(map(str, records[:8])) + ", ..." * (len(records) > 8)
        kind = "record" if len(records) == 1 else "one of the records"
        note = f"In eqx_pipe.data.Loader: the source failed at {kind} {shown}."
        if isinstance(error, StopIteration):
            # A `StopIteration` would end the iteration over batches silently.
            stopped = RuntimeError(
                "`eqx_pipe.data.Loader`: the source raised `StopIteration`. Give it a "
                "smaller length, or return a record for each number below it."
            )
            stopped.add_note(note)
            raise stopped from error
        error.add_note(note)
        raise


Source: TypeAlias = DeviceSource | HostSource
"""A source as loaders hold it."""

SourceLike: TypeAlias = Source | Array | Records | Mapping[str, Any] | tuple[Any, ...]
"""Everything that is accepted as a source; a JAX array stays on the device."""


def as_source(function: str, argument: str, source: SourceLike) -> Source:
    """Return a source, after a check that it is one."""
    if isinstance(source, DeviceSource | HostSource):
        return source
    if isinstance(source, jax.Array):
        return ArraySource(source)
    if HostArrays.fits(source):
        return HostSource(HostArrays(source))
    lacks = [f"__{a}__" for a in ("getitem", "len") if not hasattr(source, f"__{a}__")]
    if not (lacks or isinstance(source, Mapping | tuple)):
        return HostSource(source)
    without = f", without `{lacks[0]}`" if lacks else ""
    raise type_error(
        function,
        f"`{argument}` is {describe_value(source)}{without}.",
        "Give `ArraySource(tree)` for a pytree of arrays, or anything with `__len__` "
        "and `__getitem__`: NumPy arrays and memory maps, a Grain `MapDataset`, a "
        "Hugging Face dataset (one, not a dictionary of them), a list of records. A "
        "stream has no positions: keep its records in a list, or read them by number.",
    )


def schema_of(struct: PyTree) -> int:
    """Return a hash of the structure, shapes and dtypes of a record."""
    named = [(name, leaf_text(leaf)) for name, leaf in leaves_with_names(struct)]
    return zlib.crc32(repr(named).encode())
