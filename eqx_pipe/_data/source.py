"""Sources of records: on the host, on the device, and everything accepted as one.

For JAX and Equinox every leaf of floating-point numbers is a parameter: `filter_grad`
differentiates it, and weight decay shrinks it even where its gradient is zero.
Floating-point records on the device are therefore stored as integers with the same
bits. These are ordinary leaves (arguments of compiled programs, sharded, saved), and
the last step of making a batch converts them back, which XLA fuses with later
operations. Records of a host source are checked and converted to dtypes of JAX.
"""

import contextlib
import functools as ft
import math
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, SupportsIndex, TypeAlias, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Integer, UInt32

from .._cache import WeakCache
from .._check import check_dense, common_size, is_integer
from .._compiled import default_devices
from .._errors import (
    StructureError,
    describe_value,
    structure_error,
    type_error,
    value_error,
)
from .._tree import (
    as_arrays,
    differences,
    is_key_array,
    leaf_text,
    leaves_with_names,
    path_name,
)
from .._types import PyTree

MOST_RECORDS = 2**62
"""The largest source: the order of an epoch is a permutation of at most this many."""

SPARSE = (
    "Batches cannot stack its values and indices: make it dense by `.todense()`, or "
    "give its arrays (`.data`, `.indices`) and make the matrix in `pipe`."
)

_LEADING = (
    "The leading axis of every array counts the records. Cut or transpose those that "
    "do not fit."
)
_MANY = (
    "It returns a list with one record for each of the indices, in their order; or one "
    "record whose arrays hold them all, along a leading axis."
)


def index_of(index: SupportsIndex, size: int) -> int:
    """Return the index from 0 of the record that `source[index]` means."""
    if not is_integer(index):
        raise TypeError(
            f"a source gives one record by its number, and was asked for {index!r}. "
            "`Loader` makes batches of them."
        )
    i = index.__index__()
    if not -size <= i < size:
        raise IndexError(
            f"record {i} of a source of {size} records. Give an integer from {-size} "
            f"to {size - 1}."
        )
    return i % size


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


class HostArrays:
    """A pytree of arrays on the host as a source, read by one index per array.

    Record `i` is entry `i` of every leading axis. The arrays may be memory maps, or
    arrays of a Zarr or HDF5 file.
    """

    def __init__(self, tree: PyTree):
        tree = _as_pytree(tree)
        check_dense("data.Loader", "`source`", tree, SPARSE)
        self.tree: PyTree = jtu.tree_map(_plain, tree)
        leaves = leaves_with_names(self.tree)
        self.size: int = common_size("data.Loader", "`source`", self.tree, 0, _LEADING)
        self.thread_safe = all(isinstance(leaf, np.ndarray) for _, leaf in leaves)

    @staticmethod
    def fits(tree: object) -> bool:
        """Return whether all leaves are arrays with an axis, not all on the device."""
        if not (isinstance(tree, Mapping | tuple) or _is_array(tree)):
            return False
        leaves = jtu.tree_leaves(_as_pytree(tree))
        on_device = all(isinstance(leaf, jax.Array) for leaf in leaves)
        return not on_device and all(_is_array(x) and x.ndim > 0 for x in leaves)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> PyTree:
        return jtu.tree_map(lambda leaf: leaf[0], self.take(np.asarray([index])))

    def take(self, indices: Integer[np.ndarray, " n"]) -> PyTree:
        """Return records by index, stacked along a leading axis."""
        first, n = int(indices[0]), len(indices)
        in_order = int(indices[-1]) == first + n - 1 and (np.diff(indices) == 1).all()
        # A slice of a file is one read; an index reads row by row.
        at = slice(first, first + n) if in_order else indices.astype(np.int64)
        return jtu.tree_map(lambda leaf: _rows(leaf, at), self.tree)


def _as_pytree(tree: Any) -> PyTree:
    """Return a mapping that is not a pytree, such as an HDF5 file, as a dict."""
    is_leaf = isinstance(tree, Mapping) and jtu.all_leaves([tree])
    return dict(tree) if is_leaf else tree


