"""Tables as spaces: a point for each row, an axis for each column."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import describe_value, type_error, value_error
from .._tree import is_key_array
from .arrange import POINT
from .axes import Values
from .axis import Axis, check_dim
from .given import NUMBERS, TableLike
from .space import Space
from .static import Static

_FORMS = (
    "Give a dict of columns, a data frame, a list of dicts, or an array of two "
    "dimensions together with `names`."
)
_MANY = 3  # rows that a message names


def table(
    columns: TableLike, names: Sequence[str] | None = None, dim: str = POINT
) -> Space:
    """Make a space of a table; see `Space.from_table`."""
    if check_dim("Space.from_table", dim) is None:
        raise type_error(
            "Space.from_table", "`dim` is None.", "Give a name, or leave it out."
        )
    found = _columns(columns, names)
    if not found:
        raise value_error(
            "Space.from_table",
            f"`columns` is {describe_value(columns)}, without columns.",
            _FORMS,
        )
    lengths = {name: len(column) for name, column in found.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"`{name}` has {n}" for name, n in lengths.items())
        raise value_error(
            "Space.from_table",
            f"the columns differ in length: {listed}.",
            "Give each column a value for each row.",
        )
    own = None if dim == POINT else dim
    tree = {name: _axis(name, column, own) for name, column in found.items()}
    # With a dim of their own axes vary together in a product, too.
    space = Space(tree, "product" if own else "zip")
    return space if next(iter(lengths.values())) else space[:0]


def _columns(given: Any, names: Sequence[str] | None) -> dict[Any, Any]:
    """The columns by name, in order."""
    if len(getattr(given, "shape", ())) == 2 and not hasattr(given, "columns"):
        return _of_array(given, names)
    if names is not None:
        raise type_error(
            "Space.from_table",
            f"`names` is given, and `columns` is {describe_value(given)}.",
            "Names are those of an array's columns; a dict or data frame has its own.",
        )
    if isinstance(given, Mapping):
        columns = dict(given)
    elif hasattr(given, "columns") and hasattr(given, "__getitem__"):
        columns = {name: given[name] for name in given.columns}
        if len(columns) < len(list(given.columns)):
            wrong = f"two columns have one name, of {list(given.columns)}."
            raise value_error("Space.from_table", wrong, "Rename one of them.")
    elif isinstance(given, list | tuple):
        return _of_records(given)
    else:
        raise type_error(
            "Space.from_table", f"`columns` is {describe_value(given)}.", _FORMS
        )
    for name, column in columns.items():
        sized = hasattr(column, "__len__") and np.ndim(column) > 0
        if isinstance(column, str | bytes | Mapping | Axis) or not sized:
            raise type_error(
                "Space.from_table",
                f"the column `{name}` is {describe_value(column)}.",
                "A column is a list or an array of one value for each row; what is the "
                "same in all rows stands beside the columns: "
                "`ep.Space({**ep.Space.from_table(columns, dim='row').tree, 'rate': "
                "0.1})`.",
            )
    return columns


def _of_array(given: Any, names: Sequence[str] | None) -> dict[str, Any]:
    """The columns of an array."""
    width = given.shape[1]
    example = '`ep.Space.from_table(sample, names=["rate", "width"])`'
    if names is None:
        raise type_error(
            "Space.from_table",
            f"`columns` is an array of shape {given.shape}, and `names` is not given.",
            f"Name its {width} columns: {example}.",
        )
    names = [names] if isinstance(names, str) else list(names)
    if len(names) != width or len(set(names)) != width:
        raise value_error(
            "Space.from_table",
            f"`names` is {describe_value(names)} for {width} columns.",
            f"Give each column a name of its own: {example}.",
        )
    return {name: given[:, k] for k, name in enumerate(names)}


def _of_records(rows: Sequence[Any]) -> dict[str, Any]:
    """The columns of rows that are dicts."""
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            wrong = f"`columns[{i}]` is {describe_value(row)}."
            raise type_error("Space.from_table", wrong, _FORMS)
        if row.keys() != rows[0].keys():
            differ = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise value_error(
                "Space.from_table",
                f"`columns[{i}]` and `columns[0]` differ in {', '.join(differ)}.",
                "Give each row the same keys.",
            )
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _axis(name: str, column: Any, dim: str | None) -> Axis:
    """A column as an axis; if it has no rows, one of a single value."""
    if not isinstance(column, jax.Array):
        items = list(column)
        listed = isinstance(column, list | tuple)
        array = None if listed else np.asarray(column)
        if array is None or array.dtype.kind not in NUMBERS:
            if not all(map(_is_number, items)) or (array is not None and not items):
                return _static(name, items, array, dim)
            array = column if listed and items else np.array(items)
        column = array
    try:
        return Values(at_least_one(column)[0], dim=dim)
    except (TypeError, ValueError) as error:
        error.add_note(f"In the column `{name}` of a table.")
        raise


def _static(name: str, items: list[Any], array: Any, dim: str | None) -> Axis:
    """A column of Python values."""
    if not items:
        raise value_error(
            "Space.from_table",
            f"the column `{name}` has no rows and is of {array.dtype}: its values "
            "would be Python values, of which there is none to trace a function with.",
            "Make the table of all rows and take a part of it, "
            "`ep.Space.from_table(df)[mask]`; "
            "or give the column a dtype of numbers.",
        )
    if array is not None and array.dtype.kind in "mM":
        raise type_error(
            "Space.from_table",
            f"the column `{name}` is of {array.dtype}.",
            "JAX has no times: give a number, such as the seconds since some moment.",
        )
    numbers = [_is_number(x) for x in items]
    missing = [i for i, x in enumerate(items) if _is_missing(x)]
    if missing and sum(numbers) + len(missing) >= len(items) and any(numbers):
        rows = ", ".join(map(str, missing[:_MANY])) + ", ..." * (len(missing) > _MANY)
        raise value_error(
            "Space.from_table",
            f"the column `{name}` of numbers has none in the rows {rows}.",
            "Fill them, or leave these rows out: `df.dropna()`.",
        )
    return Static(items, dim=dim)


def at_least_one(values: Any) -> tuple[Any, bool]:
    """Values along a leading axis, one of no meaning if there are none; and whether.

    An axis has at least one value. A table without rows has one row that is not taken.
    """
    if len(values):
        return values, False
    if is_key_array(values):
        return jnp.empty((1, *values.shape[1:]), values.dtype), True
    values = np.asarray(values)
    return np.zeros((1, *values.shape[1:]), values.dtype), True


def _is_number(x: Any) -> bool:
    if isinstance(x, bool | int | float | complex | jax.Array):
        return True
    return isinstance(x, np.generic | np.ndarray) and x.dtype.kind in NUMBERS


def _is_missing(x: Any) -> bool:
    # By name, since pandas need not be installed.
    return x is None or type(x).__name__ in ("NAType", "NaTType")
