"""Python functions in programs, distinguished by their code and their closures."""

import inspect
import types
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import jax.tree_util as jtu

from .._tree import Same

Functions: TypeAlias = list[tuple[types.FunctionType, Hashable]]
"""Python functions, each with its key when it was traced."""

KeyOf: TypeAlias = Callable[[Any], Hashable]
"""A function that makes plain values and the structures of pytrees hashable."""

_FROZEN = (str, bytes, bool, int, float, complex, type, type(None), jtu.PyTreeDef)


def function_name(f: Callable[..., Any]) -> str:
    """Return the module and qualified name of a callable."""
    inner = inspect.unwrap(f)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{getattr(named, '__module__', '')}.{named.__qualname__}"


def function_key(
    f: types.FunctionType, key_of: KeyOf, outer: tuple[types.FunctionType, ...] = ()
) -> Hashable:
    """Return a key of a function: its code and the current values of its closure.

    `outer` are the functions that contain this one.
    """
    if f in outer:  # it calls itself
        return Same(f)
    # Each `equinox.error_if` makes a list of stack frames, which do not matter, and one
    # of its messages; each `jax.debug.callback` makes a dict of its arguments that are
    # not arrays. These wrappers do not change them later.
    module, outer = f.__module__ or "", (*outer, f)
    wrapper = module.startswith(("jax.", "equinox."))
    cells = [
        _cell(cell, key_of, outer, wrapper)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
        if (module, name) != ("equinox._errors", "stack")
    ]
    given = (f.__defaults__ or (), tuple((f.__kwdefaults__ or {}).items()))
    return (
        types.FunctionType,
        f.__code__,
        # Equal code in two modules reads different globals.
        id(f.__globals__),
        tuple(cells),
        captured_key(given, key_of, outer),
    )


def _cell(
    cell: types.CellType,
    key_of: KeyOf,
    outer: tuple[types.FunctionType, ...],
    unchanging: bool,
) -> Hashable:
    try:
        content = cell.cell_contents
    except ValueError:  # not assigned yet
        return Same(cell)
    return captured_key(content, key_of, outer, unchanging)


def captured_key(
    x: object,
    key_of: KeyOf,
    outer: tuple[types.FunctionType, ...] = (),
    unchanging: bool = False,
) -> Hashable:
    """Return the key of a value that a function closes over.

    With `unchanging`, lists and dicts are never modified.
    """
    if isinstance(x, _FROZEN):
        return key_of(x)
    if isinstance(x, types.FunctionType):
        return function_key(x, key_of, outer)
    if type(x) is tuple or unchanging and type(x) is list:
        return (type(x), tuple(captured_key(item, key_of, outer) for item in x))
    if unchanging and type(x) is dict:
        items = ((k, captured_key(v, key_of, outer)) for k, v in x.items())
        return (dict, tuple(items))
    # A callback may read or change lists, dicts, arrays and objects when it runs, so
    # another object requires another program.
    return Same(x)
