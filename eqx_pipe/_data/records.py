"""What a record of a host source must be, and its way into JAX's dtypes."""

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Integer

from .._check import is_integer
from .._errors import (
    StructureError,
    bullets,
    describe_value,
    structure_error,
    type_error,
    value_error,
)
from .._tree import is_key_array, leaf_text, path_name
from .._types import PyTree

_MANY = (
    "It returns a list with one record for each of the indices, in their order; or one "
    "record whose arrays hold them all, along a leading axis."
)


def struct_of(record: PyTree) -> PyTree:
    """The shapes and dtypes of record 0, after a check that it can be one."""
    leaves, structure = jtu.tree_flatten_with_path(record)
    if not leaves:
        raise _unusable(record, "holds no arrays")
    structs = [_leaf_struct(path_name(path), leaf) for path, leaf in leaves]
    return jtu.tree_unflatten(structure, structs)


def dtype_of(leaf: np.ndarray) -> np.dtype | None:
    """The dtype that JAX gives an array; None for text and other objects."""
    if leaf.dtype.kind in "OSUMm":
        return None
    return jax.dtypes.canonicalize_dtype(leaf.dtype)


def narrowed(function: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A NumPy array in the dtype that JAX gives it, unless numbers do not fit."""
    if array.dtype == dtype:
        return array
    # What is too large becomes an infinity, which is refused below.
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
    """Whether it is one record whose arrays hold several; a list of them is not."""
    if isinstance(found, Iterator):  # no pytree to JAX, and soon an error
        return False
    leaves, structure = jtu.tree_flatten(found)
    return structure == jtu.tree_structure(struct) and all(
        getattr(leaf, "shape", ()) != () for leaf in leaves
    )


def fitting(columns: PyTree, n: int, struct: PyTree) -> PyTree | None:
    """`n` records that lie stacked, in JAX's dtypes; None if one does not fit."""
    leaves, structure = jtu.tree_flatten(columns)
    _check_count({len(leaf) for leaf in leaves}, n)
    pairs = list(zip(map(np.asarray, leaves), jtu.tree_leaves(struct), strict=True))
    if not all(_is_like(leaf, (n, *s.shape), s) for leaf, s in pairs):
        return None
    return jtu.tree_unflatten(
        structure, [narrowed("data.Loader", leaf, s.dtype) for leaf, s in pairs]
    )


def stacked(
    indices: Sequence[int], records: Sequence[PyTree], struct: PyTree
) -> PyTree:
    """Some records in one array for each leaf; `RecordError` of one that differs."""
    structs, structure = jtu.tree_flatten(struct)
    rows = []
    for i, record in zip(indices, records, strict=True):
        leaves, own = jtu.tree_flatten(record)
        row = [np.asarray(leaf) for leaf in leaves] if own == structure else None
        if row is None or not all(
            _is_like(leaf, s.shape, s) for leaf, s in zip(row, structs, strict=True)
        ):
            raise named(_misfit(i, record, struct), i)
        rows.append(row)
    pairs = zip(zip(*rows, strict=True), structs, strict=True)
    columns = [
        narrowed("data.Loader", np.stack(column), s.dtype) for column, s in pairs
    ]
    return jtu.tree_unflatten(structure, columns)


def listed(found: Iterable[PyTree], count: int) -> list[PyTree]:
    """The records that a source gave at once, after a check that they are so many."""
    if isinstance(found, Mapping):
        wrong = f"returned a {type(found).__name__} with {len(found)} entries, "
        wrong += f"where {count} records were asked for."
        raise type_error("data.Loader", f"`__getitems__` {wrong}", _MANY)
    records = list(found)
    _check_count({len(records)}, count)
    return records


def _check_count(found: set[int], count: int) -> None:
    if found != {count}:
        numbers = " and ".join(map(str, sorted(found)))
        wrong = f"returned {numbers} records, and {count} were asked for."
        raise value_error("data.Loader", f"`__getitems__` {wrong}", _MANY)


class _Note(str):
    """A note of ours on an exception, which says at which record it came."""


def named(error: Exception, i: int) -> Exception:
    """The error with a note that names the record, unless it has one."""
    if not is_named(error):
        error.add_note(
            _Note(f"In eqx_pipe.data.Loader: the source failed at record {i}.")
        )
    return error


def is_named(error: Exception) -> bool:
    """Whether the error says at which record it came."""
    return any(isinstance(n, _Note) for n in getattr(error, "__notes__", []))


def check_leading(function: str, leaves: Sequence[tuple[str, Any]]) -> int:
    """The common size of the leading axes, which count the records."""
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
    """Records on the host that are read many at a time, and come stacked."""

    thread_safe: bool = True

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of records."""

    @abc.abstractmethod
    def take(self, indices: Integer[np.ndarray, " n"]) -> PyTree:
        """The records of some indices, stacked along a leading axis."""

    def __getitem__(self, index: SupportsIndex) -> PyTree:
        """One record; a negative index counts from the end."""
        one = self.take(np.asarray([index_of(index, len(self))]))
        return jtu.tree_map(lambda leaf: leaf[0], one)


def index_of(index: SupportsIndex, size: int) -> int:
    """The number of a record that `source[index]` asks for, counted from 0."""
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
    return leaf.shape == shape and dtype_of(leaf) == struct.dtype


def _leaf_struct(name: str, leaf: object) -> jax.ShapeDtypeStruct:
    array = None if is_key_array(leaf) else np.asarray(leaf)
    if array is None or array.dtype.kind not in "biufcV":
        raise _unusable(leaf, "is no array of numbers", name)
    if array.dtype.kind == "V" and array.dtype.names is not None:
        raise _unusable(leaf, "is a structured array", name)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return jax.ShapeDtypeStruct(array.shape, dtype)


def _unusable(leaf: object, why: str, name: str = "") -> TypeError:
    place = f" at `.{name}`" if name else ""
    shown = leaf_text(leaf) if hasattr(leaf, "dtype") else describe_value(leaf)
    return type_error(
        "data.Loader",
        f"record 0 of the source{place} is {shown}, which {why}.",
        "A record is a pytree of numbers and arrays. Leave text and the like out, "
        "or encode them as integers.",
    )


def _misfit(i: int, record: PyTree, struct: PyTree) -> StructureError:
    leaves, structure = jtu.tree_flatten_with_path(record)
    lines = []
    if structure == jtu.tree_structure(struct):
        for (path, leaf), s in zip(leaves, jtu.tree_leaves(struct), strict=True):
            array = np.asarray(leaf)
            if not _is_like(array, s.shape, s):
                place = f"at `.{path_name(path)}`: " if path else ""
                lines.append(f"{place}{leaf_text(array)} against {leaf_text(s)}")
    shown = "; ".join(lines) or f"{structure} against {jtu.tree_structure(struct)}"
    return structure_error(
        "data.Loader",
        f"record {i} of the source has another form than record 0: {shown}.",
        "All records agree in structure, shapes and dtypes. Pad or cut them in "
        "the source.",
    )
