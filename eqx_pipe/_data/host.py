"""Sources that live on the host: anything with `__len__` and `__getitem__`."""

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._errors import StructureError, describe_value, message
from .._tree import is_key_array, leaf_text, path_name

_THREADS = 4


class HostSource:
    """A host source, with the form that its records must have.

    Compared by identity, so it is one and the same leaf of every loader made from it.
    Only sources that are known to bear it are read by several threads at a time.
    """

    def __init__(self, source: Any):
        self.source = _as_numpy_dataset(source)
        self.size = len(source)
        self.threads = _THREADS if _is_thread_safe(self.source) else 1
        self._lock = threading.Lock() if self.threads == 1 else contextlib.nullcontext()
        self._struct: Any = None

    def __len__(self) -> int:
        return self.size

    def struct(self) -> PyTree:
        """The shapes and dtypes of one record, those of record 0."""
        if self._struct is None:
            record = self._first()
            leaves, structure = jtu.tree_flatten_with_path(record)
            if not leaves:
                raise _unusable(0, record, "holds no arrays")
            structs = [_leaf_struct(path_name(path), leaf) for path, leaf in leaves]
            self._struct = jtu.tree_unflatten(structure, structs)
        return self._struct

    def _first(self) -> PyTree:
        try:
            return self._record(0)
        except KeyError as error:
            error.add_note(
                "A source is asked for records by their number, from 0. A table of "
                "named columns, such as a data frame, is one as "
                "`ArraySource({name: table[name].to_numpy() for name in table})`."
            )
            raise

    def read(self, indices: Sequence[int]) -> PyTree:
        """Some records, stacked along a leading axis, as NumPy arrays of their own."""
        indices = list(indices)
        with self._lock:
            try:
                return self._read(indices)
            except Exception as error:
                if not getattr(error, "_names_record", False):
                    self._blame(indices, error)
                if isinstance(error, StopIteration):
                    raise _stopped(error, "it was asked for several") from error
                raise

    def _read(self, indices: list[int]) -> PyTree:
        if isinstance(self.source, np.ndarray):
            return self._rows(indices)
        if _has_columns(self.source):
            columns = jtu.tree_map(np.asarray, dict(self.source[indices]))
            # Columns of records that differ in shape are arrays of objects or lists.
            if self._fits(columns, len(indices)):
                return jtu.tree_map(_narrowed, columns, self.struct())
            # One by one, since a gap makes the whole column floats.
            records = [self._record(i) for i in indices]
        elif hasattr(self.source, "__getitems__"):
            records = _listed(self.source.__getitems__(indices), len(indices))
        else:
            records = [self._record(i) for i in indices]
        return self._stacked(indices, records)

    def _rows(self, indices: list[int]) -> Any:
        """Rows of one NumPy array, copied: here is where a memory map is read."""
        first, n = indices[0], len(indices)
        in_order = indices[-1] == first + n - 1 and indices == list(
            range(first, first + n)
        )
        at = slice(first, first + n) if in_order else indices
        return _narrowed(np.array(self.source[at]), self.struct())

    def _fits(self, columns: PyTree, n: int) -> bool:
        structs, structure = jtu.tree_flatten(self.struct())
        leaves, other = jtu.tree_flatten(columns)
        return structure == other and all(
            leaf.shape == (n, *s.shape) and _dtype(leaf) == s.dtype
            for leaf, s in zip(leaves, structs, strict=True)
        )

    def _stacked(self, indices: list[int], records: list[PyTree]) -> PyTree:
        structs, structure = jtu.tree_flatten(self.struct())
        rows = [structure_leaves(r, structure) for r in records]
        if None in rows:
            i = rows.index(None)
            raise _misfit(indices[i], records[i], self.struct())
        stacked = []
        for at, s in enumerate(structs):
            leaves = [np.asarray(row[at]) for row in rows]  # type: ignore
            for i, leaf in enumerate(leaves):
                if leaf.shape != s.shape or _dtype(leaf) != s.dtype:
                    raise _misfit(indices[i], records[i], self.struct())
            stacked.append(_narrowed(np.stack(leaves), s))
        return jtu.tree_unflatten(structure, stacked)

    def _record(self, i: int) -> PyTree:
        try:
            return self.source[i]
        except StopIteration as error:
            # It would end the iteration over the batches without a word.
            raise _stopped(error, f"it was asked for record {i}") from error
        except Exception as error:
            _name_record(error, i)
            raise

    def _blame(self, indices: list[int], error: Exception) -> None:
        """Names the record for which a source failed that was asked for many."""
        for i in indices:
            try:
                self._stacked([i], [self.source[i]])
            except Exception:
                _name_record(error, i)
                return


def structure_leaves(record: PyTree, structure: Any) -> list[Any] | None:
    """The leaves of a record, or None if it has another structure."""
    leaves, own = jtu.tree_flatten(record)
    return leaves if own == structure else None


def _name_record(error: Exception, i: int) -> None:
    error.add_note(f"In eqx_pipe.Loader: the source failed at record {i}.")
    with contextlib.suppress(Exception):
        error._names_record = True  # type: ignore