def _plain(leaf: object) -> Any:
    # Otherwise every batch read from a memory map would be a memory map.
    if isinstance(leaf, np.ndarray | jax.Array):
        return as_numpy("data.Loader", "an array of `source`", leaf)
    return leaf


def _is_array(leaf: object) -> bool:
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
        # Its class is unknown, so its methods are looked up. A Hugging Face dataset
        # reads in batches of columns.
        dataset: Any = source
        methods = "column_names", "with_format"
        self.has_columns: bool = all(hasattr(source, name) for name in methods)
        format = getattr(source, "format", {}) if self.has_columns else {}
        # Columns as Python lists of numbers would be slow.
        is_plain = format.get("type", "") is None
        self.source: Any = dataset.with_format("numpy") if is_plain else dataset
        self.size: int = _size_of(source)
        # Arrays are read fast, so more threads slow each other down.
        most = 2 if isinstance(source, HostArrays) else _THREADS
        thread_safe = getattr(source, "thread_safe", None)
        if not isinstance(thread_safe, bool):
            thread_safe = _is_grain(source)
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
                self._struct = _record_struct(self._record(0))
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
                records = _ask(self._reader, indices, indices)
                if _are_stacked(records, struct):
                    columns = _fitting(records, indices, struct)
                    if columns is not None:
                        return columns
                elif not self.has_columns:
                    return _stacked(indices.tolist(), _listed(records, n), struct)
            # One by one: the source has no other way, or to find the record that does
            # not fit.
            numbers = indices.tolist()
            return _stacked(numbers, [self._record(i) for i in numbers], struct)

    def _record(self, i: int) -> PyTree:
        return _ask(self.source.__getitem__, i, [i])

    def _reader_of_many(self) -> Callable[[np.ndarray], Any] | None:
        """Return a function that reads many records at once, or None if there is none.

        It returns a list of records, or one record whose arrays hold them all.
        """
        source = self.source
        if isinstance(source, HostArrays):
            return source.take
        if self.has_columns:
            return lambda at: jtu.tree_map(np.asarray, dict(source[at.tolist()]))
        # Grain's datasets, and its sources that read in batches, have `_getitems`.
        many = getattr(source, "__getitems__", None)
        if many is None and _is_grain(source):
            many = getattr(source, "_getitems", None)
        return None if many is None else lambda at: many(at.tolist())


def _size_of(source: Records) -> int:
    """Return the number of records, after a check."""
    try:
        size = len(source)
    except OverflowError:  # Python allows less than 2^63
        size = 2**63
    except TypeError as error:  # such as a sparse matrix of SciPy
        wrong = f"the `{type(source).__name__}` has no length: {error}."
        cure = "Give a source with a number of records, whose `__len__` returns it."
        raise type_error("data.Loader", wrong, cure) from error
    if size > MOST_RECORDS:
        wrong = f"the source has {size} records or more, and there can be 2^62."
        cure = "Let `__len__` return a smaller number."
        raise value_error("data.Loader", wrong, cure)
    return size


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


def schema_of(struct: PyTree) -> int:
    """Return a hash of the structure, shapes and dtypes of a record."""
    named = [(name, leaf_text(leaf)) for name, leaf in leaves_with_names(struct)]
    return zlib.crc32(repr(named).encode())


# Records, checked and in JAX's dtypes.


def _record_struct(record: PyTree, i: int = 0) -> PyTree:
    """Return the shapes and dtypes of record `i`; raise if a leaf is not supported."""
    check_dense("data.Loader", f"record {i} of the source", record, SPARSE)
    leaves, structure = jtu.tree_flatten_with_path(record)
    if not leaves:
        raise _unusable(i, "", record)
    structs = [_leaf_struct(i, path_name(path), leaf) for path, leaf in leaves]
    return jtu.tree_unflatten(structure, structs)


def jax_dtype(dtype: np.dtype) -> np.dtype | None:
    """Return the dtype in which JAX holds such numbers, or None if it does not.

    JAX has no long doubles, and only the byte order of the machine.
    """
    native = _native(dtype)
    return None if native is None else jax.dtypes.canonicalize_dtype(native)


