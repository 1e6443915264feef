"""Python functions in programs, distinguished by their code and what they hold."""

import inspect
import types
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import jax.tree_util as jtu

from .._tree import Same

Functions: TypeAlias = list[tuple[types.FunctionType, Hashable]]
"""Python functions, each with its key when it was traced."""

KeyOf: TypeAlias = Callable[[Any], Hashable]
"""Makes plain values and the structures of pytrees hashable."""

_FROZEN = (str, bytes, bool, int, float, complex, type, type(None), jtu.PyTreeDef)


def function_name(f: Callable[..., Any]) -> str:
    """Return the module and qualified name of a callable."""
    inner = inspect.unwrap(f)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{getattr(named, '__module__', '')}.{named.__qualname__}"


def function_key(
    f: types.FunctionType, key_of: KeyOf, outer: tuple[types.FunctionType, ...] = ()
) -> Hashable:
    """Return a function by its code and by what it closes over, as it is now.

    `outer` are functions that this one is found in.
    """
    if f in outer:  # it calls itself
        return Same(f)
    # Each `equinox.error_if` makes a list of the frames that lead to it, which do not
    # matter, and one of its messages; each `jax.debug.callback` a dict of its arguments
    # that are no arrays. These wrappers do not change what they made.
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
        # Equal code in two modules reads two sets of globals.
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

    It is `unchanging` if nobody writes to a list or dict.
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
    # Lists, dicts, arrays, objects: a callback may look at them, or change them, when
    # it runs, so that another object is another program.
    return Same(x)
