"""Check the arguments of strategies when examples are drawn."""

import functools as ft
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import hypothesis.strategies as st
import jax
import jax.tree_util as jtu
from hypothesis.errors import InvalidArgument

from ..._check import check_int as check_plain_int
from ..._errors import describe_value, message
from ..._tree import leaves_with_names
from ..._types import PyTree

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn as Draw
else:
    Draw = Callable  # `DrawFn` is a protocol that cannot be checked at run time

P = ParamSpec("P")
T = TypeVar("T")


def invalid(function: str, wrong: str, cure: str) -> InvalidArgument:
    """Return the error for an argument that a strategy does not support."""
    return InvalidArgument(message(f"testing.{function}", wrong, cure))


def check_strategy(
    function: str, argument: str, value: object, optional: bool = True
) -> None:
    """Raise unless `value` is a strategy, or `None` if `optional`."""
    if isinstance(value, st.SearchStrategy) or (value is None and optional):
        return
    fixed = "none()" if value is None else "just(...)"
    raise invalid(
        function,
        f"`{argument}` is {describe_value(value)}, not a strategy.",
        f"For one fixed value give `{argument}=hypothesis.strategies.{fixed}`.",
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


def check_int(function: str, argument: str, value: object, minimum: int) -> None:
    """Raise unless `value` is an integer of at least `minimum`."""
    try:
        check_plain_int(f"testing.{function}", argument, value, minimum)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(str(error)) from None


def composite(
    fn: Callable[Concatenate[Draw, P], T],
) -> Callable[P, st.SearchStrategy[T]]:
    """Apply `hypothesis.strategies.composite`, and restore the state of `random`.

    Under jaxtyping's hook with beartype, building a strategy draws from Python's random
    generator, and Hypothesis rejects strategies that change its state.
    """

    @ft.wraps(fn)
    def traceless(draw: Draw, *args: P.args, **kwargs: P.kwargs) -> T:
        before = random.getstate()
        try:
            return fn(draw, *args, **kwargs)
        finally:
            random.setstate(before)

    return st.composite(traceless)
