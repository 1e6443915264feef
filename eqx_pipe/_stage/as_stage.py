"""Check values that are accepted as stages, and find the arguments that they take."""

import functools as ft
import inspect
from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._check import check_callable
from .._errors import MissingKeyError, asks_for_key, is_located, type_error
from .._keys import key_argument, parameters
from .._types import AnyStage, Key, PyTree, StageLike
from .hidden import check_nothing_hidden
from .stage import Lift, is_composite, is_stateful

_ONE_INPUT = (
    "A stage takes one input, and perhaps `key=`. Make a function of several inputs a "
    "node of `eqx_pipe.graph`, pass it entries of a dict by `eqx_pipe.feed`, or call "
    "it in a Module or function of one input, which may be a tuple."
)


def as_stage(
    function: str,
    argument: str,
    value: object,
    cure: str = _ONE_INPUT,
    *,
    num_inputs: int = 1,
    named: tuple[str, ...] = (),
    given: str = "one input",
) -> AnyStage:
    """Return `value` as a child stage; functions become modules.

    `function` and `argument` name the caller and its argument in errors. Raise if a
    callable does not take `num_inputs` inputs by position, and the `named` ones by
    keyword; in the error, `given` lists its inputs and `cure` is the fix.
    """
    check_callable(function, argument, value)
    check_nothing_hidden(function, argument, value)
    value = cast(StageLike, value)
    wrong = _misfit(value, num_inputs, named)
    if wrong:
        raise type_error(function, f"`{argument}` gets {given}, but {wrong}.", cure)
    return as_module(value)


def as_module(value: StageLike) -> AnyStage:
    """Return a module unchanged, and a function as a module."""
    return cast(AnyStage, value if isinstance(value, eqx.Module) else Lift(value))


def _misfit(
    stage: StageLike, num_inputs: int, named: tuple[str, ...] = ()
) -> str | None:
    """Return why a stage cannot take this number of inputs, or `None` if it can.

    `named` are the names of additional inputs by keyword; see `call`.
    """
    if is_composite(stage):
        fits = num_inputs == (0 if named else 1)
        return None if fits else "a pipeline takes one"
    if "key" in named:
        return "`key` is the name of the PRNG key, which is passed on by itself"
    if not isinstance(stage, eqx.Module):
        return why_not(stage, num_inputs, named)
    if isinstance(stage, Lift):
        return why_not(stage.fn, num_inputs, named)
    if is_stateful(stage) and named:
        return why_not(stage, num_inputs, (*named, "state"))
    return why_not(stage, num_inputs + is_stateful(stage), named)


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


def wants_key(error: Exception, stage: PyTree) -> bool:
    """Return whether a call of `stage` with `key=None` failed for lack of a key.

    An error from a nested pipeline was checked there.
    """
    if isinstance(error, MissingKeyError) or is_located(error):
        return False
    lifted = isinstance(stage, Lift)
    takes = key_argument(stage.fn, None) if lifted else _key_parameter(stage)
    return bool(takes) and asks_for_key(error)
