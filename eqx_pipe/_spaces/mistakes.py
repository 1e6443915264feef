"""Arguments that people try and that do not exist, and what to write instead.

First those of spaces and axes; then trees without an axis that were probably meant
as one.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .._errors import describe_value, type_error, value_error
from .._tree import path_name, unregistered
from .axis import is_axis

_NAME = (
    'An axis is called by its place in the space, `{"rate": axis}`; `dim=` names the '
    "dimension that it varies along."
)
_DTYPE = "Give the numbers in that dtype: `jnp.asarray(x, jnp.float16)`."
_ENDS = "The ends come first: `(lo, hi, n)`."
_N = "The number of values is called `n`, and comes third: `(lo, hi, n)`."
_SPACED = {
    "name": _NAME,
    "dtype": _DTYPE,
    **dict.fromkeys(("start", "stop", "low", "high", "min", "max"), _ENDS),
    **dict.fromkeys(("num", "size", "count", "steps"), _N),
    "endpoint": "Both ends are included: move `hi` by one step, or give `Values` the "
    "numbers that you want.",
}

_LOG = "Values evenly spaced in the logarithm are a `Geomspace(lo, hi, n)`."
LINSPACE = {**_SPACED, **dict.fromkeys(("log", "scale", "logscale", "base"), _LOG)}

_IS_LOG = "It is evenly spaced in the logarithm as it is; its ends are given as values."
GEOMSPACE = {**_SPACED, **dict.fromkeys(("log", "scale", "base"), _IS_LOG)}

VALUES = {"name": _NAME, "dtype": _DTYPE, "log": _LOG}

STATIC = {"name": _NAME}

_KEY_OF_SPACE = "The key is that of the space: `Space(tree, key=jax.random.key(0))`."
_SAMPLER = (
    "Give it to the sampler: `functools.partial(jax.random.uniform, minval=-1.0)`."
)
RANDOM = {
    "name": _NAME,
    "shape": "For arrays write the shape into the sampler: "
    "`lambda key, shape: jax.random.normal(key, (3,))`.",
    **dict.fromkeys(("key", "seed"), _KEY_OF_SPACE),
    **dict.fromkeys(("num", "size"), "The number of values is called `n`."),
    **dict.fromkeys(("low", "high", "minval", "maxval", "loc", "scale"), _SAMPLER),
}

SEEDS = {
    "name": _NAME,
    **dict.fromkeys(("key", "seed"), "Draws come from the key of the sweep: `key=`."),
    **dict.fromkeys(
        ("common", "shared", "independent"),
        'Say `draws="common"`, which is the default, or `draws="own"`.',
    ),
}

MAPPED = {"name": _NAME, "dim": "Give `dim=` to the axis inside, whose dim is kept."}

_DIMS = (
    'Dims are named on the axes, `Linspace(0, 1, 5, dim="time")`; axes of one dim vary '
    "together."
)
SPACE = {
    **dict.fromkeys(("dim", "dims"), _DIMS),
    **dict.fromkeys(("zip", "product"), 'Say `mode="product"` or `mode="zip"`.'),
    "name": "A space has no name.",
    **dict.fromkeys(("seed", "rng"), "Give a key: `key=jax.random.key(seed)`."),
}

DESIGN = {
    "name": 'The design is called by its `dim="..."`.',
    **dict.fromkeys(
        ("key", "rng"), "Give `seed=` an integer: designs are drawn by SciPy."
    ),
    "log": "Give a `Geomspace(lo, hi)` in the place of the bounds.",
    "num": "The number of points is called `n`.",
}

_ARE_NAMES = "The names of an array's columns are `names=`."
TABLE = {
    **dict.fromkeys(("header", "cols"), _ARE_NAMES),
    "data": "The table comes first, without a name.",
    "key": "A table draws nothing; a `key` is given to the sweep.",
    "mode": "The columns of a table vary together.",
}

_MANY = 10
"""How many records of a list are looked at."""

_TABLES = {  # by what they can do, since none of these libraries need be there
    ("data_vars", "coords"): "ep.table(ds.to_dataframe().reset_index())",  # xarray
    ("columns", "shape"): "ep.table(df)",  # pandas, Polars
    ("column_names",): "ep.table(arrow.to_pandas())",  # PyArrow
}


def no_axis(function: str, argument: str, tree: Any) -> ValueError:
    """The error for a `tree` without an axis, which came as `argument`."""
    wrong, cure = (
        _as_table(tree)
        or _as_records(tree)
        or _as_columns(tree)
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


def _as_table(tree: Any) -> tuple[str, str] | None:
    for attributes, made in _TABLES.items():
        if isinstance(tree, type) or not all(hasattr(tree, a) for a in attributes):
            continue
        if not getattr(tree, "indexes", True):  # rows that are only counted
            made = made.replace(".reset_index()", "")
        return (
            f"is a {type(tree).__name__}, a table, which has no axis in it",
            f"`{made}` is the space with a point for each row.",
        )
    return None


def _as_records(tree: Any) -> tuple[str, str] | None:
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
        "`ep.table(points)` is the space of these points.",
    )


def _as_columns(tree: Any) -> tuple[str, str] | None:
    """Arrays and lists of numbers, which pass through as they are."""
    found = tree.items() if isinstance(tree, Mapping) else [(None, tree)]
    for name, leaf in found:
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            listed = len(leaf.shape) > 0
        else:
            listed = isinstance(leaf, list | tuple | range) and len(leaf) > 1
            listed = listed and all(np.isscalar(x) for x in leaf[:_MANY])
        if listed:
            place = "." if leaf is tree else f"[{name!r}]"
            return (
                f"has no axis in it: {describe_value(leaf, 40)} at `{place}` is handed "
                "to each point as it is",
                "An array or list of values is made an axis by `ep.Values(...)`, and "
                "one of Python values by `ep.Static(...)`.",
            )
    return None
