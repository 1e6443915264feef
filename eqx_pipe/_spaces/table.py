"""Tables as spaces: a point for each row, an axis for each column."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Shaped

from .._check import check_is
from .._errors import describe_value, type_error, value_error
from .axis import Axis, check_dim
from .columns import at_least_one
from .dims import POINT
from .numbers import NUMBERS, ValuesLike
from .space import Space
from .values import Static, Values

TableLike: TypeAlias = (
    Mapping[str, ValuesLike]
    | Sequence[Mapping[str, object]]
    | Shaped[np.ndarray, "rows columns"]
    | Shaped[jax.Array, "rows columns"]
    | Any
)
"""Columns by name, rows by name, an array of them, or a data frame."""

_FORMS = (
    "Give a dict of columns, a data frame, a list of dicts, or an array of two "
    "dimensions together with `names`."
)


def table(
    columns: TableLike, names: Sequence[str] | None = None, dim: str = POINT
) -> Space:
    """Return the space of a table; see `Space.from_table`."""
    check_is("Space.from_table", "dim", dim, str, "Give a name, or leave it out.")
    check_dim("Space.from_table", dim)
    found = _columns(columns, names)
    if not found:
        raise value_error(
            "Space.from_table",
            f"`columns` is {describe_value(columns)}, without columns.",
            _FORMS,
        )
    own = None if dim == POINT else dim
    tree = {name: _axis(name, column, own) for name, column in found.items()}
    # Axes that share a dim vary together in a product, too.
    space = Space(tree, "product" if own else "zip")
    return space if len(next(iter(found.values()))) else space[:0]


def _columns(given: Any, names: Sequence[str] | None) -> dict[Any, Any]:
    """Return the columns by name, in order."""
    function = "Space.from_table"
    if len(getattr(given, "shape", ())) == 2 and not hasattr(given, "columns"):
        names = [names] if isinstance(names, str) else list(names or ())
        if len(names) != given.shape[1] or len(set(names)) != len(names):
            raise value_error(
                function,
                f"`names` is {describe_value(names)} for {given.shape[1]} columns.",
                "Give each column a name of its own: "
                '`ep.Space.from_table(sample, names=["rate", "width"])`.',
            )
        return {name: given[:, k] for k, name in enumerate(names)}
    if names is not None:
        raise type_error(
            function,
            f"`names` requires an array, but `columns` is {describe_value(given)}.",
            "Names are those of an array's columns; a dict or data frame has its own.",
        )
    if isinstance(given, list | tuple) and all(isinstance(r, Mapping) for r in given):
        return _transposed(given)
    # A dict has its columns as keys, a data frame as an attribute.
    listed = given if isinstance(given, Mapping) else getattr(given, "columns", None)
    if listed is None or not hasattr(given, "__getitem__"):
        raise type_error(function, f"`columns` is {describe_value(given)}.", _FORMS)
    columns = {name: given[name] for name in listed}
    for name, column in columns.items():
        if isinstance(column, str | bytes | Mapping | Axis) or np.ndim(column) == 0:
            raise type_error(
                function,
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
        items = list(column)
        listed = isinstance(column, list | tuple)
        given = np.zeros(0, object) if listed else np.asarray(column)
        if given.dtype.kind in NUMBERS and not listed:
            column = given
        elif all(map(_is_number, items)) and (items or listed):
            column = items
        else:
            return _static(name, items, given, dim)
    try:
        return Values(at_least_one(column)[0], dim=dim)
    except (TypeError, ValueError) as error:
        error.add_note(f"In the column `{name}` of a table.")
        raise


def _static(name: str, items: list[Any], given: np.ndarray, dim: str | None) -> Axis:
    """Return a column of Python values as an axis."""
    if not items:
        raise type_error(
            "Space.from_table",
            f"the column `{name}` has no rows, and its dtype is {given.dtype}.",
            "Give it a dtype of numbers, or make the table of all rows and take a part "
            "of it, `ep.Space.from_table(df)[mask]`.",
        )
    if given.dtype.kind in "mM":
        raise type_error(
            "Space.from_table",
            f"the column `{name}` has the dtype {given.dtype}, which JAX does not "
            "support.",
            "Give numbers, such as seconds.",
        )
    missing = sum(map(_is_missing, items))
    numbers = sum(map(_is_number, items))
    if missing and numbers and numbers + missing == len(items):
        raise value_error(
            "Space.from_table",
            f"the column `{name}` of numbers has {missing} missing values.",
            "Fill them, or leave these rows out: `df.dropna()`.",
        )
    return Static(items, dim=dim)


def _is_number(x: Any) -> bool:
    if isinstance(x, bool | int | float | complex | jax.Array):
        return True
    return isinstance(x, np.generic | np.ndarray) and x.dtype.kind in NUMBERS


def _is_missing(x: Any) -> bool:
    # By name, since pandas need not be installed.
    return x is None or type(x).__name__ in ("NAType", "NaTType")
