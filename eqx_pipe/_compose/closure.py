"""Functions that close over arrays, made into pytrees whose leaves those arrays are."""

import functools as ft
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu

from .._errors import message
from .._stage import Stage

_ABSENT = object()


class Closure(Stage):
    """A function together with what it closes over; see `open_closures`."""

    fn: Callable[..., Any]
    cells: tuple[Any, ...]
    defaults: tuple[Any, ...] | None
    keyword_defaults: dict[str, Any] | None

    def __call__(self, *args: Any, key: Any = _ABSENT, **kwargs: Any) -> Any:
        cells = tuple(types.CellType(cell) for cell in self.cells)
        code, scope = self.fn.__code__, self.fn.__globals__
        fn = types.FunctionType(code, scope, self.fn.__name__, self.defaults, cells)
        fn.__kwdefaults__ = self.keyword_defaults
        if key is not _ABSENT and "key" in inspect.signature(fn).parameters:
            kwargs["key"] = key
        return fn(*args, **kwargs)


def open_closures(function: str, argument: str, value: Any) -> Any:
    """`value`, with the arrays being traced that a function holds brought into view.

    A function made while tracing may hold tracers, which are dead once the tracing is
    over. Here such a function becomes a `Closure`, a pytree like any other; anything
    else is returned as it is. `function` and `argument` are for the error message.
    """
    return _open(value, lambda wrong: message(function, f"`{argument}` {wrong}", _CURE))


_CURE = "Return an `equinox.Module` that has these arrays as fields."


def _open(value: Any, complain: Callable[[str], str], seen: frozenset = frozenset()):
    if not callable(value) or id(value) in seen:
        return value
    again = ft.partial(_open_all, complain=complain, seen=seen | {id(value)})
    if isinstance(value, ft.partial) and not isinstance(value, jtu.Partial):
        fn, args, kwargs = again((value.func, value.args, value.keywords))
        if _holds_tracers((fn, args, kwargs)):
            return jtu.Partial(fn, *args, **kwargs)
    elif isinstance(value, types.FunctionType):
        held = again((_cells(value), value.__defaults__, value.__kwdefaults__))
        if _holds_tracers(held):
            return Closure(value, *held)
    elif isinstance(inner := getattr(value, "__wrapped__", None), types.FunctionType):
        if _holds_tracers(again(_cells(inner))):
            raise ValueError(
                complain(
                    f"is a `{type(value).__name__}` round a function that closes over "
                    "arrays made from the key."
                )
            )
    return value


def _open_all(tree: Any, complain: Callable[[str], str], seen: frozenset) -> Any:
    return jtu.tree_map(lambda leaf: _open(leaf, complain, seen), tree)


def _cells(fn: Any) -> tuple[Any, ...]:
    """What a function closes over; a cell not yet filled holds nothing."""
    contents = []
    for cell in fn.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:
            contents.append(None)
    return tuple(contents)


def _holds_tracers(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jtu.tree_leaves(tree))