@ft.lru_cache(256)
def _native(dtype: np.dtype) -> np.dtype | None:
    # JAX's short floats have the kind V, as structured arrays do; durations are numbers
    # for NumPy.
    is_number = dtype.kind in "biufc" or jnp.issubdtype(dtype, jnp.number)
    too_long = dtype.itemsize > {"f": 8, "c": 16}.get(dtype.kind, dtype.itemsize)
    if not is_number or too_long or dtype.kind in "mM":
        return None
    return dtype.newbyteorder("=")


def as_numpy(function: str, what: str, leaf: object) -> np.ndarray:
    """Return a leaf of a record as an array; raise if it has a mask.

    `what` names the leaf in the error.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        wrong = f"{what} is a masked array, and its mask would be lost."
        cure = "Fill it with a value, `array.filled(numpy.nan)`; if you need the mask, "
        cure += "give `numpy.ma.getmaskarray(array)` as another array of the record."
        raise value_error(function, wrong, cure)
    return np.asarray(leaf)


def narrowed(
    function: str,
    name: str,
    array: np.ndarray,
    dtype: np.dtype,
    indices: Sequence[int] | np.ndarray | None = None,
) -> np.ndarray:
    """Return an array in the dtype that JAX would use; raise if numbers do not fit.

    The array has the leaf `name` of the records with these `indices`, by default all.
    """
    if array.dtype == dtype:
        return array
    # Numbers that are too large become infinite, which raises below.
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype)
    if array.dtype.kind in "iu":
        misfits = narrow != array
    else:
        misfits = np.isfinite(narrow) != np.isfinite(array)
    if misfits.any():
        at = np.unravel_index(int(np.argmax(misfits)), misfits.shape)
        record = at[0] if indices is None else indices[int(at[0])]
        path = f" at `.{name}`" if name else ""
        wrong = f"record {record} of the source{path} has {array.dtype} numbers that "
        wrong += f"do not fit into {dtype}, such as {array[at]}."
        cure = "Switch `jax_enable_x64` on, or let the source give smaller numbers."
        raise value_error(function, wrong, cure)
    return narrow


def _are_stacked(records: PyTree, struct: PyTree) -> bool:
    """Return whether `records` is one record whose arrays hold several, not a list."""
    if isinstance(records, Iterator):  # not a pytree for JAX; raises later
        return False
    leaves, structure = jtu.tree_flatten(records)
    return structure == jtu.tree_structure(struct) and all(
        getattr(leaf, "shape", ()) != () for leaf in leaves
    )


def _fitting(columns: PyTree, indices: np.ndarray, struct: PyTree) -> PyTree | None:
    """Return stacked records in JAX's dtypes, or None if one does not fit."""
    leaves, n = jtu.tree_leaves(columns), len(indices)
    _check_count({len(leaf) for leaf in leaves}, n)
    arrays = [as_numpy("data.Loader", "a leaf of the records", x) for x in leaves]
    pairs = list(zip(arrays, jtu.tree_leaves(struct), strict=True))
    if not all(_is_like(leaf, (n, *s.shape), s) for leaf, s in pairs):
        return None
    return _narrowed(arrays, indices, struct)


def _narrowed(
    columns: Sequence[np.ndarray], indices: Sequence[int] | np.ndarray, struct: PyTree
) -> PyTree:
    """Return stacked records in JAX's dtypes; raise if a number does not fit."""
    pairs = zip(leaves_with_names(struct), columns, strict=True)
    arrays = [
        narrowed("data.Loader", name, column, s.dtype, indices)
        for (name, s), column in pairs
    ]
    return jtu.tree_unflatten(jtu.tree_structure(struct), arrays)


# The check of masks would take a tenth of the time of reading a list of records.
_NOT_MASKED = {np.ndarray, bool, int, float}


def _stacked(
    indices: Sequence[int], records: Sequence[PyTree], struct: PyTree
) -> PyTree:
    """Stack records leaf by leaf; raise a `StructureError` if one does not fit."""
    structs, structure = jtu.tree_flatten(struct)
    rows = []
    for i, record in zip(indices, records, strict=True):
        leaves, form = jtu.tree_flatten(record)
        for leaf in leaves:
            if type(leaf) not in _NOT_MASKED:
                as_numpy("data.Loader", f"a leaf of record {i}", leaf)  # raises
        row = list(map(np.asarray, leaves))
        pairs = zip(row, structs, strict=False)  # the structures may differ
        same = all(_is_like(leaf, s.shape, s) for leaf, s in pairs)
        if form != structure or not same:
            raise _misfit(i, record, struct)
        rows.append(row)
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    return _narrowed(columns, indices, struct)


