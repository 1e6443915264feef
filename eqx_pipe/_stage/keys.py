"""How a stage is given its PRNG key, if it takes one."""

import functools as ft
import inspect
from typing import Any

import equinox as eqx

from .._types import Key
from .signature import parameters


def key_of(stage: Any, key: Key | None) -> dict[str, Key | None]:
    """The keyword arguments of a module: its key, if it takes one.

    What a module with `**kwargs` hands them to may take no key, so it is given none
    where there is none.
    """
    parameter = _key_parameter(stage)
    if parameter is None or key is None and parameter.kind is parameter.VAR_KEYWORD:
        return {}
    return {"key": key}


def takes_key(stage: Any) -> bool:
    """Whether a module accepts `key=`. Modules without it are called without."""
    return _key_parameter(stage) is not None


def _key_parameter(stage: Any) -> inspect.Parameter | None:
    """The parameter of a module that takes `key=`: of that name, or its `**kwargs`."""
    found = of_type(type(stage))
    if found is None or found.kind is not found.VAR_KEYWORD:
        return found
    if isinstance(stage, eqx.Partial):
        if "key" in stage.keywords:
            return None
        bound = ft.partial(stage.func, *stage.args, **stage.keywords)
        return _of_callee(bound, stage.func)
    known = parameters(stage)
    if "key" in known or not known:  # none under `vmap`
        return known.get("key")
    if not isinstance(stage, eqx.Module):  # a function that `tree_at` put there
        return None
    wrapped = getattr(stage, "__wrapped__", None)  # `filter_jit(f)` and the like
    if wrapped is not None:
        return _of_callee(stage, wrapped)
    # Equinox has other wrappers of functions, which hide what they wrap.
    return None if type(stage).__module__.startswith("equinox.") else found


@ft.cache
def of_type(cls: type) -> inspect.Parameter | None:
    """That of all instances of a class, or the `**kwargs` by which they may have it."""
    known = parameters(cls.__call__)
    wraps = [p for p in known.values() if p.kind is p.VAR_KEYWORD]
    return known.get("key", wraps[0] if wraps else None)


def _of_callee(bound: Any, callee: Any) -> inspect.Parameter | None:
    """That of what a wrapper calls; a plain function must have it by name."""
    if isinstance(callee, eqx.Module):
        return _key_parameter(callee)
    named = dict(list(parameters(bound).items())[1:])  # the first is the input
    return named.get("key")


def key_argument(fn: Any, key: Key | None) -> dict[str, Any]:
    """The key as a keyword argument for a plain function, if it wants one."""
    names = list(parameters(fn))
    if "key" not in names[1:]:  # the first is the input, whatever its name
        return {}
    parameter = parameters(fn)["key"]
    bound = isinstance(fn, ft.partial) and "key" in fn.keywords
    if bound or parameter.kind is parameter.POSITIONAL_ONLY:
        return {}
    default = parameter.default
    has_default = default is not parameter.empty and default is not None
    return {} if key is None and has_default else {"key": key}
