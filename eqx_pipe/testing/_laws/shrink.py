"""A smaller input that still breaks a law."""

import contextlib
import functools as ft
import itertools as it
from collections.abc import Iterator
from typing import Any

import jax.tree_util as jtu
import numpy as np

from ..._tree import leaf_text, leaves_with_names
from ..._types import PyTree
from .compare import as_numpy
from .law import Broken, Law
from .trial import Trial, changed, is_numbers

_MOST_ATTEMPTS = 24  # each may compile


def shrink(law: Law, trial: Trial, how: Broken) -> tuple[Trial, Broken]:
    """The smallest input found that breaks the law in the same way, and how."""
    candidates = _smaller(trial.x)
    for _ in range(_MOST_ATTEMPTS):
        smaller = next(candidates, None)
        if smaller is None:
            break
        with contextlib.suppress(Exception):
            found = law.broken_by(trial.on(smaller))
            if found is not None and found.kind == how.kind:
                trial, how = trial.on(smaller), found
                candidates = _smaller(smaller)
    return trial, how


def _smaller(x: PyTree) -> Iterator[PyTree]:
    """Inputs simpler than `x`, the simplest first: changed as a whole, then in part."""
    leaves, structure = jtu.tree_flatten(x)
    numbers = [i for i, leaf in enumerate(leaves) if is_numbers(leaf)]
    whole = [(numbers, change) for change in _OF_ALL]
    for chosen, change in [*whole, *it.product([[i] for i in numbers], _OF_ONE)]:
        new = [changed(v, change) if i in chosen else v for i, v in enumerate(leaves)]
        if _complexity(new) < _complexity(leaves):
            yield jtu.tree_unflatten(structure, new)


def _complexity(leaves: list[Any]) -> tuple[int, int, int]:
    """How many numbers there are, how many not zero, how many not round."""
    arrays = [as_numpy(leaf) for leaf in leaves if is_numbers(leaf)]
    return (
        sum(v.size for v in arrays),
        sum(int(np.count_nonzero(v)) for v in arrays),
        sum(int((v != np.round(v)).sum()) for v in arrays if v.dtype != bool),
    )


def _with_zeros(v: np.ndarray, half: int) -> np.ndarray:
    """Half of the numbers that are not zero made so."""
    flat = v.ravel().copy()
    flat[np.array_split(np.flatnonzero(flat), 2)[half]] = 0
    return flat.reshape(v.shape)


def _first(v: np.ndarray) -> np.ndarray:
    return v[(slice(1),) * v.ndim]


_OF_ALL = (lambda v: np.zeros_like(_first(v)), _first, np.zeros_like, np.round)
_OF_ONE = (np.zeros_like, *(ft.partial(_with_zeros, half=i) for i in (0, 1)))


def input_text(x: PyTree) -> str:
    """An input in a line or two: values of small arrays, shapes of large ones."""
    named = leaves_with_names(x)
    shown = [f"{name}: {_value_text(v)}".removeprefix(": ") for name, v in named[:6]]
    return ", ".join(shown + ["..."] * (len(named) > 6)) or "nothing"


def _value_text(leaf: Any) -> str:
    if not is_numbers(leaf):
        return leaf_text(leaf)
    array = np.asarray(leaf)
    if array.size and not array.astype(bool).any():
        return f"zeros {leaf_text(leaf)}"
    if array.size > 12:
        return leaf_text(leaf)
    wide = array.astype(np.float64) if array.dtype.kind == "V" else array
    text = np.array2string(wide, separator=", ", precision=6)
    return f"{' '.join(text.split())} {leaf_text(leaf)}"
