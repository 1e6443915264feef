"""Check for parameters hidden in functions, where gradients do not reach them."""

import dis
import functools as ft
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax.tree_util as jtu
from jax.core import Tracer

from .._captured import JITTED, Fixed, cells, contents, has_function, opaque_leaves
from .._errors import value_error
from .._tree import leaves_with_names


class Held(NamedTuple):
    """A value that a callable holds: the kind of holder, the name, and the callable."""

    kind: str
    name: str
    value: Any
    holder: Any

    @property
    def place(self) -> str:
        """The place in words, such as "closure cell `layer`"."""
        return f"{self.kind} `{self.name}`".strip()


def check_nothing_hidden(function: str, argument: str, stage: Any) -> None:
    """Raise a `ValueError` if a function in a stage hides a module with parameters.

    A function is one leaf of a pytree: gradients, optimisers and saved files would not
    include the parameters.
    """
    for leaf in jtu.tree_leaves(stage, is_leaf=_is_nnx):
        if _is_nnx(leaf):
            raise _nnx_error(function, f"`{argument}`", leaf)
    for fn in opaque_leaves(stage):
        found: dict[int, tuple[Held, Any]] = {}
        where = f"{_place_of(fn, stage)}`{argument}`"
        for item in held(fn):
            for module in filter(_is_module, _leaves(item.value)):
                if _is_nnx(module):
                    raise _nnx_error(function, where, module, item)
                # By identity: a Module with arrays has no hash.
                found.setdefault(id(module), (item, module))
        if found:
            first, _ = next(iter(found.values()))
            places = [f"`{_class(m)}` ({item.place})" for item, m in found.values()]
            raise value_error(
                function,
                f"{where} hides the parameters of {', '.join(places)} in a function, "
                "so gradients and optimisers do not see them.",
                f"{_cure(first)} To keep the parameters constant, use "
                "`eqx_pipe.frozen(...)`.",
            )


def check_nothing_traced(function: str, argument: str, stage: Any) -> None:
    """Raise a `ValueError` if a function inside a stage closes over traced arrays.

    Arrays made from the key would not be stacked, and are invalid after the trace that
    made them.
    """
    fixed = [x.value for x in jtu.tree_leaves(stage) if isinstance(x, Fixed)]
    if any(map(_is_traced, fixed)) or any(map(_traced_in, opaque_leaves(fixed))):
        raise value_error(
            function,
            f"`{argument}` freezes arrays that depend on the key.",
            "Freeze only arrays created outside of it, which all stages share.",
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


def held(fn: Any) -> Iterator[Held]:
    """Yield the values that a callable holds, and those held by functions among them.

    Only one level deep: parameters hidden deeper, in attributes of objects or by global
    functions, are not found.
    """
    for item in _contents(fn):
        yield item
        functions = [leaf for leaf in _leaves(item.value) if not _is_module(leaf)]
        for inner in opaque_leaves(functions):
            for one in _contents(inner):
                yield one._replace(name=f"{item.name}.{one.name}")


def _contents(fn: Any) -> Iterator[Held]:
    for kind, name, value in contents(fn):
        if name == "func" and isinstance(fn, ft.partial):
            yield from _contents(value)
        elif kind not in ("global", "attribute"):  # globals are handled below
            yield Held(kind, name, value, fn)
    if isinstance(fn, types.FunctionType):
        for name, value in _global_modules(fn):
            yield Held("global", name, value, fn)


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


def _leaves(value: Any) -> list[Any]:
    try:
        # JAX requires sortable keys of a dict.
        tree = list(value.values()) if isinstance(value, dict) else value
        return jtu.tree_leaves(tree, is_leaf=_is_whole)
    except (TypeError, ValueError, SystemError):  # or it holds itself
        return []


def _is_whole(node: Any) -> bool:
    # `filter_jit(f)` does not have `f` as a leaf.
    return _is_module(node) or isinstance(node, eqx.Module) and has_function(node)


def _is_module(node: Any) -> bool:
    """Return whether a node is a callable module with arrays that could be trained."""
    if _is_nnx(node):
        return True
    if not isinstance(node, eqx.Module) or not callable(node):
        return False
    return any(map(eqx.is_inexact_array, jtu.tree_leaves(node)))


def _is_nnx(node: Any) -> bool:
    # By name, since flax need not be installed.
    names = [cls.__module__ for cls in type(node).__mro__ if cls.__name__ == "Module"]
    return any(name.startswith("flax.nnx") for name in names)


def _nnx_error(
    function: str, where: str, module: Any, item: Held | None = None
) -> ValueError:
    place = f" ({item.place})" if item else ""
    return value_error(
        function,
        f"{where} holds a module of `flax.nnx`, `{type(module).__name__}`{place}. It "
        "would be a constant: neither trained nor updated.",
        "Take it apart, `graph, arrays = nnx.split(module)`, keep `arrays` as a field "
        "of a subclass of `eqx_pipe.Stage`, `graph` as a static one, and call "
        "`nnx.merge(self.graph, self.arrays)(x)`.",
    )


def _traced_in(fn: Any) -> list[str]:
    return [item.place for item in held(fn) if _is_traced(item.value)]


def _is_traced(value: Any) -> bool:
    leaves = jtu.tree_leaves(_leaves(value))
    return any(isinstance(leaf, Tracer) for leaf in leaves)


def _class(module: Any) -> str:
    """Return the name of a module's class, or of the class of a method's module."""
    owner = getattr(module, "__self__", module)
    return type(owner if isinstance(owner, eqx.Module) else module).__name__


def _place_of(fn: Any, stage: Any) -> str:
    """Return the place of a function in the stage, or `""` if it is the whole stage."""
    for path, leaf in leaves_with_names(stage):
        if leaf is fn and path:
            return f"`.{path}` of "
    return ""


def _cure(item: Held) -> str:
    """Return the fix that makes a module's parameters visible, for the error."""
    holder = item.holder
    if isinstance(holder, ft.partial):
        return "Use `equinox.Partial` instead of `functools.partial`."
    if isinstance(holder, types.MethodType) and holder.__self__ is item.value:
        return "Give the module itself."
    if item.name.endswith("__wrapped__"):
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
