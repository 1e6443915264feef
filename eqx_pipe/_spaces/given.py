"""Numbers as arrays: the values of an axis, and what is lost in JAX's dtypes.

Rounding is allowed. A number that has no place in the dtype that JAX gives it is
refused, and different numbers that become one are warned of: a sweep would compute the
same point many times over.
"""

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Shaped

from .._errors import describe_value, message, value_error
from .._keys import check_draws
from .._tree import is_key_array, on_device

NUMBERS = "biufcV"
"""NumPy's letters for numbers; JAX's small dtypes such as bfloat16 have `V`."""

_CURE = (
    "Use a wider dtype (64 bits need `jax.config.update('jax_enable_x64', True)` at "
    "the top of the program), or rescale the numbers."
)
_MOST = 2**16
"""More values than this are not compared: it would take longer than to make them."""

ValuesLike: TypeAlias = ArrayLike | Iterable[object]
"""An array whose leading axis counts the values, or numbers, arrays or keys."""


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


def as_values(values: Any) -> Array:
    """A sequence of numbers, arrays or keys as one array; raises if it is none."""
    if not hasattr(values, "shape"):
        if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
            _refuse(TypeError, f"`values` is {describe_value(values)}.")
        values = list(values)
        values = _stack(values) if values else np.zeros(0)
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
            wrong = f"`values[{i}]` has the shape {shape}, `values[0]` {shapes[0]}."
            _refuse(ValueError, wrong)
    if not any(isinstance(x, jax.Array) for x in values):
        array = np.asarray(values)
        if array.dtype.kind in NUMBERS:
            return array
    for i, x in enumerate(values):
        plain = not isinstance(x, jax.Array | int)
        if plain and np.asarray(x).dtype.kind not in NUMBERS:
            _refuse(TypeError, f"`values` holds {describe_value(x)} at index {i}.")
    arrays = [_as_array(x) for x in values]
    if any(map(is_key_array, arrays)):
        _check_one_kind(values, arrays)
    else:
        _check_joined(values, arrays)
    return jnp.stack(arrays)


def _check_one_kind(values: list[Any], arrays: list[Array]) -> None:
    """Raises unless all are keys of one kind."""
    for i, array in enumerate(arrays):
        if array.dtype != arrays[0].dtype:
            _refuse(
                TypeError,
                f"`values[0]` is {describe_value(values[0])} and `values[{i}]` "
                f"{describe_value(values[i])}: keys stand with keys of their own kind "
                "alone.",
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
        # What is too large becomes an infinity, which `check_fits` refuses.
        with np.errstate(over="ignore"):
            on_host = isinstance(given, np.ndarray) and given.dtype.kind in NUMBERS
            array = on_device(given) if on_host else jnp.asarray(given)
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


def check_fits(
    function: str, name: str, given: Any, dtype: Any, place: str = ""
) -> None:
    """Raises if a number is too large for `dtype`, or so small that it becomes 0.

    `name` is that of the argument, and `place` says in messages where it stands.
    """
    given = np.asarray(given)  # by NumPy throughout: under `jit` arrays are traced
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        fitted = given.astype(dtype)
    kinds = []
    if jnp.issubdtype(dtype, jnp.integer):
        kinds = [(fitted != given, "does not fit")]
    if jnp.issubdtype(dtype, jnp.inexact):
        too_large = np.isfinite(given) & ~np.isfinite(fitted)
        becomes_0 = (given != 0) & (fitted == 0)
        kinds = [(too_large, "is too large for"), (becomes_0, "becomes 0 in")]
    for lost, what in kinds:
        if np.any(lost):
            entry = tuple(int(k) for k in np.argwhere(lost)[0])
            at = f"[{', '.join(map(str, entry))}]" if entry else ""
            number = given[entry].item()
            wrong = f"{place}`{name}{at}` is {number!r}, which {what} {dtype}."
            raise value_error(function, wrong, _CURE)


def warn_if_alike(function: str, given: Any, dtype: Any) -> None:
    """Warns if more than one in a hundred of different numbers become equal."""
    narrower = np.issubdtype(given.dtype, np.floating) and given.dtype != dtype
    if not narrower or not 1 < given.size <= _MOST:
        return
    ordered = np.sort(given, axis=None)
    differ = ordered[1:] != ordered[:-1]
    fitted = ordered.astype(dtype)  # which keeps the order
    alike = differ & (fitted[1:] == fitted[:-1])
    lost, different = int(np.sum(alike)), int(np.sum(differ)) + 1
    if 100 * lost <= different:
        return
    at = int(np.argmax(alike))
    pair = f"{ordered[at].item()!r} and {ordered[at + 1].item()!r}"
    left = f"{different - lost} of {different} different values are left"
    wrong = f"{pair} are the same number in {dtype}: {left}."
    warnings.warn(message(function, wrong, _CURE), stacklevel=3)
