"""What a stage can be called with: so many inputs, and perhaps a PRNG key."""

import functools as ft
import inspect
import types
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._closure import cells
from .._types import Key


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


def why_not(fn: Any, num_inputs: int, named: tuple[str, ...] = ()) -> str | None:
    """Why a callable cannot take so many arguments by position, and perhaps a key.

    `named` are arguments by keyword besides. `None` if it can, or does not tell.
    """
    if isinstance(fn, np.ufunc | jnp.ufunc):  # whose signature does not tell
        fits = fn.nin == num_inputs and not named
        return None if fits else f"it takes {fn.nin} arrays by position"
    if not named and _plainly_takes(fn, num_inputs):
        return None
    # Instances share the signature of their class, unless they wrap something.
    cls = type(fn)
    own = hasattr(cls, "__wrapped__") or "__signature__" in vars(cls)
    alike = issubclass(cls, eqx.Module) and not own
    if alike:
        return _class_why_not(cls, num_inputs, named)
    return _why_not(fn, num_inputs, named)


@ft.cache
def _class_why_not(cls: type, num_inputs: int, named: tuple[str, ...]) -> str | None:
    # The partial stands for `self`: binding takes no instance, so the answer can be
    # cached by class.
    return _why_not(ft.partial(cls.__call__, None), num_inputs, named)


def _why_not(fn: Any, num_inputs: int, named: tuple[str, ...]) -> str | None:
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


# Asked at every call of a stage; `inspect.signature` takes longer than most layers.
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
