"""Sources of other libraries: how each is best read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .._errors import type_error, value_error
from .._types import PyTree


def has_columns(source: object) -> bool:
    """Whether it is a Hugging Face dataset, which reads many records at once."""
    return hasattr(source, "column_names") and hasattr(source, "with_format")


def as_numpy(source: Any) -> Any:
    """The source itself; a Hugging Face dataset of Python values as one of arrays."""
    plain = (
        has_columns(source) and getattr(source, "format", {}).get("type", "") is None
    )
    return source.with_format("numpy") if plain else source


def is_grain(source: object) -> bool:
    """Whether it is a `MapDataset` of Grain."""
    return any(
        base.__name__ == "MapDataset" and base.__module__.startswith("grain.")
        for base in type(source).__mro__
    )


def is_thread_safe(source: object) -> bool:
    """Whether it is known that several threads may read it at a time."""
    ours = getattr(source, "thread_safe", None)
    if isinstance(ours, bool):
        return ours
    return isinstance(source, np.ndarray) or is_grain(source)


def many_of(source: object) -> Callable[[list[int]], Iterable[PyTree]] | None:
    """How to ask a source for many records at once; None if it cannot be asked."""
    # Of Grain's datasets, and of the sources for them that read in batches.
    own = getattr(source, "_getitems", None) if is_grain(source) else None
    return getattr(source, "__getitems__", own)


def listed(found: Iterable[PyTree], count: int) -> list[PyTree]:
    """The records that a source gave at once, after a check that they are so many."""
    cure = "It returns a list with one record for each of the indices, in their order."
    if isinstance(found, Mapping):
        wrong = f"returned a {type(found).__name__} with {len(found)} entries, "
        wrong += f"where {count} records were asked for."
        raise type_error("Loader", f"`__getitems__` {wrong}", cure)
    records = list(found)
    if len(records) != count:
        wrong = f"returned {len(records)} records, and {count} were asked for."
        raise value_error("Loader", f"`__getitems__` {wrong}", cure)
    return records


class Gaps:
    """Columns of a Hugging Face dataset in which numbers are missing.

    In NumPy a missing number is NaN, which cannot be told from one that is meant.
    """

    def __init__(self, source: Any):
        # A `set_transform` of the user may well fill them.
        custom = getattr(source, "format", {}).get("type") == "custom"
        table: Any = getattr(source, "data", None)
        known = hasattr(table, "column") and hasattr(source, "with_format")
        names = source.column_names if known and not custom else []
        self._names = [name for name in names if _missing(table.column(name))]
        self._rows = source.with_format("arrow") if self._names else None

    def find(self, indices: Sequence[int]) -> tuple[int, str] | None:
        """The first of some records with a gap, and its column."""
        if self._rows is None:
            return None
        rows = self._rows[list(indices)]
        for i, index in enumerate(indices):
            for name in self._names:
                if _missing(rows.column(name).slice(i, 1)):
                    return index, name
        return None


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
