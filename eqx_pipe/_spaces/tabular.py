"""Tables as spaces: a point for each row, an axis for each column."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from .._errors import describe_value, type_error, value_error
from .._tree import is_key_array
from .arrange import POINT
from .axes import Values
from .axis import Axis, check_dim
from .given import NUMBERS, ValuesLike
from .space import Space
from .static import Static

_FORMS = (
    "Give a dict of columns, a data frame, a list of dicts, or an array of two "
    "dimensions together with `names`."
)
_MANY = 3  # rows that a message names


@runtime_checkable
class Frame(Protocol):
    """A data frame, of pandas or Polars."""

    @property
    def columns(self) -> Iterable[Hashable]:
        """The names of the columns."""
        ...

    def __getitem__(self, name: Any, /) -> Any:
        """A column."""
        ...


TableLike: TypeAlias = (
    Mapping[str, ValuesLike]
    | Frame
    | Sequence[Mapping[str, object]]
    | Shaped[np.ndarray, "rows columns"]
    | Shaped[jax.Array, "rows columns"]
)
"""Columns by name, rows by name, or an array of them."""


def table(
    columns: TableLike, names: Sequence[str] | None = None, dim: str = POINT
) -> Space:
    """A space with one point for each row of a table.

    A point is a dict with the row's value of each column. Columns of numbers, arrays
    and PRNG keys are `Values`, columns of texts and other Python values `Static`.

    **Arguments:**

    - `columns`: a dict from names to columns of one length; a data frame of pandas or
      Polars, whose index is no column (`df.reset_index()` makes it one); a list of
      dicts with the same keys; or an array of shape `(rows, columns)` of NumPy or JAX,
      such as a design of SALib.
    - `names`: of the columns of an array, for which they are needed.
    - `dim`: the name of the dim that all columns share. With another name than
      `"point"` the columns, `table(...).tree`, stand beside other axes in a space.

    **Returns:** a `Space`, empty if there are no rows.

    **Raises:** `ValueError` if columns differ in length, if rows differ in keys, if a
    number is missing, or for a column without rows whose values would be Python values:
    there is none to trace a function with. `TypeError` for what is no table. As
    `Values` for numbers that JAX cannot hold.

    **Laws:** `table(space.to_pandas())` has the points of `space`, if its axes hold
    numbers and texts. `table(rows)[some]` is `table` of these rows.

    !!! example

        >>> import eqx_pipe as ep
        >>> runs = ep.table({"rate": [0.5, 1.5, 2.5], "act": ["relu", "tanh", "relu"]})
        >>> runs.dims, runs[2]["act"]
        ({'point': 3}, 'relu')
        >>> ep.sweep(lambda p: 2 * p["rate"], runs[[2, 0]]).values.tolist()
        [5.0, 1.0]
    """
    if check_dim("table", dim) is None:
        raise type_error("table", "`dim` is None.", "Give a name, or leave it out.")
    found = _columns(columns, names)
    if not found:
        raise value_error(
            "table", f"`columns` is {describe_value(columns)}, without columns.", _FORMS
        )
    lengths = {name: len(column) for name, column in found.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"`{name}` has {n}" for name, n in lengths.items())
        raise value_error(
            "table",
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
            "table",
            f"`names` is given, and `columns` is {describe_value(given)}.",
            "Names are those of an array's columns; a dict or data frame has its own.",
        )
    if isinstance(given, Mapping):
        columns = dict(given)
    elif hasattr(given, "columns") and hasattr(given, "__getitem__"):
        columns = {name: given[name] for name in given.columns}
        if len(columns) < len(list(given.columns)):
            wrong = f"two columns have one name, of {list(given.columns)}."
            raise value_error("table", wrong, "Rename one of them.")
    elif isinstance(given, list | tuple):
        return _of_records(given)
    else:
        raise type_error("table", f"`columns` is {describe_value(given)}.", _FORMS)
    for name, column in columns.items():
        sized = hasattr(column, "__len__") and np.ndim(column) > 0
        if isinstance(column, str | bytes | Mapping | Axis) or not sized:
            raise type_error(
                "table",
                f"the column `{name}` is {describe_value(column)}.",
                "A column is a list or an array of one value for each row; what is the "
                "same in all rows stands beside the columns: "
                "`ep.Space({**ep.table(columns, dim='row').tree, 'rate': 0.1})`.",
            )
    return columns


def _of_array(given: Any, names: Sequence[str] | None) -> dict[str, Any]:
    """The columns of an array."""
    width = given.shape[1]
    example = '`ep.table(sample, names=["rate", "width"])`'
    if names is None:
        raise type_error(
            "table",
            f"`columns` is an array of shape {given.shape}, and `names` is not given.",
            f"Name its {width} columns: {example}.",
        )
    names = [names] if isinstance(names, str) else list(names)
    if len(names) != width or len(set(names)) != width:
        raise value_error(
            "table",
            f"`names` is {describe_value(names)} for {width} columns.",
            f"Give each column a name of its own: {example}.",
        )
    return {name: given[:, k] for k, name in enumerate(names)}


def _of_records(rows: Sequence[Any]) -> dict[str, Any]:
    """The columns of rows that are dicts."""
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            wrong = f"`columns[{i}]` is {describe_value(row)}."
            raise type_error("table", wrong, _FORMS)
        if row.keys() != rows[0].keys():
            differ = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise value_error(
                "table",
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
            "table",
            f"the column `{name}` has no rows and is of {array.dtype}: its values "
            "would be Python values, of which there is none to trace a function with.",
            "Make the table of all rows and take a part of it, `ep.table(df)[mask]`; "
            "or give the column a dtype of numbers.",
        )
    if array is not None and array.dtype.kind in "mM":
        raise type_error(
            "table",
            f"the column `{name}` is of {array.dtype}.",
            "JAX has no times: give a number, such as the seconds since some moment.",
        )
    numbers = [_is_number(x) for x in items]
    missing = [i for i, x in enumerate(items) if _is_missing(x)]
    if missing and sum(numbers) + len(missing) >= len(items) and any(numbers):
        rows = ", ".join(map(str, missing[:_MANY])) + ", ..." * (len(missing) > _MANY)
        raise value_error(
            "table",
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
