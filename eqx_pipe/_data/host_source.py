"""Sources that live on the host: anything with `__len__` and `__getitem__`."""

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import jax
import jax.tree_util as jtu
import numpy as np

from .._check import is_integer
from .._errors import message, structure_error
from .._types import PyTree
from .adapters import Gaps, as_numpy, has_columns, is_thread_safe, listed, many_of
from .record import dtype_of, leaves_like, misfit, narrowed, struct_of

_THREADS = 4


@runtime_checkable
class Records(Protocol):
    """Records on the host by their numbers: an array or memory map, a dataset, a list.

    One with `__getitems__`, from a list of numbers to a list of records, is asked for
    the records of a batch at once.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> PyTree: ...


class HostSource:
    """A host source, with the form that its records must have.

    Compared by identity, so it is one and the same leaf of every loader made from it.
    Only sources that are known to bear it are read by several threads at a time.
    """

    def __init__(self, source: Records):
        # Of a class that nobody here knows: what it bears is asked, not declared.
        self.source: Any = as_numpy(source)
        self.size = len(source)
        self.threads = _THREADS if is_thread_safe(self.source) else 1
        self._lock = threading.Lock() if self.threads == 1 else contextlib.nullcontext()
        self._struct: PyTree = None
        self._gaps: Gaps | None = None

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<{type(self.source).__name__} of {self.size} records>"

    def struct(self) -> PyTree:
        """The shapes and dtypes of one record, those of record 0."""
        if self._struct is None:
            self._struct = struct_of(self._first())
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
                if not _is_named(error):
                    self._blame(indices, error)
                if isinstance(error, StopIteration):
                    raise _stopped(error, "it was asked for several") from error
                raise

    def _read(self, indices: list[int]) -> PyTree:
        if isinstance(self.source, np.ndarray):
            return self._rows(indices)
        if has_columns(self.source):
            self._check_gaps(indices)
            columns = jtu.tree_map(np.asarray, dict(self.source[indices]))
            # Columns of records that differ in shape are arrays of objects or lists.
            if self._fits(columns, len(indices)):
                return jtu.tree_map(_narrowed, columns, self.struct())
            # One by one, to find the record that does not fit.
            records = [self._record(i) for i in indices]
        elif (many := many_of(self.source)) is not None:
            records = listed(many(indices), len(indices))
        else:
            records = [self._record(i) for i in indices]
        return self._stacked(indices, records)

    def _rows(self, indices: list[int]) -> np.ndarray:
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
            leaf.shape == (n, *s.shape) and dtype_of(leaf) == s.dtype
            for leaf, s in zip(leaves, structs, strict=True)
        )

    def _stacked(self, indices: list[int], records: list[PyTree]) -> PyTree:
        structs, structure = jtu.tree_flatten(self.struct())
        rows = []
        for i, record in zip(indices, records, strict=True):
            row = leaves_like(record, structure)
            row = None if row is None else [np.asarray(leaf) for leaf in row]
            if row is None or not all(map(_is_like, row, structs)):
                error = misfit(i, record, self.struct())
                _name_record(error, i)
                raise error
            rows.append(row)
        columns = [np.stack(leaves) for leaves in zip(*rows, strict=True)]
        return jtu.tree_unflatten(structure, list(map(_narrowed, columns, structs)))

    def _check_gaps(self, indices: list[int]) -> None:
        if self._gaps is None:
            self._gaps = Gaps(self.source)
        found = self._gaps.find(indices)
        if found is not None:
            i, name = found
            error = structure_error(
                "Loader",
                f"record {i} of the source has a gap: a number of its column "
                f"`{name}` is missing.",
                "Leave such records out, or fill them, with NaN where that is "
                "meant: `dataset.filter(...)` or `dataset.map(...)`.",
            )
            _name_record(error, i)
            raise error

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


def _is_like(leaf: np.ndarray, struct: jax.ShapeDtypeStruct) -> bool:
    return leaf.shape == struct.shape and dtype_of(leaf) == struct.dtype


def _narrowed(stacked: np.ndarray, struct: jax.ShapeDtypeStruct) -> np.ndarray:
    return narrowed("Loader", stacked, struct.dtype)


class _Note(str):
    """A note of ours on an exception, which says at which record it came."""


def _name_record(error: Exception, i: int) -> None:
    if not _is_named(error):
        error.add_note(_Note(f"In eqx_pipe.Loader: the source failed at record {i}."))


def _is_named(error: Exception) -> bool:
    return any(isinstance(n, _Note) for n in getattr(error, "__notes__", []))


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
    return stopped


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
