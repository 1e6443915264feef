"""The signature of a stage: its inputs, and perhaps a PRNG key."""

import functools as ft
import inspect
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._keys import parameters
from .._types import Key


def why_not(fn: Any, num_inputs: int, named: tuple[str, ...] = ()) -> str | None:
    """Return why a callable cannot take these inputs and a key, or `None` if it can.

    `named` are additional inputs by keyword. A callable without a signature is
    accepted.
    """
    if isinstance(fn, np.ufunc | jnp.ufunc):  # the signature does not show `nin`
        fits = fn.nin == num_inputs and not named
        return None if fits else f"it requires {fn.nin} positional arguments"
    cls = type(fn)
    wraps = hasattr(cls, "__wrapped__") or "__signature__" in vars(cls)
    if isinstance(fn, eqx.Module) and not wraps:
        # Its `__call__` may be wrapped (`filter_jit`), which hides the signature.
        fn = ft.partial(cls.__call__, None)
    signature = _signature(fn)
    if signature is None:
        return None
    keyword = dict.fromkeys(named)
    if "key" in list(signature.parameters)[1:]:
        keyword["key"] = None
    try:
        signature.bind(*[None] * num_inputs, **keyword)
    except TypeError as error:
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        return f"its signature is `{inspect.Signature(bare)}` ({error})"
    return None


def _signature(fn: Any) -> inspect.Signature | None:
    """Return the signature; a wrapper's own, unless it takes any arguments."""
    for follow in (False, True):
        try:
            found = inspect.signature(fn, follow_wrapped=follow)
        except (TypeError, ValueError):  # some builtins have no signature
            continue
        kinds = [parameter.kind for parameter in found.parameters.values()]
        if follow or inspect.Parameter.VAR_POSITIONAL not in kinds:
            return found
    return None


def key_of(stage: Any, key: Key | None) -> dict[str, Key | None]:
    """Return the key as a keyword argument, if the module takes one.

    A module may pass its `**kwargs` to a layer that takes no key, so `key` is left out
    if there is no key.
    """
    parameter = _key_parameter(stage)
    if parameter is None or key is None and parameter.kind is parameter.VAR_KEYWORD:
        return {}
    return {"key": key}


def takes_key(stage: Any) -> bool:
    """Return whether a module accepts `key=`; others are called without it."""
    return _key_parameter(stage) is not None


def _key_parameter(stage: Any) -> inspect.Parameter | None:
    """Return the parameter of a module for `key=`: `key` itself, or its `**kwargs`."""
    found = of_type(type(stage))
    if found is None or found.kind is not found.VAR_KEYWORD:
        return found
    if isinstance(stage, eqx.Partial):
        if "key" in stage.keywords:
            return None
        bound = ft.partial(stage.func, *stage.args, **stage.keywords)
        return _of_callee(bound, stage.func)
    known = parameters(stage)
    if "key" in known or not known:  # no parameters under `vmap`
        return known.get("key")
    if not isinstance(stage, eqx.Module):  # a function that `tree_at` inserted
        return None
    wrapped = getattr(stage, "__wrapped__", None)  # `filter_jit(f)` and similar
    if wrapped is not None:
        return _of_callee(stage, wrapped)
    # Other wrappers of Equinox hide the wrapped function.
    return None if type(stage).__module__.startswith("equinox.") else found


# Called for every call of a stage; `inspect.signature` takes longer than most layers.
@ft.cache
def of_type(cls: type) -> inspect.Parameter | None:
    """Return the `key` parameter of a class's instances, or their `**kwargs`."""
    known = parameters(cls.__call__)
    wraps = [p for p in known.values() if p.kind is p.VAR_KEYWORD]
    return known.get("key", wraps[0] if wraps else None)


def _of_callee(bound: Any, callee: Any) -> inspect.Parameter | None:
    """Return the `key` parameter of a wrapped callable; a function must name it."""
    if isinstance(callee, eqx.Module):
        return _key_parameter(callee)
    named = dict(list(parameters(bound).items())[1:])  # the first is the input
    return named.get("key")
