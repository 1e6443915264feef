"""What is said where a function does not take one point, and a key called `key`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..._errors import type_error

_KEYS = {
    "keys", "prng", "prng_key", "prngkey", "rand_key", "random_key", "rng", "rng_key",
    "rngs", "subkey",
}  # fmt: skip
"""What people call a parameter for a PRNG key; in small letters."""


def check_key_name(function: str, fn: Callable[..., Any]) -> None:
    """Raises a `TypeError` if `fn` would never see the key that was given."""
    for name in _parameters(fn):
        if name.lower() in _KEYS:
            raise _key_name(function, name)


def not_a_point(
    function: str, fn: Callable[..., Any], keyword: Mapping[str, Any]
) -> TypeError | None:
    """The error for a call that failed since `fn` takes other arguments, if it does.

    Asked after a call that failed: what a function says of itself need not be so, as
    where a decorator has the signature of what it wraps.
    """
    try:
        inspect.signature(fn).bind(None, **keyword)
        return None
    except ValueError:  # it does not tell
        return None
    except TypeError:
        wanted = [p.name for p in _parameters(fn).values() if _is_required(p)]
    others = [name for name in wanted[1:] if name != "key"]
    if len(others) == 1 and others[0].lower() in {*_KEYS, "seed"}:
        return _key_name(function, others[0])
    if len(wanted) < 2:
        wrong = "`fn` has no place for the point, the one argument that it gets."
        return type_error(function, wrong, "Write `lambda p: fn(**p)`.")
    takes = ", ".join(f"`{name}`" for name in wanted)
    given = [_from_point(name) for name in wanted]
    head = "lambda p, key:" if "key" in wanted else "lambda p:"
    return type_error(
        function,
        f"`fn` takes {len(wanted)} arguments ({takes}), and gets one point.",
        f"Take them from the point, `{head} fn({', '.join(given)})`, where the "
        "space is a dict with these names. What does not vary stands in the space "
        "too, or is given by `functools.partial`.",
    )


def _from_point(name: str) -> str:
    if name == "key":
        return "key=key"
    return "p" if name in ("p", "point") else f'p["{name}"]'


def _key_name(function: str, name: str) -> TypeError:
    return type_error(
        function,
        f"`fn` has a parameter `{name}`, which nothing is given to.",
        "The parameter for a PRNG key must be called `key`: rename it, or give "
        f"`lambda point, key: fn(point, {name}=key)`.",
    )


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return {}


def _is_required(parameter: inspect.Parameter) -> bool:
    many = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not many
