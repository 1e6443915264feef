"""What is said where a space has no axis: what was probably meant as one."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .._errors import describe_value, type_error, value_error
from .._tree import path_name, unregistered
from .axis import is_axis

_MANY = 10
"""How many records of a list are looked at."""


def no_axis(function: str, argument: str, tree: Any) -> ValueError:
    """The error for a `tree` without an axis, which came as `argument`."""
    wrong, cure = (
        _table(tree)
        or _records(tree)
        or _columns(tree)
        or (
            f"is {describe_value(tree)}, which has no axis in it",
            "Put a `Linspace`, `Geomspace` or `Values` in the place of a leaf.",
        )
    )
    return value_error(function, f"`{argument}` {wrong}.", cure)


def check_seen(tree: Any) -> None:
    """Raises a `TypeError` if an axis is in an object that JAX does not look into.

    Such an object is a leaf, which each point would get with the axis in it.
    """
    for path, leaf in jtu.tree_flatten_with_path(tree, is_leaf=is_axis)[0]:
        if is_axis(leaf) or not unregistered(leaf):
            continue
        is_data = dataclasses.is_dataclass(leaf)
        names = [f.name for f in dataclasses.fields(leaf)] if is_data else vars(leaf)
        hidden = [name for name in names if is_axis(getattr(leaf, name, None))]
        if hidden:
            place = f" at `{path_name(path)}`" if path else ""
            raise type_error(
                "Space",
                f"the axis `{hidden[0]}` is in a `{type(leaf).__name__}`{place}, "
                "and would not vary.",
                unregistered(leaf),
            )


def _table(tree: Any) -> tuple[str, str] | None:
    """Tables of pandas, Polars, PyArrow and xarray, by what they can do."""
    if isinstance(tree, type):
        return None
    if hasattr(tree, "data_vars") and hasattr(tree, "coords"):
        names, values = "data_vars", "values"
    elif hasattr(tree, "columns") and hasattr(tree, "shape"):
        names, values = "columns", "to_numpy()"
    elif hasattr(tree, "column_names"):
        names, values = "column_names", "to_numpy()"
    else:
        return None
    return (
        f"is a {type(tree).__name__}, a table, which has no axis in it",
        "Make each column an axis, and let all vary together, one point for each row: "
        f"`ep.Space({{name: ep.Values(df[name].{values}) for name in df.{names}}}, "
        'mode="zip")`, with `ep.Static` for columns of texts.',
    )


def _records(tree: Any) -> tuple[str, str] | None:
    """Points written out one by one: a list of dicts with the same keys."""
    if not isinstance(tree, list | tuple) or len(tree) < 2:
        return None
    some = tree[:_MANY]
    if not all(isinstance(point, Mapping) and point for point in some):
        return None
    if len({frozenset(point) for point in some}) > 1:
        return None
    return (
        f"is a {type(tree).__name__} of {len(tree)} points, which has no axis in it",
        "A space has one axis for each name: `ep.Space({name: ep.Values([p[name] for p "
        'in points]) for name in points[0]}, mode="zip")`, with `ep.Static` for what '
        "is no number.",
    )


def _columns(tree: Any) -> tuple[str, str] | None:
    """Arrays and lists of numbers, which pass through as they are."""
    if isinstance(tree, Mapping):
        found = [(f"[{name!r}]", leaf) for name, leaf in tree.items()]
    else:
        found = [("", tree)]
    for place, leaf in found:
        if _is_sequence(leaf):
            return (
                f"has no axis in it: {describe_value(leaf, 40)} at `{place or '.'}` is "
                "handed to each point as it is",
                "An array or list of values is made an axis by `ep.Values(...)`, and "
                "one of Python values by `ep.Static(...)`.",
            )
    return None


def _is_sequence(leaf: Any) -> bool:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return len(leaf.shape) > 0
    plain = isinstance(leaf, list | tuple | range) and len(leaf) > 1
    return plain and all(np.isscalar(x) for x in leaf[:_MANY])
