"""Check for parameters hidden in functions, where gradients do not reach them."""

import dis
import functools as ft
import types
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from .._captured import contents, has_function
from .._errors import value_error
from .._tree import leaves_with_names

_CURE = (
    "Give the layer itself, or make it a field of a Module: a subclass of "
    "`eqx_pipe.Stage` that calls it in `__call__(self, x, *, key=None)`. In place of "
    "`jax.vmap(layer)` write `eqx_pipe.batched(layer)`; for `jax.jit`, "
    "`jax.checkpoint`, `jax.grad` and `functools.partial` there are "
    "`equinox.filter_jit`, `filter_checkpoint`, `filter_grad` and `Partial`. To keep "
    "the parameters constant, use `eqx_pipe.frozen(...)`."
)


def check_nothing_hidden(function: str, argument: str, stage: object) -> None:
    """Raise a `ValueError` if a function in a stage hides a module with parameters.

    A function is one leaf of a pytree: gradients, optimisers and saved files would not
    include the parameters.
    """
    for fn in _opaque_leaves(stage):
        modules: dict[int, str] = {}
        for where, value in _held(fn):
            for module in filter(_is_module, _leaves(value)):
                # By identity: a Module with arrays has no hash.
                modules.setdefault(id(module), f"`{_class(module)}` ({where})")
        if modules:
            wrong = f"{_place_of(fn, stage)}`{argument}` hides the parameters of "
            wrong += f"{', '.join(modules.values())} in a function, so gradients and "
            wrong += "optimisers do not see them."
            raise value_error(function, wrong, _CURE)


def _opaque_leaves(tree: object) -> list[Any]:
    """Return the functions in a pytree, whose contents are not part of it."""
    if type(tree) is types.FunctionType:
        return [tree]
    functions = []
    for leaf in jtu.tree_leaves(tree, is_leaf=has_function):
        if isinstance(leaf, jtu.Partial):
            functions += _opaque_leaves((leaf.func, leaf.args, leaf.keywords))
        elif has_function(leaf):
            inner = leaf.__wrapped__
            # A method of a module has the leaves of the module.
            method = isinstance(inner, types.MethodType)
            functions += _opaque_leaves(inner.__self__ if method else inner)
        elif callable(leaf) and not isinstance(leaf, type):
            functions.append(leaf)
    return functions


def _held(fn: object, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values that a callable holds, with their places, such as "default `f`".

    Those that its functions hold follow (`above` is their name), but no deeper ones:
    not those of objects' attributes or of global functions.
    """
    for kind, name, value in _contents(fn):
        yield f"{kind} `{above}{name}`".strip(), value
        if not above:
            functions = [leaf for leaf in _leaves(value) if not _is_module(leaf)]
            for inner in _opaque_leaves(functions):
                yield from _held(inner, f"{name}.")


def _contents(fn: object) -> Iterator[tuple[str, str, Any]]:
    for kind, name, value in contents(fn):
        if name == "func" and isinstance(fn, ft.partial):
            yield from _contents(value)
        elif kind != "global":  # handled below
            yield kind, name, value
    if isinstance(fn, types.FunctionType):
        for name, value in _global_modules(fn):
            yield "global", name, value


def _global_modules(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield global Modules that a function uses, or the attributes that it names.

    `model.in_features` does not read a parameter of a global `model`; `model(x)` does.
    """
    name, value = "", None
    for step in dis.get_instructions(fn):
        if name and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            name, value = f"{name}.{step.argval}", getattr(value, step.argval, None)
            continue
        if name:
            yield name, value
        name = ""
        if step.opname == "LOAD_GLOBAL":
            value = fn.__globals__.get(step.argval)
            name = step.argval if isinstance(value, eqx.Module) else ""
    if name:
        yield name, value


def _leaves(value: object) -> list[Any]:
    try:
        # JAX requires sortable keys of a dict.
        tree = list(value.values()) if isinstance(value, dict) else value
        return jtu.tree_leaves(tree, is_leaf=_is_whole)
    except (TypeError, ValueError, SystemError):  # or it holds itself
        return []


def _is_whole(node: object) -> bool:
    # `filter_jit(f)` does not have `f` as a leaf.
    return _is_module(node) or isinstance(node, eqx.Module) and has_function(node)


def _is_module(node: object) -> bool:
    """Return whether a node is a callable module with arrays that could be trained."""
    if not isinstance(node, eqx.Module) or not callable(node):
        return False
    return any(map(eqx.is_inexact_array, jtu.tree_leaves(node)))


def _class(module: object) -> str:
    """Return the name of a module's class, or of the class of a method's module."""
    owner = getattr(module, "__self__", module)
    return type(owner if isinstance(owner, eqx.Module) else module).__name__


def _place_of(fn: object, stage: object) -> str:
    """Return the place of a function in the stage, or `""` if it is the whole stage."""
    for path, leaf in leaves_with_names(stage):
        if leaf is fn and path:
            return f"`.{path}` of "
    return ""
