"""How a space asks an axis for a value, and what it says if that goes wrong."""

from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from jaxtyping import ArrayLike

from .._check import check_draws
from .._errors import MissingKeyError, asks_for_key, describe_value, type_error
from .._tree import is_key_array, path_name
from .._types import Key, PyTree
from .axis import Axis, Position
from .random import MissingAxisKey

_NEEDS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_TRACED = (
    "An axis's values are computed while JAX traces, so `i` in its `value(i, key)` is "
    "no Python integer: use JAX operations, and `jnp.asarray(values)[i]` instead of "
    "indexing a list."
)


def value_of(name: str, axis: Axis, i: Position, key: Key | None) -> PyTree:
    """The value of the axis called `name` at position `i`."""
    # By the class: a method of a module is a module itself, made each time it is asked.
    value_at: Any = type(axis).value
    try:
        value = value_at(axis, i, key)
    except MissingKeyError:
        raise
    except Exception as error:
        if key is None and asks_for_key(error):
            raise MissingAxisKey(name) from error
        error.add_note(f"Raised by the axis `{name}` of the space.")
        if isinstance(error, _NEEDS_NUMBERS):
            error.add_note(_TRACED)
        raise
    if isinstance(value, jax.Array):
        _check_key(name, value)
    elif not axis.is_static:
        _check_arrays(name, value)
    return value


def _check_arrays(name: str, value: PyTree) -> None:
    for path, leaf in jtu.tree_flatten_with_path(value)[0]:
        if eqx.is_array_like(leaf):
            _check_key(name, leaf)
            continue
        place = f" at `.{path_name(path)}`" if path else ""
        raise type_error(
            "Space",
            f"the axis `{name}` gives {describe_value(leaf)}{place}.",
            "The values of an axis are arrays, numbers or pytrees of them. For "
            "functions, texts and other Python values use `Static`, or map one.",
        )


def _check_key(name: str, value: ArrayLike) -> None:
    if is_key_array(value):
        check_draws("Space", f"the axis `{name}` gives keys", value)