def _listed(read: Iterable[PyTree], count: int) -> list[PyTree]:
    """Return the records of one read as a list; raise unless there are `count`."""
    records = list(read)
    _check_count({len(records)}, count)
    return records


def _check_count(sizes: set[int], count: int) -> None:
    if sizes != {count}:
        numbers = " and ".join(map(str, sorted(sizes)))
        wrong = f"returned {numbers} records, but {count} were requested."
        raise value_error("data.Loader", f"`__getitems__` {wrong}", _MANY)


def _is_like(
    leaf: np.ndarray, shape: tuple[int, ...], struct: jax.ShapeDtypeStruct
) -> bool:
    return leaf.shape == shape and (
        leaf.dtype == struct.dtype or jax_dtype(leaf.dtype) == struct.dtype
    )


def _leaf_struct(i: int, name: str, leaf: object) -> jax.ShapeDtypeStruct:
    if is_key_array(leaf):
        raise _unusable(i, name, leaf)
    path = f" at `.{name}`" if name else ""
    array = as_numpy("data.Loader", f"record {i} of the source{path}", leaf)
    dtype = jax_dtype(array.dtype)
    if dtype is None:
        raise _unusable(i, name, leaf)
    return jax.ShapeDtypeStruct(array.shape, dtype)


def _unusable(i: int, name: str, leaf: object) -> TypeError:
    path = f" at `.{name}`" if name else ""
    is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic)
    shown = leaf_text(leaf) if is_array else describe_value(leaf)
    wrong = f"record {i} of the source{path} is {shown}, not an array of numbers that "
    wrong += "JAX supports."
    cure = "A record is a pytree of numbers and arrays. Leave text and the like out, "
    cure += "or encode them as integers; convert long doubles by `.astype(float)`, and "
    cure += "give the fields of a structured array as a dict."
    return type_error("data.Loader", wrong, cure)


def _misfit(i: int, record: PyTree, struct: PyTree) -> StructureError:
    lines = differences(struct, _record_struct(record, i))
    wrong = f"record 0 of the source and record {i} differ: {'; '.join(lines)}."
    cure = "All records need the same structure, shapes and dtypes. Pad or cut them in "
    cure += "the source."
    return structure_error("data.Loader", wrong, cure)


# JAX indexes with int32, unless `jax_enable_x64` is set.
MOST_ON_DEVICE = 2**31 - 1


class Bits(eqx.Module):
    """Records of numbers: those of floating point as integers of the same bits.

    The two parts of a complex number lie along an additional last axis. Records of a
    `shape` are flattened, and padded to whole rows of a TPU.
    """

    bits: Array | np.ndarray
    dtype: np.dtype = eqx.field(static=True)
    shape: tuple[int, ...] | None = eqx.field(static=True)

    def numbers(self) -> Array:
        """Return the array itself."""
        bits = self.bits
        if self.shape is not None:
            rows = bits[..., : math.prod(self.shape)]
            bits = rows.reshape(*bits.shape[:-1], *self.shape)
        if bits.dtype == self.dtype:
            return jnp.asarray(bits)
        if not jnp.issubdtype(self.dtype, jnp.complexfloating):
            return jax.lax.bitcast_convert_type(bits, self.dtype)
        part = jnp.finfo(self.dtype).dtype
        parts = jax.lax.bitcast_convert_type(bits, part)
        return jax.lax.complex(parts[..., 0], parts[..., 1])


