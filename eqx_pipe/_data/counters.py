"""Python numbers in the carry of a scan: those that a step changes become arrays.

A loss that starts as `0.0`, for instance. Numbers that a step leaves alone, such as the
rate of a `Dropout`, stay what they are: code may branch on them. Which is which only
tracing the step tells; so it is traced once more, and the answer kept.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._types import PyTree

_MOST = 64

_Result = TypeVar("_Result")

Counters = list[np.dtype | None]
"""For each leaf of a carry the dtype of a number that becomes an array, or None."""


class CountersFound(Exception):
    """The step changes Python numbers of the carry, to these dtypes."""

    def __init__(self, counters: Counters):
        super().__init__("numbers changed")
        self.counters = counters


def with_counters(
    run: Callable[[PyTree], _Result],
    carry: PyTree,
    step: Callable[..., object],
    memory: dict[Hashable, Counters],
) -> _Result:
    """`run` of the carry with arrays for the numbers that `step` changes.

    `run` calls `check_counters` while it is traced.
    """
    key, known = _key(carry, step), None
    try:
        known = memory.get(key)
    except TypeError:  # a step or a field that has no hash
        key = None
    while True:
        try:
            return run(carry if known is None else _as_arrays(carry, known))
        except CountersFound as found:
            # Arrays in place of some may make others change.
            old = known or [None] * len(found.counters)
            pairs = zip(old, found.counters, strict=True)
            known = [b if a is None else a for a, b in pairs]
            if key is not None:
                if len(memory) >= _MOST:
                    memory.clear()
                memory[key] = known


def check_counters(before: PyTree, after: PyTree) -> None:
    """Raises `CountersFound` if numbers of a carry differ behind a step."""
    pairs = zip(jtu.tree_leaves(before), jtu.tree_leaves(after), strict=True)
    found = [_dtype_of_counter(a, b) for a, b in pairs]
    if any(dtype is not None for dtype in found):
        raise CountersFound(found)


def _key(carry: PyTree, step: Callable[..., object]) -> Hashable:
    """What decides which numbers change, but for the loader: not their values."""
    leaves, structure = jtu.tree_flatten(carry)
    kinds = tuple(type(leaf) if _is_number(leaf) else None for leaf in leaves)
    return step, structure, kinds, jnp.result_type(float).name


def _as_arrays(carry: PyTree, counters: Counters) -> PyTree:
    leaves, structure = jtu.tree_flatten(carry)
    pairs = zip(leaves, counters, strict=True)
    leaves = [a if dtype is None else jnp.asarray(a, dtype) for a, dtype in pairs]
    return jtu.tree_unflatten(structure, leaves)


def _dtype_of_counter(before: Any, after: Any) -> np.dtype | None:
    """The dtype of what began as a Python number and is changed by the step, or None.

    It may have become an array, or another number: `count + 1`.
    """
    if not _is_number(before):
        return None
    if eqx.is_array(after) or isinstance(after, np.generic):
        return after.dtype
    same = type(before) is type(after) and (before == after or before != before)
    return None if same or not _is_number(after) else jnp.asarray(after).dtype


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, bool | int | float | complex) and not isinstance(
        leaf, np.generic
    )
