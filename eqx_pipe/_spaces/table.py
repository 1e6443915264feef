"""Tables as spaces: a point for each row, an axis for each column."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from .._check import check_unmasked
from .._errors import describe_value, type_error, value_error
from .axis import Axis, check_dim
from .columns import at_least_one
from .numbers import NUMBERS, ValuesLike, missing_in
from .space import Space
from .values import Static, Values

_DATES = (datetime.date, datetime.time, datetime.timedelta)
_DATES += (np.datetime64, np.timedelta64)

TableLike: TypeAlias = Mapping[str, ValuesLike] | Sequence[Mapping[str, object]] | Any
"""Columns by name, rows by name, or a data frame."""


def table(columns: TableLike, dim: str | None = None) -> Space:
    """Return the space of a table; see `Space.from_table`."""
    check_dim("Space.from_table", dim)
    found = _columns(columns)
    tree = {name: _axis(name, column, dim) for name, column in found.items()}
    # Axes that share a dim vary together in a product, too.
    space = Space(tree, "product" if dim else "zip")
    return space if len(next(iter(found.values()))) else space[:0]


def _columns(given: Any) -> dict[Any, Any]:
    """Return the columns by name, in order."""
    if isinstance(given, list | tuple) and all(isinstance(r, Mapping) for r in given):
        given = _transposed(given)
    # A dict has its columns as keys, a data frame as an attribute; that of a table of
    # Arrow has another name.
    names = getattr(given, "column_names", getattr(given, "columns", ()))
    listed = given if isinstance(given, Mapping) else names
    if not len(listed):
        raise type_error(
            "Space.from_table",
            f"`columns` is {describe_value(given)}, which has no columns.",
            "Give a dict of columns, a data frame, or a list of dicts; for an array "
            "`dict(zip(names, array.T))`.",
        )
    columns = {name: given[name] for name in listed}
    for name, column in columns.items():
        check_unmasked("Space.from_table", f"columns[{name!r}]", column)
        listed = isinstance(column, list | tuple)
        single = isinstance(column, str | bytes | Mapping | Axis)
        if single or not (listed or np.ndim(column)):
            raise type_error(
                "Space.from_table",
                f"the column `{name}` is {describe_value(column)}.",
                "A column is a list or an array of one value for each row; a constant "
                "stands beside the columns: `ep.Space({**ep.Space.from_table(columns, "
                "dim='row').tree, 'rate': 0.1})`.",
            )
    return columns


def _transposed(rows: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    """Return the columns of a list of rows."""
    for i, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            differ = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise value_error(
                "Space.from_table",
                f"`columns[{i}]` and `columns[0]` differ in {', '.join(differ)}.",
                "Give each row the same keys.",
            )
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _axis(name: str, column: Any, dim: str | None) -> Axis:
    """Return a column as an axis; if it has no rows, one of a single value."""
    if not isinstance(column, jax.Array):
        listed = isinstance(column, list | tuple)
        given = np.zeros(0, object) if listed else np.asarray(column)
        # Entries of Arrow's and xarray's columns are not Python values.
        is_arrow = hasattr(column, "to_pylist")
        items = column.to_pylist() if is_arrow else list(column if listed else given)
        is_array = given.dtype.kind in NUMBERS and not listed
        if not is_array and not (all(map(_is_number, items)) and (items or listed)):
            return _static(name, items, given, dim)
        _check_complete(name, missing_in(column))
        column = given if is_array else items
    try:
        return Values(at_least_one(column)[0], dim=dim)
    except (TypeError, ValueError) as error:
        error.add_note(f"In the column `{name}` of a table.")
        raise


def _check_complete(name: str, missing: int) -> None:
    """Raise a `ValueError` if a column of numbers has missing values."""
    if missing:
        raise value_error(
            "Space.from_table",
            f"the column `{name}` of numbers has {missing} missing values.",
            "Fill them, or leave these rows out: `df.dropna()`.",
        )


def _static(name: str, items: list[Any], given: np.ndarray, dim: str | None) -> Axis:
    """Return a column of Python values as an axis."""
    if not items:
        raise type_error(
            "Space.from_table",
            f"the column `{name}` has no rows, and its dtype is {given.dtype}.",
            "Give it a dtype of numbers, or make the table of all rows and take a part "
            "of it, `ep.Space.from_table(df)[mask]`.",
        )
    dates = [x for x in items if isinstance(x, _DATES)]
    if given.dtype.kind in "mM" or dates:
        kind = given.dtype if given.dtype.kind in "mM" else type(dates[0]).__name__
        raise type_error(
            "Space.from_table",
            f"the column `{name}` has dates or times ({kind}), which JAX does not "
            "support.",
            "Give numbers, such as seconds, or texts, `df[name].astype(str)`, with a "
            "program for each.",
        )
    missing = sum(map(_is_missing, items))
    numbers = sum(map(_is_number, items))
    if missing and numbers and numbers + missing == len(items):
        _check_complete(name, missing)
    return Static(items, dim=dim)


def _is_number(x: Any) -> bool:
    if isinstance(x, bool | int | float | complex | jax.Array):
        return True
    return isinstance(x, np.generic | np.ndarray) and x.dtype.kind in NUMBERS


def _is_missing(x: Any) -> bool:
    # By name, since pandas need not be installed.
    return x is None or type(x).__name__ in ("NAType", "NaTType")