def _as_bits(leaf: Array | np.ndarray) -> Bits | Array | np.ndarray:
    """Return an array as `Bits`, unless its numbers may stay as they are."""
    # A traced array may be an argument of a gradient, and is then differentiated.
    if isinstance(leaf, Tracer) or jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return leaf
    dtype = np.dtype(leaf.dtype)
    # Converted on the host before the move: the device may have no memory for a copy.
    xp = np if isinstance(leaf, np.ndarray) else jnp
    padded = leaf.ndim > 1 and _is_padded(leaf)
    if jnp.issubdtype(dtype, jnp.inexact):
        if jnp.issubdtype(dtype, jnp.complexfloating):
            leaf = xp.stack([xp.real(leaf), xp.imag(leaf)], axis=-1)
        leaf = leaf.view(getattr(jnp, f"uint{jnp.finfo(dtype).bits}"))
    elif not padded:
        return leaf
    if not padded:
        return Bits(leaf, dtype, None)
    rows = leaf.reshape(len(leaf), -1)
    return Bits(
        xp.pad(rows, ((0, 0), (0, -rows.shape[1] % _ROW))), dtype, leaf.shape[1:]
    )


_ROW = 128
"""The numbers of a row of a TPU's memory."""


def _is_padded(leaf: Array | np.ndarray) -> bool:
    """Return whether the records of an array are stored as padded rows.

    A TPU stores the records across its rows if that takes less memory, and then copies
    all of them at each gather. Rows take at most twice the memory.
    """
    if math.prod(leaf.shape[1:]) <= _ROW // 2:
        return False
    if isinstance(leaf, np.ndarray):
        return default_devices()[0].platform == "tpu"
    platforms = {device.platform for device in leaf.devices()}
    return platforms == {"tpu"} and leaf.is_fully_replicated


def as_numbers(tree: PyTree) -> PyTree:
    """Convert all `Bits` of a pytree back to numbers."""
    return jtu.tree_map(
        lambda leaf: leaf.numbers() if isinstance(leaf, Bits) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Bits),
    )


