"""What makes two Python functions in a program the same: callbacks, above all."""

import types
from collections.abc import Callable, Hashable
from typing import Any

import jax.tree_util as jtu

from .._values import Same

Freeze = Callable[[Any], Hashable]
_FROZEN = (str, bytes, bool, int, float, complex, type, type(None), jtu.PyTreeDef)


def function_key(
    f: types.FunctionType, freeze: Freeze, outer: tuple[types.FunctionType, ...] = ()
) -> Hashable:
    """A function by its code and by what it closes over, as it is now.

    `freeze` makes plain values and the structures of pytrees hashable; `outer` are
    functions that this one is found in.
    """
    if f in outer:  # it calls itself
        return Same(f)
    # Each `equinox.error_if` makes a list of the frames that lead to it, which do not
    # matter, and one of its messages; each `jax.debug.callback` a dict of its arguments
    # that are no arrays. These wrappers do not change what they made.
    module, outer = f.__module__ or "", (*outer, f)
    wrapper = module.startswith(("jax.", "equinox."))
    contents = [
        _content(cell, freeze, outer, wrapper)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
        if (module, name) != ("equinox._errors", "stack")
    ]
    given = (f.__defaults__ or (), tuple((f.__kwdefaults__ or {}).items()))
    return (
        types.FunctionType,
        f.__code__,
        f.__code__.co_filename,
        id(f.__globals__),
        tuple(contents),
        captured_key(given, freeze, outer),
    )


def _content(
    cell: types.CellType,
    freeze: Freeze,
    outer: tuple[types.FunctionType, ...],
    unchanging: bool,
) -> Hashable:
    try:
        content = cell.cell_contents
    except ValueError:  # not assigned yet
        return Same(cell)
    return captured_key(content, freeze, outer, unchanging)


def captured_key(
    x: object,
    freeze: Freeze,
    outer: tuple[types.FunctionType, ...] = (),
    unchanging: bool = False,
) -> Hashable:
    """What a function closes over; `unchanging` if nobody writes to a list or dict."""
    if isinstance(x, _FROZEN):
        return freeze(x)
    if isinstance(x, types.FunctionType):
        return function_key(x, freeze, outer)
    if type(x) is tuple or unchanging and type(x) is list:
        return (type(x), tuple(captured_key(item, freeze, outer) for item in x))
    if unchanging and type(x) is dict:
        items = ((k, captured_key(v, freeze, outer)) for k, v in x.items())
        return (dict, tuple(items))
    # Lists, dicts, arrays, objects: a callback may look at them, or change them, when
    # it runs, so that another object is another program.
    return Same(x)
