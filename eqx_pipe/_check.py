"""Checks of arguments that are on for every user. Each knows the argument's name."""

import inspect
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from ._errors import describe_value, message, nearest


def check_callable(function: str, argument: str, value: Any) -> None:
    """Raises a `TypeError` unless `value` can be called as a stage."""
    if inspect.isclass(value):
        raise TypeError(
            message(
                function,
                f"`{argument}` is the class `{value.__name__}`, not a stage.",
                f"Make an instance of it first: `{value.__name__}(...)`.",
            )
        )
    if isinstance(value, list | tuple):
        raise TypeError(
            message(
                function,
                f"`{argument}` is a {type(value).__name__} of {len(value)} things, not "
                "a stage.",
                f"If these are the stages, unpack them: `{function}(*stages)`.",
            )
        )
    if isinstance(value, Mapping):
        unpack = "(**stages)" if function == "chain" else "(*stages.values())"
        raise TypeError(
            message(
                function,
                f"`{argument}` is a {type(value).__name__} with the keys "
                f"{list(value)}, not a stage.",
                f"If these are the stages, unpack them: `{function}{unpack}`.",
            )
        )
    if not callable(value):
        raise TypeError(
            message(
                function,
                f"`{argument}` is {describe_value(value)}, which cannot be called.",
                "A stage is a callable `stage(x, *, key=None)`: an `equinox.nn` layer, "
                "another pipeline, or a plain function.",
            )
        )


def check_name(function: str, argument: str, name: Any) -> None:
    """Raises a `ValueError` unless `name` is a non-empty string without a dot."""
    if not isinstance(name, str) or not name or "." in name:
        raise ValueError(
            message(
                function,
                f"`{argument}` has the name {describe_value(name)}.",
                "A name is a non-empty string without a dot (dots join the names of a "
                "path). Rename it.",
            )
        )


def check_int(function: str, argument: str, value: Any, minimum: int) -> None:
    """Raises unless `value` is an integer of at least `minimum`."""
    if not is_integer(value):
        raise TypeError(
            message(
                function,
                f"`{argument}` is {describe_value(value)}.",
                f"Give an integer of at least {minimum}.",
            )
        )
    if operator.index(value) < minimum:
        raise ValueError(
            message(
                function,
                f"`{argument}` is {value}.",
                f"Give an integer of at least {minimum}.",
            )
        )


def is_integer(value: Any) -> bool:
    """Whether `value` is an integer: of Python, of NumPy, or an array of one."""
    try:
        operator.index(value)  # arrays have `__index__`, of whatever dtype and shape
    except TypeError:
        return False
    return not isinstance(value, bool)


def check_choice(
    function: str, argument: str, value: Any, choices: Iterable[str]
) -> None:
    """Raises a `ValueError` unless `value` is one of the strings `choices`."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            message(
                function,
                f"`{argument}` is {describe_value(value)}.",
                nearest(value, choices),
            )
        )


def check_key(function: str, key: Any) -> None:
    """Raises a `TypeError` unless `key` is `None` or one PRNG key."""
    if key is None:
        return
    if eqx.is_array(key):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            if key.shape == ():
                return
        elif key.dtype == jnp.uint32 and key.ndim == 1:
            return
    raise TypeError(
        message(
            function,
            f"`key` is {describe_value(key)}, which is not a single PRNG key.",
            "Give one made by `jax.random.key(seed)`; for a batch of keys use "
            "`jax.vmap`.",
        )
    )


def check_draws(function: str, subject: str, keys: Any) -> None:
    """Raises unless draws from one or more keys are the same alone and under `vmap`.

    `subject` begins the message: who has the keys, and that it has them.
    """
    typed = jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    raw = "rbg" if keys.shape[-1:] == (4,) else ""  # four words; other kinds have two
    kind = str(jr.key_impl(keys)) if typed else raw
    if "rbg" in kind:
        raise ValueError(
            message(
                function,
                f"{subject} of the kind `{kind}`, whose draws under `vmap` differ from "
                "those of a single point.",
                "Use `jax.random.key(seed, impl='threefry2x32')`.",
            )
        )