def _stopped(error: Exception, when: str) -> RuntimeError:
    stopped = RuntimeError(
        message(
            "Loader",
            f"the source raised `StopIteration` when {when}.",
            "`__getitem__` gives every record below `len(source)`; a source that ends "
            "sooner has a smaller length.",
        )
    )
    for note in getattr(error, "__notes__", []):
        stopped.add_note(note)
    stopped._names_record = True  # type: ignore
    return stopped


def _listed(found: Any, count: int) -> list[PyTree]:
    """The records that a source gave at once, after a check that they are so many."""
    cure = "It returns a list with one record for each of the indices, in their order."
    if isinstance(found, Mapping):
        wrong = f"returned a {type(found).__name__} with {len(found)} entries, "
        wrong += f"where {count} records were asked for."
        raise TypeError(message("Loader", f"`__getitems__` {wrong}", cure))
    records = list(found)
    if len(records) != count:
        wrong = f"returned {len(records)} records, and {count} were asked for."
        raise ValueError(message("Loader", f"`__getitems__` {wrong}", cure))
    return records


def index_of(index: Any, size: int) -> int:
    """The number of a record that `source[index]` asks for, counted from 0."""
    if not hasattr(index, "__index__"):
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


def _dtype(leaf: Any) -> Any:
    """The dtype that JAX gives an array; None for text and other objects."""
    if leaf.dtype.kind in "OSUMm":
        return None
    return jax.dtypes.canonicalize_dtype(leaf.dtype)


def _narrowed(stacked: Any, struct: Any) -> Any:
    return narrowed("Loader", stacked, struct.dtype)


def narrowed(function: str, array: Any, dtype: Any) -> Any:
    """A NumPy array in the dtype that JAX gives it, unless numbers do not fit."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype)
    if array.dtype.kind in "iu":
        fits = np.array_equal(narrow, array)
    else:
        fits = np.array_equal(np.isfinite(narrow), np.isfinite(array))
    if not fits:
        raise ValueError(
            message(
                function,
                f"the source holds {array.dtype} numbers that do not fit into {dtype}.",
                "Switch `jax_enable_x64` on, or let the source give smaller numbers.",
            )
        )
    return narrow


def _leaf_struct(name: str, leaf: Any) -> jax.ShapeDtypeStruct:
    array = None if is_key_array(leaf) else np.asarray(leaf)
    if array is None or array.dtype.kind not in "biufcV":
        raise _unusable(0, leaf, "is no array of numbers", name)
    if array.dtype.kind == "V" and array.dtype.names is not None:
        raise _unusable(0, leaf, "is a structured array", name)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return jax.ShapeDtypeStruct(array.shape, dtype)


def _unusable(i: int, leaf: Any, why: str, name: str = "") -> TypeError:
    place = f" at `.{name}`" if name else ""
    shown = leaf_text(leaf) if hasattr(leaf, "dtype") else describe_value(leaf)
    return TypeError(
        message(
            "Loader",
            f"record {i} of the source{place} is {shown}, which {why}.",
            "A record is a pytree of numbers and arrays. Leave text and the like out, "
            "or encode them as integers.",
        )
    )


def _misfit(i: int, record: PyTree, struct: PyTree) -> StructureError:
    leaves, structure = jtu.tree_flatten_with_path(record)
    wanted = jtu.tree_leaves(struct)
    lines = []
    if structure == jtu.tree_structure(struct):
        for (path, leaf), s in zip(leaves, wanted, strict=True):
            if (np.shape(leaf), _dtype(np.asarray(leaf))) != (s.shape, s.dtype):
                name = path_name(path)
                place = f"at `.{name}`: " if name else ""
                text = leaf_text(np.asarray(leaf))
                lines.append(f"{place}{text} against {leaf_text(s)}")
    shown = "; ".join(lines) or f"{structure} against {jtu.tree_structure(struct)}"
    error = StructureError(
        message(
            "Loader",
            f"record {i} of the source has another form than record 0: {shown}.",
            "All records agree in structure, shapes and dtypes. Pad or cut them in "
            "the source.",
        )
    )
    error._names_record = True  # type: ignore
    return error


def _has_columns(source: Any) -> bool:
    """Whether it is a Hugging Face dataset, which reads many records at once."""
    return hasattr(source, "column_names") and hasattr(source, "with_format")


def _as_numpy_dataset(source: Any) -> Any:
    """A Hugging Face dataset of Python values gives NumPy arrays instead."""
    if _has_columns(source) and getattr(source, "format", {}).get("type", "") is None:
        return source.with_format("numpy")
    return source


def _is_thread_safe(source: Any) -> bool:
    ours = getattr(source, "thread_safe", None)
    if isinstance(ours, bool):
        return ours
    is_grain = any(
        base.__name__ == "MapDataset" and base.__module__.startswith("grain.")
        for base in type(source).__mro__
    )
    return isinstance(source, np.ndarray) or is_grain


class OnHost:
    """A source on the device, as the host reads it."""

    thread_safe = True

    def __init__(self, source: Any):
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> PyTree:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[PyTree]:
        taken = jax.device_get(self.source.take(jnp.asarray(indices, np.uint32)))
        return [
            jtu.tree_map(lambda leaf, r=r: leaf[r], taken) for r in range(len(indices))
        ]
