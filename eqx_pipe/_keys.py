"""Derive PRNG keys, find which callables take one, and check them.

Keys are applied elsewhere. In a pipeline, `Scope.child` (`_stage/stage.py`) folds the
key of a child, `call` beside it passes it to a layer, and `Lift` to a function. A sweep
derives the key of a point (`point_key`) in its program, and passes it to the function
(`_run/call.py`). A loader folds keys of records and batches (`_data/loader.py`).
"""

import functools as ft
import inspect
import types
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Integer

from ._cache import WeakCache
from ._captured import JITTED, cells
from ._errors import describe_value, type_error, value_error
from ._types import Key, Segment


def fold(key: Key | None, segment: Segment | Integer[Array, ""]) -> Key | None:
    """Return the key of a child: `fold_in` of its position or its name's CRC-32."""
    if key is None:
        return None
    if isinstance(segment, str):
        return jr.fold_in(key, _number(segment))
    return jr.fold_in(key, segment)


def point_key(
    key: Key | None, digits: Iterable[int | Integer[Array, ""]]
) -> Key | None:
    """Return the key of the point of a space with these positions on its dims.

    There is at least one, since a space has at least one axis.
    """
    if key is None:
        return None
    # A position has fewer than 32 bits, and `fold_in` uses 32 bits of a number.
    for digit in digits:
        key = jr.fold_in(key, digit)
    return key


def _number(name: str) -> np.uint32:
    # CRC-32 instead of `hash`, which differs between processes.
    return np.uint32(zlib.crc32(name.encode()))


def seed_of(key: Key | None) -> int:
    """Return a seed from a key, for generators of other packages; 0 without a key."""
    return 0 if key is None else int(jr.bits(key, dtype=jnp.uint32))


def check_names_draw_apart(function: str, names: Iterable[str]) -> None:
    """Raise a `ValueError` if `fold` would give two different names the same key."""
    names_by_number: dict[np.uint32, str] = {}
    for name in names:
        other = names_by_number.setdefault(_number(name), name)
        if other != name:
            wrong = f"the names {other!r} and {name!r} have the same CRC-32, so both "
            wrong += "would draw the same random numbers."
            cure = "Rename one of them."
            raise value_error(function, wrong, cure)


def parameters(fn: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a callable by name; empty without a signature.

    A function under `vmap` has the parameters of the mapped function, but cannot take
    them by keyword: `jax.vmap` maps keyword arguments over their first axis, and
    `eqx.filter_vmap` rejects them. A function of a batch draws with a key per example,
    or not at all.
    """
    if _is_mapped(fn):
        return {}
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return {}


def _is_mapped(fn: object) -> bool:
    """Return whether a callable wraps a function under `vmap`."""
    seen: list[Any] = []
    while fn is not None and all(fn is not other for other in seen):
        seen.append(fn)
        # From `eqx.filter_vmap` and from `vmap` of this package.
        if type(fn).__name__ in ("_VmapWrapper", "Vmapped"):
            return True
        # JAX's wrapper has the user's `__wrapped__`; its own function is in a closure.
        if any(_name(inside) == "vmap_f" for inside in cells(fn).values()):
            return True
        fn = getattr(fn, "__wrapped__", None)
    return False


def _name(fn: object) -> str:
    return getattr(getattr(fn, "__code__", None), "co_name", "")


def key_argument(fn: object, key: Key | None) -> dict[str, Any]:
    """Return the key as a keyword argument for a plain function, if it takes one."""
    takes, has_default = _key_rule(fn)
    return {"key": key} if takes and not (key is None and has_default) else {}


def _key_rule(fn: object) -> tuple[bool, bool]:
    """Return whether a function takes a key, and whether the key has a default.

    Needed at every call, and `inspect.signature` takes longer than most layers.
    """
    if not isinstance(fn, _FUNCTIONS):  # others may change, or lack weak references
        return keyword_rule(fn, "key")
    rule = _rules.get(fn)
    if rule is None:
        rule = _rules.put(fn, keyword_rule(fn, "key"))
    return rule


_FUNCTIONS = (types.FunctionType, JITTED)
_rules: WeakCache[tuple[bool, bool]] = WeakCache()


def keyword_rule(fn: object, name: str) -> tuple[bool, bool]:
    """Return whether a function takes an argument by name, and has a default for it."""
    named = parameters(fn)
    if name not in list(named)[1:]:  # the first is the input, under any name
        return False, False
    bound = isinstance(fn, ft.partial) and name in fn.keywords
    if bound or named[name].kind is inspect.Parameter.POSITIONAL_ONLY:
        return False, False
    default = named[name].default
    return True, default is not inspect.Parameter.empty and default is not None


def check_key(function: str, key: Any, *, required: bool = False) -> None:
    """Raise a `TypeError` unless `key` is one PRNG key, or `None` if not `required`."""
    if key is None and not required:
        return
    is_array = eqx.is_array(key)
    if is_array and key is not None:
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        if key.shape == () if typed else (key.dtype == jnp.uint32 and key.ndim == 1):
            return
    several = " For a batch give one key to `eqx_pipe.batched(pipe)`, or, as "
    several += "`jax.vmap` maps keyword arguments too, one to each example: "
    several += "`jax.vmap(pipe)(xs, key=jax.random.split(key, len(xs)))`."
    wrong = f"`key` is {describe_value(key)}, which is not a single PRNG key."
    cure = "Give one made by `jax.random.key(seed)`." + (several if is_array else "")
    raise type_error(function, wrong, cure)


def check_mapped_key(function: str, key: Any, *, required: bool = False) -> Key | None:
    """Return `key`; raise unless it is a key with the same draws under `vmap`."""
    check_key(function, key, required=required)
    if key is not None:
        check_draws(function, "`key` is", key)
    return key


def check_draws(function: str, subject: str, keys: Any) -> None:
    """Raise unless draws from these keys are the same with and without `vmap`.

    `subject` begins the message, as in "the space has keys".
    """
    if is_rbg(keys):
        typed = jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
        raise rbg_error(function, subject, jr.key_impl(keys) if typed else "rbg")


def rbg_error(function: str, subject: str, kind: Any = "rbg") -> ValueError:
    """Return the error for keys whose draws depend on each other under `vmap`."""
    wrong = f"{subject} of the kind `{kind}`, whose draws under `vmap` differ from "
    wrong += "those of a single point."
    cure = "Use `jax.random.key(seed, impl='threefry2x32')`."
    return value_error(function, wrong, cure)


def is_rbg(keys: Any) -> bool:
    """Return whether keys are of a kind whose draws differ under `vmap`."""
    if jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        return "rbg" in str(keys.dtype)
    return keys.shape[-1:] == (4,)  # four words; other kinds have two
