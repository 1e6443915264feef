"""A smaller input that still breaks a law."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ..._tree import is_key_array, leaf_text, leaves_with_names
from ..._types import PyTree
from .compare import Finding
from .locate import Law
from .trial import Trial

_MOST_ATTEMPTS = 24  # each may compile


def shrink(law: Law, trial: Trial, finding: Finding) -> tuple[Trial, Finding]:
    """The smallest input found that breaks the law in the same way, and how."""
    left = _MOST_ATTEMPTS
    progress = True
    while progress and left > 0:
        progress = False
        for x in _smaller(trial.x):
            left -= 1
            with contextlib.suppress(Exception):
                found = law(trial.on(x))
                if found is not None and found.kind == finding.kind:
                    trial, finding, progress = trial.on(x), found, True
                    break
            if left <= 0:
                break
    return trial, finding


def _smaller(x: PyTree) -> Iterator[PyTree]:
    """Inputs simpler than `x`, the simplest first."""
    size, zeros = _size(x), _nonzeros(x)
    tries: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda v: np.zeros_like(v[(slice(1),) * v.ndim]),
        lambda v: v[(slice(1),) * v.ndim],
        np.zeros_like,
        np.round,
    ]
    for change in tries:
        new = _each(x, change)
        if (_size(new), _nonzeros(new)) < (size, zeros) or _rounder(new, x):
            yield new
    leaves, structure = jtu.tree_flatten(x)
    for i, leaf in enumerate(leaves):
        if not _is_numbers(leaf):
            continue
        for change in (np.zeros_like, _first_half_zero, _last_half_zero):
            new = [*leaves[:i], _changed(leaf, change), *leaves[i + 1 :]]
            if _nonzeros(new) < zeros:
                yield jtu.tree_unflatten(structure, new)


def _first_half_zero(v: np.ndarray) -> np.ndarray:
    flat = v.ravel().copy()
    places = np.flatnonzero(flat)
    flat[places[: -(-places.size // 2)]] = 0
    return flat.reshape(v.shape)


def _last_half_zero(v: np.ndarray) -> np.ndarray:
    flat = v.ravel().copy()
    places = np.flatnonzero(flat)
    flat[places[places.size // 2 :]] = 0
    return flat.reshape(v.shape)


def _each(x: PyTree, change: Callable[[np.ndarray], np.ndarray]) -> PyTree:
    return jtu.tree_map(lambda v: _changed(v, change) if _is_numbers(v) else v, x)


def _changed(leaf: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    new = np.asarray(change(np.asarray(leaf))).astype(leaf.dtype)
    return new if isinstance(leaf, np.ndarray | np.generic) else jnp.asarray(new)


def _is_numbers(leaf: Any) -> bool:
    return eqx.is_array(leaf) and not is_key_array(leaf)


def _numbers(x: PyTree) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jtu.tree_leaves(x) if _is_numbers(leaf)]


def _size(x: PyTree) -> int:
    return sum(v.size for v in _numbers(x))


def _nonzeros(x: PyTree) -> int:
    return sum(int(np.count_nonzero(v)) for v in _numbers(x))


def _rounder(new: PyTree, old: PyTree) -> bool:
    pairs = zip(_numbers(new), _numbers(old), strict=True)
    return _size(new) == _size(old) and any(bool(np.any(a != b)) for a, b in pairs)


def input_text(x: PyTree) -> str:
    """An input in a line or two: values of small arrays, shapes of large ones."""
    named = leaves_with_names(x)
    shown = [f"{name}: {_value_text(leaf)}" if name else _value_text(leaf)
             for name, leaf in named[:6]]  # fmt: skip
    return ", ".join(shown + ["..."] * (len(named) > 6)) or "nothing"


def _value_text(leaf: Any) -> str:
    if not _is_numbers(leaf):
        return leaf_text(leaf)
    array = np.asarray(leaf)
    if array.size and not array.astype(bool).any():
        return f"zeros {leaf_text(leaf)}"
    if array.size > 12:
        return leaf_text(leaf)
    wide = array.astype(np.float64) if array.dtype.kind == "V" else array
    text = np.array2string(wide, separator=", ", precision=6)
    return f"{' '.join(text.split())} {leaf_text(leaf)}"
