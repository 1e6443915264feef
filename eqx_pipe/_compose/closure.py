"""Finding arrays that a function closes over while they are being traced."""

import functools as ft
import types
from typing import Any

import jax.tree_util as jtu
from jax.core import Tracer

from .._errors import message
from .._tree import leaves_with_names


def check_no_hidden_arrays(function: str, argument: str, stage: Any) -> None:
    """Raises a `ValueError` if a function inside a stage closes over traced arrays.

    A function is one leaf of a pytree: arrays made from the key that it closes over
    would neither be stacked nor survive the tracing in which they were made.
    """
    for path, leaf in leaves_with_names(stage):
        hidden = _hidden(leaf)
        if hidden:
            place = f"`.{path}` of " if path else ""
            raise ValueError(
                message(
                    function,
                    f"{place}`{argument}` is a function that closes over arrays made "
                    f"from the key: {', '.join(f'`{name}`' for name in hidden)}.",
                    "Return an `equinox.Module` that has these arrays as fields.",
                )
            )


def _hidden(fn: Any) -> list[str]:
    """The names under which a function holds traced arrays."""
    if isinstance(fn, ft.partial):
        named = [(str(k), v) for k, v in enumerate(fn.args)] + list(fn.keywords.items())
        return _traced(named) + _hidden(fn.func)
    fn = getattr(fn, "__wrapped__", fn)
    if not isinstance(fn, types.FunctionType):
        return []
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    held = [(name, cell.cell_contents) for name, cell in cells if _is_filled(cell)]
    defaults = list((fn.__kwdefaults__ or {}).items())
    defaults += [(f"default {v!r}", v) for v in fn.__defaults__ or ()]
    inner = [n for _, v in held if callable(v) and v is not fn for n in _hidden(v)]
    return _traced(held + defaults) + inner


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _traced(named: list[tuple[str, Any]]) -> list[str]:
    return [
        name
        for name, value in named
        if any(isinstance(leaf, Tracer) for leaf in jtu.tree_leaves(value))
    ]
