"""What a stage can be called with."""

import functools as ft
import inspect
import types
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._closure import cells


def parameters(fn: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a callable by name; none if it does not tell.

    A function under `vmap` shows those of what it maps, but cannot take keywords for
    it: `jax.vmap` maps them over their first axis, `eqx.filter_vmap` refuses them. What
    was made for a batch draws by a key per example, or not at all.
    """
    if _is_mapped(fn):
        return {}
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return {}


def why_not(fn: Any, num_inputs: int) -> str | None:
    """Why a callable cannot take so many arguments by position, and perhaps a key.

    `None` if it can, or does not tell.
    """
    if isinstance(fn, np.ufunc | jnp.ufunc):  # whose signature does not tell
        return None if fn.nin == num_inputs else f"it takes {fn.nin} arrays"
    if _plainly_takes(fn, num_inputs):
        return None
    # Instances share the signature of their class, unless they wrap something.
    cls = type(fn)
    own = hasattr(cls, "__wrapped__") or "__signature__" in vars(cls)
    alike = issubclass(cls, eqx.Module) and not own
    return _class_why_not(cls, num_inputs) if alike else _why_not(fn, num_inputs)


@ft.cache
def _class_why_not(cls: type, num_inputs: int) -> str | None:
    return _why_not(ft.partial(cls.__call__, None), num_inputs)


def _why_not(fn: Any, num_inputs: int) -> str | None:
    signature = _signature(fn)
    if signature is None:
        return None
    named = list(signature.parameters)
    keyword = {"key": None} if "key" in named[1:] else {}
    try:
        signature.bind(*[None] * num_inputs, **keyword)
    except TypeError as error:
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        return f"its signature is `{inspect.Signature(bare)}` ({error})"
    return None


def _plainly_takes(fn: Any, num_inputs: int) -> bool:
    """A quick yes for most functions: to ask for a signature takes longer."""
    if type(fn) is not types.FunctionType or fn.__dict__ or fn.__kwdefaults__:
        return False
    code = fn.__code__
    required = code.co_argcount - len(fn.__defaults__ or ())
    fits = required <= num_inputs <= code.co_argcount
    return fits and not code.co_kwonlyargcount and "key" not in code.co_varnames


def _signature(fn: Any) -> inspect.Signature | None:
    """The signature, of a wrapper its own unless that takes anything."""
    for follow in (False, True):
        try:
            found = inspect.signature(fn, follow_wrapped=follow)
        except (TypeError, ValueError):  # some builtins have no signature
            continue
        if follow or not any(
            p.kind is p.VAR_POSITIONAL for p in found.parameters.values()
        ):
            return found
    return None


def _is_mapped(fn: Any) -> bool:
    """Whether there is a `vmap` in what a callable wraps."""
    seen: list[Any] = []
    while fn is not None and all(fn is not other for other in seen):
        seen.append(fn)
        if type(fn).__name__ == "_VmapWrapper":  # of `eqx.filter_vmap`
            return True
        # JAX gives its function the `__wrapped__` of the user's, and keeps its own.
        if any(_name(inside) == "vmap_f" for inside in cells(fn).values()):
            return True
        fn = getattr(fn, "__wrapped__", None)
    return False


def _name(fn: Any) -> str:
    return getattr(getattr(fn, "__code__", None), "co_name", "")