class ArraySource(eqx.Module):
    """Arrays on the device as a source of records.

    Record `i` is entry `i` of the leading axis of every array. NumPy arrays are moved
    to the device once, when the source is made; JAX arrays stay on their devices, also
    when sharded (floating-point arrays are copied there).

    Records are data, not parameters: `equinox.filter_grad` does not differentiate them,
    and an optimiser does not change them. To ensure this, floating-point and complex
    numbers are stored as integers with the same bits. On a TPU, records of more than 64
    numbers are stored as rows of a multiple of 128, so that a batch is read without
    copying the data. `tree` returns the original arrays, converted at each access; to
    change records, make another source. Only a source made of traced arrays, inside a
    transformation, is differentiated.

    **Arguments:**

    - `tree`: a pytree of arrays with a common leading axis.

    **Shapes:** leaves `(records, *a)`; a record has `(*a,)`.

    **Raises:**

    - `StructureError` (a `ValueError`) if leading axes differ, a leaf has none, or
      there are no arrays; the error names all leaves.
    - `TypeError` if a leaf is not an array of numbers that JAX supports, or belongs to
      a sparse matrix.
    - `ValueError` if an array is masked, 64-bit numbers do not fit into JAX's 32-bit
      dtypes, or there are more than 2^31 - 1 records.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> source = ep.data.ArraySource({"x": jnp.ones((5, 3)), "y": jnp.arange(5)})
        >>> len(source), source[2]["y"].item()
        (5, 2)
    """

    held: PyTree

    def __init__(self, tree: PyTree):
        check_dense("data.ArraySource", "`tree`", tree, SPARSE)
        leaves = leaves_with_names(tree)
        _check_leaves(leaves)
        size = common_size("data.ArraySource", "`tree`", tree, 0, _LEADING)
        if size > MOST_ON_DEVICE:
            wrong = f"{size} records, and there can be 2^31 - 1 on a device."
            cure = "Give the NumPy array or memory map itself as a host source."
            raise value_error("data.ArraySource", wrong, cure)
        held = jtu.tree_map_with_path(
            lambda path, leaf: _as_bits(_in_jax_dtype(path_name(path), leaf)), tree
        )
        self.held = as_arrays(held)

    @property
    def tree(self) -> PyTree:
        """The arrays with all records."""
        return as_numbers(self.held)

    def __len__(self) -> int:
        """Return the number of records."""
        return jtu.tree_leaves(self.held)[0].shape[0]

    def __getitem__(self, index: SupportsIndex) -> PyTree:
        """Return one record; a negative index counts from the end."""
        one = self.take(jnp.asarray([index_of(index, len(self))], np.uint32))
        return as_numbers(jtu.tree_map(lambda leaf: leaf[0], one))

    def struct(self) -> PyTree:
        """Return the shapes and dtypes of one record."""
        index = jax.ShapeDtypeStruct((1,), np.uint32)
        one = jax.eval_shape(lambda index: as_numbers(self.take(index)), index)
        return jtu.tree_map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), one)

    def take(self, indices: UInt32[Array, " n"]) -> PyTree:
        """Return records by index, stacked along a leading axis, as bits.

        Indices are not checked.
        """
        at = indices.astype(np.int32)

        # The indices come from a permutation of the records, so JAX need not check
        # them.
        def one(leaf: Array) -> Array:
            return leaf.at[at].get(mode="promise_in_bounds")

        return jtu.tree_map(one, self.held)

    def slice(self, start: UInt32[Array, ""], count: int) -> PyTree:
        """Return `count` consecutive records, as bits."""
        first = start.astype(np.int32)

        def one(leaf: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(leaf, first, count)

        return jtu.tree_map(one, self.held)


def _in_jax_dtype(name: str, leaf: Array | np.ndarray) -> Array | np.ndarray:
    """Return a NumPy array in JAX's dtype, checked: JAX itself wraps large numbers."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    dtype = jax_dtype(leaf.dtype)
    assert dtype is not None
    return narrowed("data.ArraySource", name, leaf, dtype)


def _check_leaves(leaves: list[tuple[str, object]]) -> None:
    if not leaves:
        wrong = "`tree` holds no arrays."
        cure = "Give arrays whose leading axis counts the records."
        raise structure_error("data.ArraySource", wrong, cure)
    for name, leaf in leaves:
        name = name or "tree"
        if isinstance(leaf, np.ndarray):
            as_numpy("data.ArraySource", f"`{name}`", leaf)
            good = _fits_device(jax_dtype(leaf.dtype))
        else:
            good = isinstance(leaf, jax.Array)
        if not good or np.ndim(leaf) == 0:
            number = eqx.is_array_like(leaf) and np.ndim(leaf) == 0
            error = structure_error if number else type_error
            wrong = f"`{name}` is {describe_value(leaf)}, not an array of records."
            cure = "The leading axis of every array counts the records: repeat a "
            cure += "scalar for each record, or add it in `pipe`; encode text as "
            cure += "integers; convert long doubles by `.astype(float)`, and give the "
            cure += "fields of a structured array as a dict."
            raise error("data.ArraySource", wrong, cure)


def _fits_device(dtype: np.dtype | None) -> bool:
    """Return whether JAX has the dtype, and integers of the same bits."""
    if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
        return dtype is not None
    return hasattr(jnp, f"uint{jnp.finfo(dtype).bits}")


Source: TypeAlias = ArraySource | HostSource
"""A source as loaders hold it."""

SourceLike: TypeAlias = Source | Array | Records | Mapping[str, Any] | tuple[Any, ...]
"""Everything that is accepted as a source; a JAX array stays on the device."""


def as_source(source: SourceLike) -> Source:
    """Return a source, after a check that it is one."""
    if isinstance(source, ArraySource | HostSource):
        return source
    if isinstance(source, jax.Array):
        return ArraySource(source)
    if HostArrays.fits(source):
        return HostSource(HostArrays(source))
    lacks = [f"__{a}__" for a in ("getitem", "len") if not hasattr(source, f"__{a}__")]
    if not (lacks or isinstance(source, Mapping | tuple)):
        return HostSource(source)
    without = f", without `{lacks[0]}`" if lacks else ""
    wrong = f"`source` is {describe_value(source)}{without}."
    cure = "Give `ArraySource(tree)` for a pytree of arrays, or anything with "
    cure += "`__len__` and `__getitem__`: NumPy arrays and memory maps, a Grain "
    cure += "`MapDataset`, a Hugging Face dataset (one, not a dictionary of them), a "
    cure += "list of records. A stream has no positions: keep its records in a list, "
    cure += "or read them by number."
    raise type_error("data.Loader", wrong, cure)
