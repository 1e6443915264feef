"""Functions that close over arrays, made into pytrees whose leaves those arrays are."""

import functools as ft
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
from jax.core import Tracer

from .._errors import message
from .._stage import Stage

_ABSENT = object()


class Closure(Stage):
    """A function together with what it closes over; see `open_closures`.

    What holds no arrays is kept in its cell, so that it stays the same object.
    """

    fn: Callable[..., Any]
    cells: tuple[Any, ...]
    defaults: tuple[Any, ...]
    keyword_defaults: dict[str, Any]

    def __call__(self, *args: Any, key: Any = _ABSENT, **kwargs: Any) -> Any:
        fn = types.FunctionType(
            self.fn.__code__,
            self.fn.__globals__,
            self.fn.__name__,
            tuple(_as_cell(held).cell_contents for held in self.defaults),
            tuple(_as_cell(held) for held in self.cells),
        )
        fn.__kwdefaults__ = {
            name: _as_cell(held).cell_contents
            for name, held in self.keyword_defaults.items()
        }
        if key is not _ABSENT and "key" in inspect.signature(fn).parameters:
            kwargs["key"] = key
        return fn(*args, **kwargs)


class _Kept:
    """A cell as one leaf; it can be hashed, which a bare cell cannot."""

    def __init__(self, cell: types.CellType):
        self.cell = cell


def _as_cell(held: Any) -> types.CellType:
    return held.cell if isinstance(held, _Kept) else types.CellType(held)


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
        held = _held(value, again)
        if _holds_tracers(held):
            return Closure(value, *held)
    elif isinstance(inner := getattr(value, "__wrapped__", None), types.FunctionType):
        if _holds_tracers(_held(inner, again)):
            raise ValueError(
                complain(
                    f"is a `{type(value).__name__}` round a function that closes over "
                    "arrays made from the key."
                )
            )
    return value


def _open_all(tree: Any, complain: Callable[[str], str], seen: frozenset) -> Any:
    return jtu.tree_map(lambda leaf: _open(leaf, complain, seen), tree)


def _held(fn: types.FunctionType, again: Callable[[Any], Any]) -> tuple:
    """What a function closes over, and its defaults: pytrees, or kept cells."""

    def hold(cell):
        try:
            contents = cell.cell_contents
        except ValueError:  # a cell not yet filled
            return _Kept(cell)
        opened = again(contents)
        return opened if _holds_tracers(opened) else _Kept(cell)

    defaults = tuple(hold(types.CellType(v)) for v in fn.__defaults__ or ())
    keyword = {k: hold(types.CellType(v)) for k, v in (fn.__kwdefaults__ or {}).items()}
    return tuple(hold(cell) for cell in fn.__closure__ or ()), defaults, keyword


def _holds_tracers(tree: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jtu.tree_leaves(tree))
