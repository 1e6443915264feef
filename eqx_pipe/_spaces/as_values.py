"""The values of an axis, given one by one, as one array."""

from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike

from .._check import check_draws
from .._errors import describe_value, message
from .._tree import is_key_array
from .narrow import check_fits, warn_if_alike

_NUMBERS = "biufcV"
"""NumPy's letters for numbers; JAX's small dtypes such as bfloat16 have `V`."""


ValuesLike: TypeAlias = ArrayLike | Iterable[object]
"""An array whose leading axis counts the values, or numbers, arrays or keys."""


def as_values(values: Any) -> Array:
    """A sequence of numbers, arrays or keys as one array; raises if it is none."""
    if isinstance(values, str | bytes) or not (
        hasattr(values, "shape") or hasattr(values, "__iter__")
    ):
        _refuse(TypeError, f"`values` is {describe_value(values)}.")
    if not hasattr(values, "shape"):
        values = list(values)
        if not values:
            _refuse(ValueError, "`values` is empty.")
        values = _stack(values)
    if len(values.shape) == 0:
        _refuse(TypeError, f"`values` is {describe_value(values)}, one value.")
    if values.shape[0] == 0:
        _refuse(ValueError, f"`values` has the shape {values.shape}: it is empty.")
    array = _as_array(values)
    # Old-style keys look like numbers, so they are keys where that kind is the default.
    default = jax.config.jax_default_prng_impl  # type: ignore
    old = array.dtype == jnp.uint32 and array.ndim > 1 and "rbg" in default
    if old or is_key_array(array):
        check_draws("Values", "`values` are keys", array)
    return array


def _stack(values: list[Any]) -> Any:
    """A list of numbers, arrays or keys as one array, of NumPy if none is of JAX."""
    shapes = [np.shape(x) for x in values]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            _refuse(
                ValueError,
                f"`values[{i}]` has the shape {shape}, `values[0]` {shapes[0]}.",
            )
    if not any(isinstance(x, jax.Array) for x in values):
        array = np.asarray(values)
        if array.dtype.kind in _NUMBERS:
            return array
    _check_items(values)
    arrays = [_as_array(x) for x in values]
    if not any(map(is_key_array, arrays)):
        _check_joined(values, arrays)
    return jnp.stack(arrays)


def _check_items(values: list[Any]) -> None:
    """Raises unless all are numbers or arrays, or all are keys of one kind."""
    for i, x in enumerate(values):
        if isinstance(x, jax.Array | int):
            continue
        if np.asarray(x).dtype.kind not in _NUMBERS:
            _refuse(TypeError, f"`values` holds {describe_value(x)} at index {i}.")
    if not any(map(is_key_array, values)):
        return
    first = values[0]
    for i, x in enumerate(values):
        if getattr(x, "dtype", None) != getattr(first, "dtype", None):
            _refuse(
                TypeError,
                f"`values[0]` is {describe_value(first)} and `values[{i}]` "
                f"{describe_value(x)}: keys stand with keys of their own kind alone.",
            )


def _check_joined(values: list[Any], arrays: list[Array]) -> None:
    """Raises unless the dtype that JAX gives to all `arrays` together holds each."""
    try:
        dtype = jnp.result_type(*arrays)
    except ValueError as error:  # strict promotion, or dtypes that have no common one
        found = ", ".join(sorted({str(array.dtype) for array in arrays}))
        _refuse(TypeError, f"`values` mixes the dtypes {found}.", error)
    for i, (given, array) in enumerate(zip(values, arrays, strict=True)):
        if array.dtype != dtype and not isinstance(given, Tracer):
            check_fits("Values", f"values[{i}]", given, dtype)


def _as_array(given: Any) -> Array:
    """Numbers as an array of the dtype that JAX gives them, if it holds them."""
    if isinstance(given, jax.Array):
        return given
    try:
        with np.errstate(over="ignore"):
            array = jnp.asarray(given)
    except OverflowError:
        _refuse(ValueError, f"an integer does not fit {jnp.result_type(int)}.")
    except (TypeError, ValueError) as error:
        _refuse(TypeError, f"`values` holds what JAX has no dtype for ({error}).")
    given = np.asarray(given)
    check_fits("Values", "values", given, array.dtype)
    warn_if_alike("Values", given, array.dtype)
    return array


def _refuse(
    kind: type[Exception], wrong: str, cause: Exception | None = None
) -> NoReturn:
    raise kind(
        message(
            "Values",
            wrong,
            "Give a sequence of numbers, of PRNG keys, or of arrays of one shape, at "
            "least one, within the range of its dtype (64 bits need `jax_enable_x64`).",
        )
    ) from cause
