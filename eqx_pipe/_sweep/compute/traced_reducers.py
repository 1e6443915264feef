"""Reducers as jaxprs, kept from one sweep to the next.

Tracing reducers takes longer than a small sweep. Our own reducers follow from their
fields and the form of the outputs, so they are traced once for each. Where there are
functions of the user's in them they are traced for every sweep: what such a function
does may have changed.
"""

import dataclasses
import functools as ft
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from ..._cache import LRUCache
from ..._jaxprs import Fingerprint, evaluate, fingerprint_of
from ..._reduce import AbstractReducer, Reducer, ReducerTree
from ..._tree import as_data
from .trace import Traced, settings

# Of larger states nothing is kept: what they begin with is held on devices too.
_KEPT_BYTES = 2**20
_kept = LRUCache(128)


@dataclasses.dataclass(frozen=True)
class Step:
    """A jaxpr whose constants are handed in."""

    jaxpr: Any

    @ft.cached_property
    def program(self) -> Fingerprint:
        """The fingerprint of the jaxpr, with its constants."""
        return fingerprint_of(self.jaxpr)

    def __call__(self, constants: Sequence[Any], *args: Any) -> list[Array]:
        return evaluate(self.jaxpr, constants, args)


@dataclasses.dataclass(frozen=True)
class TracedReducers:
    """The reducers of a sweep as jaxprs on the leaves of a state.

    `absorb` takes a state, the leaves of a batch of outputs, and which of these count;
    `merge` takes two states. `init` is the state of no points; `structure` is that of a
    list with the state of each reducer.
    """

    absorb: Step
    merge: Step
    init: list[Array]
    structure: Any

    @property
    def state_bytes(self) -> int:
        """The size of a state."""
        return sum(leaf.nbytes for leaf in map(as_data, self.init))


def trace_reducers(
    reducers: ReducerTree, traced: Traced, batch_size: int
) -> TracedReducers:
    """Return the jaxprs of some reducers for batches of the outputs of a function."""
    place = _place(reducers, traced, batch_size)
    known = None if place is None else _kept.get(place)
    if known is None:
        known = _trace(reducers, traced, batch_size)
        if place is not None and known.state_bytes <= _KEPT_BYTES:
            _kept.put(place, known)
    return known


def _place(reducers: ReducerTree, traced: Traced, batch_size: int) -> Hashable | None:
    """Return what a trace depends on; `None` if that includes code of the user's."""
    ours = AbstractReducer.__module__.rpartition(".")[0]
    for reducer in reducers.reducers:
        own = type(reducer).__module__.startswith(ours)
        if not own or isinstance(reducer, Reducer) or callable(reducer.by):
            return None
    # Treedefs are equal whose dicts have the keys `1` and `True`, and so are reducers
    # with the fields `0` and `0.0`; their texts differ.
    form = traced.structure, str(traced.structure), *traced.outputs
    which = tuple(reducers.reducers), repr(reducers.reducers)
    place = which, form, batch_size, *settings().items()
    try:
        hash(place)
    except TypeError:  # a field of a reducer or of an output cannot be hashed
        return None
    return place


def _trace(reducers: ReducerTree, traced: Traced, batch_size: int) -> TracedReducers:
    struct = jtu.tree_unflatten(traced.structure, traced.outputs)
    init, structure = jtu.tree_flatten(reducers.begin(struct))
    init = [_without_weak_type(leaf) for leaf in init]

    def absorb(
        state: list[Array], values: list[Array], ok: Bool[Array, " points"]
    ) -> list[Array]:
        state = jtu.tree_unflatten(structure, state)
        outputs = jtu.tree_unflatten(traced.structure, values)
        return jtu.tree_leaves(reducers.absorb(state, outputs, ok))

    def merge(first: list[Array], second: list[Array]) -> list[Array]:
        states = (jtu.tree_unflatten(structure, x) for x in (first, second))
        return jtu.tree_leaves(reducers.merge(*states))

    states = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in init]
    values = [
        jax.ShapeDtypeStruct((batch_size, *leaf.shape), leaf.dtype)
        for leaf in traced.outputs
    ]
    ok = jax.ShapeDtypeStruct((batch_size,), bool)
    absorbing: Any = jax.make_jaxpr(absorb)(states, values, ok)
    merging: Any = jax.make_jaxpr(merge)(states, states)
    return TracedReducers(Step(absorbing), Step(merging), init, structure)


def _without_weak_type(leaf: Any) -> Array:
    leaf = jnp.asarray(leaf)
    if not getattr(leaf, "weak_type", False):  # keys have no such thing
        return leaf
    return jax.lax.convert_element_type(leaf, leaf.dtype)
