"""Spaces with a point for each row: of a table, or of several spaces joined."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int

from .._check import check_unmasked
from .._errors import describe_value, type_error, value_error
from .._tree import differences, is_key_array, on_device
from .._types import PyTree
from .axis import Axis, check_dim, is_axis
from .geometry import Geometry, at_least_one, values_at
from .numbers import NUMBERS, ValuesLike, missing_in
from .space import Space
from .values import LoadedValues, Static, Values

_DATES = (datetime.date, datetime.time, datetime.timedelta)
_DATES += (np.datetime64, np.timedelta64)

TableLike: TypeAlias = Mapping[str, ValuesLike] | Sequence[Mapping[str, object]] | Any
"""Columns by name, rows by name, or a data frame."""


def table(columns: TableLike, dim: str | None = None) -> Space:
    """Return the space of a table; see `Space.from_table`."""
    check_dim("Space.from_table", dim)
    columns = _columns(columns)
    tree = {name: _axis(name, column, dim) for name, column in columns.items()}
    # Axes that share a dim vary together in a product, too.
    space = Space(tree, "product" if dim else "zip")
    return space if len(next(iter(columns.values()))) else space[:0]


def _columns(table: Any) -> dict[Any, Any]:
    """Return the columns by name, in order."""
    if isinstance(table, list | tuple) and all(isinstance(r, Mapping) for r in table):
        table = _transposed(table)
    # A dict has its columns as keys, a data frame as an attribute; that of a table of
    # Arrow has another name.
    names = getattr(table, "column_names", getattr(table, "columns", ()))
    names = table if isinstance(table, Mapping) else names
    if not len(names):
        raise type_error(
            "Space.from_table",
            f"`columns` is {describe_value(table)}, which has no columns.",
            "Give a dict of columns, a data frame, or a list of dicts; for an array "
            "`dict(zip(names, array.T))`.",
        )
    columns = {name: table[name] for name in names}
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
        array = np.zeros(0, object) if listed else np.asarray(column)
        numbers: Any = array
        if listed or array.dtype.kind not in NUMBERS:
            # Entries of Arrow's and xarray's columns are not Python values.
            as_list: Any = getattr(column, "to_pylist", None)
            numbers = as_list() if as_list else list(column if listed else array)
            if not all(map(_is_number, numbers)) or not (numbers or listed):
                return _static(name, numbers, array.dtype, dim)
        _check_complete(name, missing_in(column))
        column = numbers
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


def _static(name: str, items: list[Any], dtype: np.dtype, dim: str | None) -> Axis:
    """Return a column of Python values as an axis."""
    if not items:
        raise type_error(
            "Space.from_table",
            f"the column `{name}` has no rows, and its dtype is {dtype}.",
            "Give it a dtype of numbers, or make the table of all rows and take a part "
            "of it, `ep.Space.from_table(df)[mask]`.",
        )
    dates = [x for x in items if isinstance(x, _DATES)]
    if dtype.kind in "mM" or dates:
        kind = dtype if dtype.kind in "mM" else type(dates[0]).__name__
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


def joined(function: str, spaces: Sequence[Space]) -> Space:
    """Return the points of all `spaces` in order, as one space.

    Parts of one grid become a part of it, whose points keep their keys. Other spaces
    become a table.
    """
    first = spaces[0]
    geometries = [space.geometry for space in spaces]  # each access computes it
    digits = [geometry.digits(np.arange(geometry.size)) for geometry in geometries]
    if all(_of_one_grid(first, space) for space in spaces[1:]):
        return first._with(span=None, rows=on_device(np.concatenate(digits)))
    for k, space in enumerate(spaces[1:], 1):
        _check_alike(function, k, first.tree, space.tree)
    if not any(map(len, digits)):
        return first[:0]
    names = geometries[0].names
    columns = [_column(function, name, geometries, spaces, digits) for name in names]
    return first.with_axes(columns)


def _of_one_grid(first: Space, other: Space) -> bool:
    whole = [(space.tree, space.key) for space in (first, other)]
    return first.mode == other.mode and bool(eqx.tree_equal(*whole))


def _check_alike(function: str, k: int, first: PyTree, other: PyTree) -> None:
    """Raise unless two spaces have the same axes and the same other leaves."""
    constants = [
        jtu.tree_map(lambda x: None if is_axis(x) else x, tree, is_leaf=is_axis)
        for tree in (first, other)
    ]
    if not eqx.tree_equal(*constants):
        raise value_error(
            function,
            f"beside the axes the spaces differ: `results[0]` has "
            f"{describe_value(constants[0])}, `results[{k}]` has "
            f"{describe_value(constants[1])}.",
            "Join results of spaces with the same axes at the same paths, and make "
            "the values that differ axes with one value in each.",
        )


def _column(
    function: str,
    name: str,
    geometries: Sequence[Geometry],
    spaces: Sequence[Space],
    digits: Sequence[Int[np.ndarray, "_ _"]],
) -> PyTree[Axis]:
    """Return an axis with the values of one axis at the points of several spaces."""
    values, axes = [], [geometry.axes[name] for geometry in geometries]
    for axis, geometry, space, at in zip(axes, geometries, spaces, digits, strict=True):
        positions = at[:, geometry.axis_dims[geometry.names.index(name)]]
        values.append(values_at(name, axis, space.axis_key(name), positions))
    texts = axes[0].texts
    if all(axis.is_static for axis in axes):
        return Static([x for part in values for x in part], **texts)
    for k, (axis, other) in enumerate(zip(axes[1:], values[1:], strict=True), 1):
        forms = [
            None if a.is_static else v for a, v in ((axes[0], values[0]), (axis, other))
        ]
        lines = differences(*forms, free_axis=0)
        if lines:
            raise value_error(
                function,
                f"the values of the axis `{name}` differ between `results[0]` and "
                f"`results[{k}]`: {'; '.join(lines)}.",
                "Give them the same structure, shape and dtype.",
            )
    is_log = all(axis.is_log for axis in axes)
    # Values from files keep 64 bits.
    is_loaded = any(isinstance(axis, LoadedValues) for axis in axes)
    kind = LoadedValues if is_loaded else Values
    return jtu.tree_map(
        lambda *parts: kind(_joined(parts), is_log=is_log, **texts), *values
    )


def _joined(parts: tuple[Any, ...]) -> Any:
    """Join arrays; `jnp` would compile a program for each number of them."""
    if any(map(is_key_array, parts)):
        return jnp.concatenate(parts)
    return np.concatenate([np.asarray(part) for part in parts])
