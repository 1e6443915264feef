"""Check the arguments of strategies when examples are drawn."""

from collections.abc import Callable
from typing import Any, TypeAlias

import hypothesis.strategies as st
import jax
import jax.tree_util as jtu
from hypothesis.errors import InvalidArgument

from ..._errors import describe_value, message
from ..._tree import leaves_with_names
from ..._types import PyTree

Draw: TypeAlias = Callable[..., Any]
"""The function by which a composite strategy draws."""


def invalid(function: str, wrong: str, cure: str) -> InvalidArgument:
    """Return the error for an argument that a strategy does not support."""
    return InvalidArgument(message(f"testing.{function}", wrong, cure))


def check_strategy(
    function: str, argument: str, value: object, optional: bool = True
) -> None:
    """Raise unless `value` is a strategy, or `None` if `optional`."""
    if isinstance(value, st.SearchStrategy) or (value is None and optional):
        return
    raise invalid(
        function,
        f"`{argument}` is {describe_value(value)}, not a strategy.",
        f"For one fixed value give `{argument}=hypothesis.strategies.just(value)`.",
    )


def check_strategies(function: str, argument: str, values: object) -> None:
    """Raise unless `values` is a list or tuple of strategies."""
    is_list = isinstance(values, tuple | list)
    if not is_list or not all(isinstance(v, st.SearchStrategy) for v in values):
        raise invalid(
            function,
            f"`{argument}` is {describe_value(values)}.",
            "Give a list of strategies, such as `[hypothesis.strategies.just(...)]`.",
        )


def check_struct(function: str, struct: PyTree) -> PyTree:
    """Return shapes and dtypes, given as structs or by example arrays."""
    named = leaves_with_names(struct)
    for name, leaf in named or [("", struct)]:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            place = f"`struct` has at `.{name}`" if name else "`struct` is"
            raise invalid(
                function,
                f"{place} {describe_value(leaf)}.",
                "Give a pytree of `jax.ShapeDtypeStruct(shape, dtype)`, or of arrays "
                "of these shapes and dtypes.",
            )
    return jtu.tree_map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), struct)
