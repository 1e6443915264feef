"""Parameters that a stage hides in a function, where nothing would train them."""

import functools as ft
import types
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._captured import (
    JITTED,
    Fixed,
    Held,
    cells,
    held,
    leaves_of,
    named_leaves_of,
    opaque_leaves,
)
from .._errors import value_error
from .._tree import leaf_text, leaves_with_names


def check_nothing_hidden(function: str, argument: str, stage: Any) -> None:
    """Raises a `ValueError` if a function in a stage hides a module with parameters.

    A function is one leaf of a pytree: gradients, optimisers and files would not see
    what it closes over.
    """
    for fn in opaque_leaves(stage):
        found: dict[int, tuple[Held, Any]] = {}
        for item in held(fn):
            for module in _with_parameters(item.value):
                # By identity: a Module that holds arrays has no hash.
                found.setdefault(id(module), (item, module))
        if not found:
            continue
        places = [f"`{_class(m)}` ({_place(item)})" for item, m in found.values()]
        first, _ = next(iter(found.values()))
        raise value_error(
            function,
            f"{_place_of(fn, stage)}`{argument}` hides parameters in a function, "
            "where gradients and optimisers do not see them: those of "
            f"{', '.join(places)}.",
            f"{_cure(first)} If they are to stay as they are, say so: "
            "`eqx_pipe.frozen(...)`.",
        )


def check_nothing_traced(function: str, argument: str, stage: Any) -> None:
    """Raises a `ValueError` if a function inside a stage closes over traced arrays.

    Arrays made from the key would neither be stacked nor survive the tracing in which
    they were made.
    """
    fixed = [x.value for x in jtu.tree_leaves(stage) if isinstance(x, Fixed)]
    if any(map(_is_traced, fixed)) or any(map(_traced_in, opaque_leaves(fixed))):
        raise value_error(
            function,
            f"`{argument}` holds frozen arrays that are made from the key.",
            "Freeze only what is made outside, and is the same in each stage.",
        )
    for fn in opaque_leaves(stage):
        places = _traced_in(fn)
        if places:
            raise value_error(
                function,
                f"{_place_of(fn, stage)}`{argument}` is a function that closes "
                f"over arrays made from the key: {', '.join(places)}.",
                "Return an `equinox.Module` that has these arrays as fields.",
            )


def _traced_in(fn: Any) -> list[str]:
    return [_place(item) for item in held(fn) if _is_traced(item.value)]


def _is_traced(value: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in leaves_of(value))


def constants(stage: Any) -> dict[str, str]:
    """What the functions in a stage close over, in words: arrays and modules, by name.

    These are constants of the program, no parameters.
    """
    found = {}
    for fn in opaque_leaves(stage):
        for item in held(fn):
            for path, leaf in named_leaves_of(item.value, _is_module):
                if _is_module(leaf):
                    found[_name(item, path)] = _class(leaf)
                elif isinstance(leaf, np.ndarray) or eqx.is_array(leaf):
                    found[_name(item, path)] = leaf_text(leaf)
    return found


def _with_parameters(value: Any) -> list[Any]:
    """The callable modules in a value that hold arrays which could be trained."""
    return [
        leaf
        for leaf in leaves_of(value, _is_callable_module)
        if _is_callable_module(leaf)
        and any(map(eqx.is_inexact_array, jtu.tree_leaves(leaf)))
    ]


def _is_module(node: Any) -> bool:
    return isinstance(node, eqx.Module)


def _is_callable_module(node: Any) -> bool:
    return isinstance(node, eqx.Module) and callable(node)


def _class(module: Any) -> str:
    """The name of a module's class; of a method, that of its module."""
    owner = getattr(module, "__self__", module)
    return type(owner if isinstance(owner, eqx.Module) else module).__name__


def _name(item: Held, inner: str = "") -> str:
    names = [name for name in (*item.path, inner) if name and name[:2] != "__"]
    return ".".join(names) or item.path[-1]


def _place(item: Held) -> str:
    """Where a value was found, such as "closure cell `layer`"."""
    return f"{item.kind} `{_name(item)}`".strip()


def _place_of(fn: Any, stage: Any) -> str:
    """Says of a function that is only a part of the stage, which part it is."""
    for path, leaf in leaves_with_names(stage):
        if leaf is fn and path:
            return f"`.{path}` of "
    return ""


def _cure(item: Held) -> str:
    """How to write the holder of a module so that its parameters are seen."""
    holder = item.holder
    if isinstance(holder, ft.partial):
        return "Use `equinox.Partial` instead of `functools.partial`."
    if isinstance(holder, types.MethodType) and holder.__self__ is item.value:
        return "Give the module itself."
    if item.path[-1] == "__wrapped__":
        if isinstance(holder, JITTED):
            return "Give the module itself, or `equinox.filter_jit` of it."
        for fn in cells(holder).values():
            name = getattr(getattr(fn, "__code__", None), "co_name", "")
            if name in _INSTEAD:
                return f"Write {_INSTEAD[name]}."
    return (
        "Make it a field of a Module: a subclass of `eqx_pipe.Stage` that calls it in "
        "`__call__(self, x, *, key=None)`."
    )


# By the name of the function that JAX's wrapper has in its closure.
_INSTEAD = {
    "vmap_f": "`eqx_pipe.batched(layer)` instead of `jax.vmap(layer)`",
    "fun_remat": "`equinox.filter_checkpoint(layer)` instead of "
    "`jax.checkpoint(layer)`",
    "grad_f": "`equinox.filter_grad(layer)` instead of `jax.grad(layer)`",
    "value_and_grad_f": "`equinox.filter_value_and_grad(layer)` instead of "
    "`jax.value_and_grad(layer)`",
}
