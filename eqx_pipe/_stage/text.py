"""A pipeline as some lines of text: names, stages, shapes, parameters."""

import functools as ft
import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._tree import leaf_text, leaves_with_names, static_text
from .._types import PyTree
from .base import Lift, is_state_index
from .parent import Parent

_LINES, _ARRAYS = 40, 3


def function_name(fn: Any) -> str:
    """The name of a plain function without its module, which versions change."""
    if isinstance(fn, Lift):
        return function_name(fn.fn)
    if not callable(fn):  # in a pipeline that was filtered, or a filter spec
        return str(fn)
    if isinstance(fn, ft.partial):
        return f"partial({function_name(fn.func)})"
    return getattr(fn, "__name__", None) or type(fn).__name__


def num_parameters(stage: PyTree) -> int:
    """How many numbers in a stage gradients reach; state does not count."""
    leaves = jtu.tree_leaves(stage, is_leaf=is_state_index)
    inexact = (
        x for x in leaves if _is_array(x) and jnp.issubdtype(x.dtype, jnp.inexact)
    )
    return sum(math.prod(x.shape) for x in inexact)


def pipeline_text(stage: Parent) -> str:
    """One line a stage, not more than fit on a screen."""
    lines = list(_lines("", stage, 0))
    more = len(lines) - _LINES
    if more > 1:
        lines = [*lines[:_LINES], f"... {more} more lines: `eqx_pipe.summary(pipe, x)`"]
    return "\n".join(lines)


def _lines(name: str, stage: PyTree, depth: int) -> Iterator[str]:
    yield f"{'  ' * depth}{f'{name}: ' if name else ''}{title(stage)}"
    if isinstance(stage, Parent):
        for segment, child in stage.children().items():
            if stage.multiplicity() is not None:
                # Shapes alone: to slice the arrays would compile a program for each of
                # them.
                child = jtu.tree_map(_of_first, child)
            yield from _lines(segment, child, depth + 1)


def title(stage: PyTree) -> str:
    """A stage in one line: its kind, settings or arrays, and how many parameters."""
    count = num_parameters(stage)
    total = f"{count:,} parameter{'s' * (count != 1)}" if count else ""
    if isinstance(stage, Parent):
        settings = getattr(stage, "settings", dict)()
        shown = [
            f"{name}={static_text(value)}"
            for name, value in settings.items()
            if value is not None and not isinstance(value, dict)
        ]
        head = " ".join([type(stage).__name__.lower(), *shown])
    elif isinstance(stage, Lift) or not isinstance(stage, eqx.Module):
        head = function_name(stage)
    else:
        named = [
            (n, x) for n, x in leaves_with_names(_stateless(stage)) if _is_shown(x)
        ]
        arrays = [f"{n} {_shown(x)}" for n, x in named[:_ARRAYS]]
        more = [f"{len(named) - _ARRAYS} more"] if len(named) > _ARRAYS else []
        inside = ", ".join([*arrays, *more])
        head = type(stage).__name__ + (f"({inside})" if inside else "")
    return f"{head}  # {total}" if total else head


def _stateless(stage: PyTree) -> PyTree:
    return jtu.tree_map(
        lambda x: None if is_state_index(x) else x, stage, is_leaf=is_state_index
    )


def _is_shown(x: object) -> bool:
    return _is_array(x) or isinstance(x, bool)


def _shown(x: PyTree) -> str:
    return leaf_text(x) if _is_array(x) else str(x)


def _is_array(x: object) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


class _Shape:
    """Of an array: what is written of it."""

    def __init__(self, shape: tuple[int, ...], dtype: Any):
        self.shape, self.dtype = shape, dtype


def _of_first(leaf: PyTree) -> PyTree:
    return _Shape(leaf.shape[1:], leaf.dtype) if _is_array(leaf) else leaf
