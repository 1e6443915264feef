"""At which points of a space a condition holds."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .._errors import describe_value, type_error, value_error
from .._types import Key, PyTree
from .axis import NEEDS_NUMBERS
from .geometry import Geometry

# Points of one call: memory stays small, and at most two shapes are compiled.
_AT_ONCE = 2**16
# The answer for so many takes 2 GiB, and their positions more.
_MOST = 2**31

Condition: TypeAlias = Callable[[PyTree], Bool[Array, ""] | bool]
"""A function of a point that is true or false."""


def where(
    geometry: Geometry, key: Key | None, condition: Condition
) -> Bool[np.ndarray, " points"]:
    """Whether `condition` holds, for each point; `key` is that of the space."""
    if not callable(condition):
        raise type_error(
            "Space.where",
            f"`condition` is {describe_value(condition)}.",
            "Give a function of a point; a mask or a list of indices goes in brackets, "
            "`space[mask]`.",
        )
    if geometry.size >= _MOST:
        raise value_error(
            "Space.where",
            f"the space has {geometry.size} points, each of which is looked at.",
            "Take at most 2**31 - 1 of them, `space[a:b].where(...)`.",
        )
    digits = geometry.digits(np.arange(geometry.size))
    static = list(geometry.static_dims)
    # One program for each combination of Python values.
    plain = np.zeros(len(geometry.lengths), np.int64)
    found = np.empty(geometry.size, bool)
    code = np.zeros(geometry.size, np.int64)
    for dim in static:
        code = code * geometry.lengths[dim] + digits[:, dim]
    _, firsts, which = np.unique(code, return_index=True, return_inverse=True)
    for number, first in enumerate(firsts):
        plain[static] = digits[first, static]
        holds = _vectorised(geometry, key, condition, plain.tolist())
        points = np.flatnonzero(which == number)
        for start in range(0, len(points), _AT_ONCE):
            some = points[start : start + _AT_ONCE]
            found[some] = holds(digits[some])
    return found


def _vectorised(
    geometry: Geometry, key: Key | None, condition: Condition, plain: list[int]
) -> Callable[[np.ndarray], Array]:
    """The condition of many points, given by their positions on the dims."""

    def at(row: Array) -> Array:
        point = geometry.point(geometry.leaves, key, list(row), plain)
        try:
            holds: Any = condition(point)
        except NEEDS_NUMBERS as error:
            error.add_note(
                "The condition of `Space.where` is traced: write `&`, `|` and `~` "
                "instead of `and`, `or` and `not`, and no `if`."
            )
            raise
        if jnp.shape(holds) != () or not jnp.issubdtype(
            jnp.result_type(holds), np.bool_
        ):
            raise type_error(
                "Space.where",
                f"`condition` gives {describe_value(holds)}.",
                "Return one bool for a point, such as a comparison of two numbers.",
            )
        return jnp.asarray(holds)

    return jax.jit(jax.vmap(at))
