"""Traces kept from one call to the next, while nothing that they read has changed.

A trace reads the function and everything it reaches, which `_same` lists as a guard. If
it reaches anything that is not understood, nothing is kept.
"""

import operator
import types
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.tree_util as jtu
import numpy as np

from ..._run import TRACES
from ..._same import Unsure, seen_by
from ..._spaces import Space
from ..._tree import can_be_traced, nbytes
from ..._types import Key
from .cases import Case
from .trace import Traced

# An entry holds the arrays that its function closes over. Tracing takes little of the
# time of a function that closes over more.
_MOST_BYTES = 2**22

_config = operator.attrgetter(*(k for k in jax.config.values if hasattr(jax.config, k)))


Traces: TypeAlias = tuple[list[Case], list[Traced], tuple[tuple[Case, str], ...]]
"""Cases with their traces, and cases that raised with their errors."""


class _Entry(NamedTuple):
    owner: weakref.ref[Any]
    guard: list[Any]
    traces: Traces


def kept(
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    options: Hashable,
    make: Callable[[], Traces],
) -> Traces:
    """Return the traces of an earlier call if `make` would return the same again.

    An entry is removed with its function, to which it does not refer.
    """
    # Each access to a method makes a new object.
    owner = fn.__self__ if isinstance(fn, types.MethodType) else fn
    try:
        leaves = jtu.tree_leaves((space, key))
        guard = seen_by(fn, space, leaves)
        place = id(owner), options, schema(leaves, space, key)
        ref = weakref.ref(owner, lambda _, kept=TRACES: kept.discard(place))
        entry = TRACES.get(place)
    except (Unsure, TypeError):  # no hash, or no weak reference
        return make()
    if entry is not None and entry.owner() is owner and entry.guard == guard:
        return entry.traces
    traces = make()
    arrays = [x for each in traces[1] for x in each.fingerprint.constants]
    # Tracing may itself have changed what it read.
    if sum(map(nbytes, arrays)) <= _MOST_BYTES and guard == guard_of(fn, space, leaves):
        TRACES.put(place, _Entry(ref, guard, traces))
    return traces


def schema(leaves: Iterable[Any], space: Space, key: Key | None) -> Hashable:
    """Return what a trace depends on besides `guard_of`.

    `leaves` are those of the space and of the key.
    """
    schemas = tuple(_array_schema(x) for x in leaves if can_be_traced(x))
    # The selected points determine which of them share a program.
    rows = None if space.rows is None else np.asarray(space.rows).tobytes()
    return schemas, key is None, rows, configuration()


def guard_of(
    fn: Callable[..., Any] | None, space: Space, leaves: Iterable[Any]
) -> list[Any] | None:
    """Return what a trace reads of a space, or `None` if that may have changed."""
    try:
        return seen_by(fn, space, leaves)
    except Unsure:
        return None


def configuration() -> Hashable:
    """Return the configuration of JAX."""
    return _config(jax.config)


def _array_schema(leaf: Any) -> Hashable:
    return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
