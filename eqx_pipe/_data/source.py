"""Sources on the host, and what is accepted as a source."""

import contextlib
import threading
import zlib
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Integer

from .._errors import describe_value, message, type_error
from .._tree import leaf_text, leaves_with_names
from .._types import PyTree
from .array_source import ArraySource, DeviceSource
from .foreign import HostArrays, has_columns, is_thread_safe, reader_of
from .records import (
    are_stacked,
    fitting,
    is_named,
    listed,
    named,
    stacked,
    struct_of,
)

# 16 were slower than none where records are small; four are enough to wait for a disk.
_THREADS = 4
# A megabyte takes longer to read than to hand over. Any numbers near these will do.
_CHUNK_BYTES = 2**20
_CHUNK_BATCHES = 8


@runtime_checkable
class Records(Protocol):
    """Records on the host by their numbers: an array or memory map, a dataset, a list.

    One with `__getitems__` is asked for the records of a batch at once. From a list of
    numbers it returns a list of records, or one record whose arrays hold them all,
    along a leading axis.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> PyTree: ...


class HostSource:
    """A host source, with the form that its records must have.

    Compared by identity, so it is one and the same leaf of every loader made from it.
    Only sources that are known to be thread-safe are read by several threads at a time.
    """

    def __init__(self, source: Records):
        # Of a class that nobody here knows: what it can do is asked, not declared.
        given: Any = source
        format = getattr(source, "format", {}) if has_columns(source) else {}
        # Columns as Python's lists of numbers would be slow.
        is_plain = format.get("type", "") is None
        self.source: Any = given.with_format("numpy") if is_plain else given
        self.size: int = len(source)
        # Arrays are read fast, and then more threads hinder each other.
        most = 2 if isinstance(source, HostArrays) else _THREADS
        self.threads = most if is_thread_safe(self.source) else 1
        self._lock = threading.Lock() if self.threads == 1 else contextlib.nullcontext()
        self._struct: PyTree = None
        self._reader = reader_of(self.source)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<{type(self.source).__name__} of {self.size} records>"

    def struct(self) -> PyTree:
        """The shapes and dtypes of one record, those of record 0."""
        if self._struct is None:
            try:
                first = self._record(0)
            except KeyError as error:
                error.add_note(
                    "A source is asked for records by their number, from 0. A table of "
                    "named columns, such as a data frame, is one as "
                    "`ArraySource({name: table[name].to_numpy() for name in table})`."
                )
                raise
            self._struct = struct_of(first)
        return self._struct

    def chunk(self, batch_size: int) -> int:
        """How many batches a thread reads in one go.

        One, unless they are small and come from arrays: handing one over takes as long
        as to read it. Other sources may take any time for each.
        """
        if not isinstance(self.source, HostArrays):
            return 1
        leaves = jtu.tree_leaves(self.struct())
        size = batch_size * sum(s.size * s.dtype.itemsize for s in leaves)
        return max(1, min(_CHUNK_BATCHES, _CHUNK_BYTES // max(1, size)))

    def read(self, indices: Integer[np.ndarray, " n"]) -> PyTree:
        """Some records, stacked along a leading axis, as NumPy arrays of their own."""
        with self._lock:
            try:
                return self._read(indices)
            except Exception as error:
                if not is_named(error):
                    self._blame(indices, error)
                if isinstance(error, StopIteration):
                    raise _stopped(error, "it was asked for several") from error
                raise

    def _read(self, indices: Integer[np.ndarray, " n"]) -> PyTree:
        struct, n = self.struct(), len(indices)
        if self._reader is not None:
            found = self._reader(indices)
            if are_stacked(found, struct):
                columns = fitting(found, n, struct)
                if columns is not None:
                    return columns
            elif not has_columns(self.source):
                return stacked(indices.tolist(), listed(found, n), struct)
        # One by one, as that is how it is asked, or to find what does not fit.
        numbers = indices.tolist()
        return stacked(numbers, [self._record(i) for i in numbers], struct)

    def _record(self, i: int) -> PyTree:
        try:
            return self.source[i]
        except StopIteration as error:
            # It would end the iteration over the batches without a word.
            raise _stopped(error, f"it was asked for record {i}") from error
        except Exception as error:
            named(error, i)
            raise

    def _blame(self, indices: Integer[np.ndarray, " n"], error: Exception) -> None:
        """Names the record for which a source failed that was asked for many."""
        for i in indices.tolist():
            try:
                # Asked again one by one: an error of a read of many does not say for
                # which it came.
                stacked([i], [self.source[i]], self.struct())
            except Exception:
                named(error, i)
                return


def _stopped(error: Exception, when: str) -> RuntimeError:
    stopped = RuntimeError(
        message(
            "data.Loader",
            f"the source raised `StopIteration` when {when}.",
            "`__getitem__` gives every record below `len(source)`; a source that ends "
            "sooner has a smaller length.",
        )
    )
    for note in getattr(error, "__notes__", []):
        stopped.add_note(note)
    return stopped


Source: TypeAlias = DeviceSource | HostSource
"""A source as loaders hold it."""

SourceLike: TypeAlias = Source | Array | Records | Mapping[str, Any] | tuple[Any, ...]
"""Whatever is accepted where a source is; an array of JAX stays on the device."""


def as_source(function: str, argument: str, source: SourceLike) -> Source:
    """A source, after a check that it is one."""
    if isinstance(source, DeviceSource | HostSource):
        return source
    if isinstance(source, jax.Array):
        return ArraySource(source)
    if HostArrays.fits(source):
        return HostSource(HostArrays(source))
    lacks = next((a for a in ("getitem", "len") if not hasattr(source, f"__{a}__")), "")
    if not (lacks or isinstance(source, Mapping | tuple)):
        return HostSource(source)
    # Not before it is sure to be shown: this may take long.
    wrong = f"`{argument}` is {describe_value(source)}"
    cure = (
        "Give `ArraySource(tree)`, or anything with `__len__` and `__getitem__`: a "
        "NumPy array or memory map, a Grain `MapDataset`, a Hugging Face dataset, a "
        "list of records. A stream cannot be sought: keep its records, or read them by "
        "number."
    )
    if lacks:
        wrong += f", without `__{lacks}__`"
    elif isinstance(source, Mapping) and any(map(has_columns, source.values())):
        names = " or ".join(f"[{name!r}]" for name in source)
        cure = f"Choose one of its parts: {names}."
    else:
        cure = (
            "Wrap a pytree of arrays: `ArraySource(tree)`; one of NumPy arrays and "
            "memory maps is a source as it stands, and so is a list of records."
        )
    raise type_error(function, wrong + ".", cure)


def schema_of(struct: PyTree) -> int:
    """A number for the structure, shapes and dtypes of a record."""
    named = [(name, leaf_text(leaf)) for name, leaf in leaves_with_names(struct)]
    return zlib.crc32(repr(named).encode())
