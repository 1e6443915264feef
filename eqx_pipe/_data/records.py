"""Check records of host sources, and convert them to JAX's dtypes."""

import abc
import functools as ft
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Integer

from .._check import check_dense, is_integer
from .._errors import (
    StructureError,
    bullets,
    describe_value,
    structure_error,
    type_error,
    value_error,
)
from .._tree import differences, is_key_array, leaf_text, path_name
from .._types import PyTree

MOST_RECORDS = 2**62
"""The largest source: the order of an epoch is a permutation of at most this many."""

SPARSE = (
    "Batches cannot stack its values and indices: make it dense by `.todense()`, or "
    "give its arrays (`.data`, `.indices`) and make the matrix in `pipe`."
)

_MANY = (
    "It returns a list with one record for each of the indices, in their order; or one "
    "record whose arrays hold them all, along a leading axis."
)


def struct_of(record: PyTree, i: int = 0) -> PyTree:
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
    known = dtype.kind in "biufc" or jnp.issubdtype(dtype, jnp.number)
    too_long = dtype.itemsize > {"f": 8, "c": 16}.get(dtype.kind, dtype.itemsize)
    if not known or too_long or dtype.kind in "mM":
        return None
    return dtype.newbyteorder("=")


def as_numpy(function: str, what: str, leaf: Any) -> np.ndarray:
    """Return a leaf of a record as an array; raise if it has a mask.

    `what` names the leaf in the error.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        raise value_error(
            function,
            f"{what} is a masked array, and its mask would be lost.",
            "Fill it with a value, `array.filled(numpy.nan)`; if you need the mask, "
            "give `numpy.ma.getmaskarray(array)` as another array of the record.",
        )
    return np.asarray(leaf)


def narrowed(function: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return an array in the dtype that JAX would use; raise if numbers do not fit."""
    if array.dtype == dtype:
        return array
    # Numbers that are too large become infinite, which raises below.
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype)
    if array.dtype.kind in "iu":
        fits = np.array_equal(narrow, array)
    else:
        fits = np.array_equal(np.isfinite(narrow), np.isfinite(array))
    if not fits:
        raise value_error(
            function,
            f"the source holds {array.dtype} numbers that do not fit into {dtype}.",
            "Switch `jax_enable_x64` on, or let the source give smaller numbers.",
        )
    return narrow


def are_stacked(found: PyTree, struct: PyTree) -> bool:
    """Return whether `found` is one record whose arrays hold several, not a list."""
    if isinstance(found, Iterator):  # not a pytree for JAX; raises later
        return False
    leaves, structure = jtu.tree_flatten(found)
    return structure == jtu.tree_structure(struct) and all(
        getattr(leaf, "shape", ()) != () for leaf in leaves
    )


def fitting(columns: PyTree, n: int, struct: PyTree) -> PyTree | None:
    """Return `n` stacked records in JAX's dtypes, or None if one does not fit."""
    leaves, structure = jtu.tree_flatten(columns)
    _check_count({len(leaf) for leaf in leaves}, n)
    arrays = [as_numpy("data.Loader", "a leaf of the records", x) for x in leaves]
    pairs = list(zip(arrays, jtu.tree_leaves(struct), strict=True))
    if not all(_is_like(leaf, (n, *s.shape), s) for leaf, s in pairs):
        return None
    return jtu.tree_unflatten(
        structure, [narrowed("data.Loader", leaf, s.dtype) for leaf, s in pairs]
    )


def stacked(
    indices: Sequence[int], records: Sequence[PyTree], struct: PyTree
) -> PyTree:
    """Stack records leaf by leaf; raise a `StructureError` if one does not fit."""
    structs, structure = jtu.tree_flatten(struct)
    rows = []
    for i, record in zip(indices, records, strict=True):
        leaves, own = jtu.tree_flatten(record)
        what = f"a leaf of record {i}"
        row = None
        if own == structure:
            row = [as_numpy("data.Loader", what, leaf) for leaf in leaves]
        if row is None or not all(
            _is_like(leaf, s.shape, s) for leaf, s in zip(row, structs, strict=True)
        ):
            raise _misfit(i, record, struct)
        rows.append(row)
    pairs = zip(zip(*rows, strict=True), structs, strict=True)
    columns = [
        narrowed("data.Loader", np.stack(column), s.dtype) for column, s in pairs
    ]
    return jtu.tree_unflatten(structure, columns)


def listed(found: Iterable[PyTree], count: int) -> list[PyTree]:
    """Return the records of one read as a list; raise unless there are `count`."""
    records = list(found)
    _check_count({len(records)}, count)
    return records


def _check_count(found: set[int], count: int) -> None:
    if found != {count}:
        numbers = " and ".join(map(str, sorted(found)))
        wrong = f"returned {numbers} records, but {count} were requested."
        raise value_error("data.Loader", f"`__getitems__` {wrong}", _MANY)


def check_leading(function: str, leaves: Sequence[tuple[str, Any]]) -> int:
    """Return the common size of the leading axes, which count the records."""
    sizes = {leaf.shape[0] for _, leaf in leaves}
    if len(sizes) > 1:
        lines = [f"`{name or 'tree'}`: {leaf_text(leaf)}" for name, leaf in leaves]
        raise structure_error(
            function,
            f"the leading axes differ:{bullets(lines)}",
            "The leading axis of every array counts the records. Cut or "
            "transpose those that do not fit.",
        )
    return sizes.pop()


class HostRecords(abc.ABC):
    """The abstract base of host sources that read many records at a time, stacked."""

    thread_safe: bool = True

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of records."""

    @abc.abstractmethod
    def take(self, indices: Integer[np.ndarray, " n"]) -> PyTree:
        """Return records by index, stacked along a leading axis."""

    def __getitem__(self, index: SupportsIndex) -> PyTree:
        """Return one record; a negative index counts from the end."""
        one = self.take(np.asarray([index_of(index, len(self))]))
        return jtu.tree_map(lambda leaf: leaf[0], one)


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


def _is_like(
    leaf: np.ndarray, shape: tuple[int, ...], struct: jax.ShapeDtypeStruct
) -> bool:
    return leaf.shape == shape and (
        leaf.dtype == struct.dtype or jax_dtype(leaf.dtype) == struct.dtype
    )


def _leaf_struct(i: int, name: str, leaf: object) -> jax.ShapeDtypeStruct:
    if is_key_array(leaf):
        raise _unusable(i, name, leaf)
    place = f" at `.{name}`" if name else ""
    array = as_numpy("data.Loader", f"record {i} of the source{place}", leaf)
    dtype = jax_dtype(array.dtype)
    if dtype is None:
        raise _unusable(i, name, leaf)
    return jax.ShapeDtypeStruct(array.shape, dtype)


def _unusable(i: int, name: str, leaf: object) -> TypeError:
    place = f" at `.{name}`" if name else ""
    is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic)
    shown = leaf_text(leaf) if is_array else describe_value(leaf)
    return type_error(
        "data.Loader",
        f"record {i} of the source{place} is {shown}, not an array of numbers that "
        "JAX supports.",
        "A record is a pytree of numbers and arrays. Leave text and the like out, "
        "or encode them as integers; convert long doubles by `.astype(float)`, and "
        "give the fields of a structured array as a dict.",
    )


def _misfit(i: int, record: PyTree, struct: PyTree) -> StructureError:
    lines = differences(struct, struct_of(record, i))
    return structure_error(
        "data.Loader",
        f"record 0 of the source and record {i} differ: {'; '.join(lines)}.",
        "All records need the same structure, shapes and dtypes. Pad or cut them in "
        "the source.",
    )
