"""Numbers at which functions go wrong."""

from typing import TypeVar

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ..._errors import describe_value
from .validate import check_bool, invalid

T = TypeVar("T")


def _half_of_them(edges: list[T], plain: list[T]) -> st.SearchStrategy[T]:
    """Edges as often as plain numbers; the first of these is the simplest."""
    # In one list, as between two strategies hypothesis would not shrink.
    return st.sampled_from(plain + edges * (1 + len(plain) // len(edges)))


_PLAIN = [i / 8 for i in sorted(range(-32, 33), key=lambda i: (abs(i), i < 0))]
EIGHTHS = _half_of_them([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5], _PLAIN)
"""Small numbers that every dtype holds; those of which much depends come often."""


def edge_numbers(
    dtype: DTypeLike = "float32",
    *,
    allow_infinity: bool = False,
    allow_nan: bool = False,
) -> st.SearchStrategy[float | int | complex | bool]:
    """Single numbers at which functions go wrong, half of the time; else small ones.

    Of a float dtype: 0 and -0, 1 and -1, exact halves (which are rounded to even), the
    smallest normal number, the spacing at 1 and the neighbours of 1, and the largest
    number of either sign. Of an integer dtype: 0, 1, -1, and both ends with their
    neighbours. There are few, so that ties are frequent.

    **Arguments:**

    - `dtype`: the dtype that holds the numbers: integers, real or complex numbers, or
      `bool`.
    - `allow_infinity`, `allow_nan`: whether these are drawn, too. (Keyword only.)

    **Returns:** a strategy, for `elements=` of `arrays`, `batches` and `given_typed`.
    It shrinks to 0.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if `dtype` is no
    dtype of numbers, or a flag no bool.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax, jax.numpy as jnp
        >>> vector = jax.ShapeDtypeStruct((3,), "bfloat16")
        >>> @hypothesis.given(ept.arrays(vector, elements=ept.edge_numbers("bfloat16")))
        ... def test_sign(x):
        ...     assert (jnp.abs(x) * jnp.sign(x) == x).all()
        >>> test_sign()
    """
    check_bool("edge_numbers", "allow_infinity", allow_infinity)
    check_bool("edge_numbers", "allow_nan", allow_nan)
    try:
        dtype = jnp.dtype(dtype)
    except TypeError:
        raise _no_numbers(dtype) from None
    if dtype == jnp.bool_:
        return st.booleans()
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        ends = [0, 1, *([-1] if low else []), high, low, high - 1, low + 1]
        plain = sorted(range(max(low, -4), min(high, 4) + 1), key=abs)
        return _half_of_them(ends, plain)
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise _no_numbers(dtype)
    real = _floats(dtype, allow_infinity, allow_nan)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return st.builds(complex, real, real)
    return real


def _floats(
    dtype: DTypeLike, allow_infinity: bool, allow_nan: bool
) -> st.SearchStrategy[float]:
    info = jnp.finfo(dtype)
    tiny, eps, largest = (float(v) for v in (info.tiny, info.eps, info.max))
    edges = [0.0, 1.0, -1.0, -0.0, 0.5, -0.5, 1.5, 2.5, tiny, -tiny]
    edges += [eps, 1 + eps, 1 - eps / 2, largest, -largest]
    edges += [np.inf, -np.inf] if allow_infinity else []
    edges += [np.nan] if allow_nan else []
    return _half_of_them(edges, _PLAIN)


def _no_numbers(dtype: object) -> Exception:
    return invalid(
        "edge_numbers",
        f"`dtype` is {describe_value(dtype)}.",
        "Give the dtype of numbers, such as 'float32' or 'int8'.",
    )
