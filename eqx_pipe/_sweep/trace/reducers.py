"""Reducers as jaxprs on the leaves of their states.

Tracing reducers takes longer than a small sweep. The built-in reducers are determined
by their fields and the structure, shapes and dtypes of outputs, so they are traced once
for each. Reducers with user functions are traced for every sweep, since the behaviour
of a function may have changed.
"""

import dataclasses
import functools as ft
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from ..._jaxprs import Fingerprint, evaluate, fingerprint_of, key_of
from ..._reduce import AbstractReducer, Reducer, ReducerTree
from ..._run import REDUCERS, SMALL_BYTES
from ..._tree import as_data
from .trace import Traced, detached, settings


@dataclasses.dataclass(frozen=True)
class Step:
    """A jaxpr whose constants are passed in."""

    jaxpr: Any

    @ft.cached_property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the jaxpr, with its constants."""
        return fingerprint_of(self.jaxpr)

    def __call__(self, constants: Sequence[Any], *args: Any) -> list[Array]:
        return evaluate(self.jaxpr, constants, args)


@dataclasses.dataclass(frozen=True)
class TracedReducers:
    """The reducers of a sweep as jaxprs on the leaves of a state.

    `absorb` takes a state, the leaves of a batch of outputs, and the mask of those that
    count; `merge` takes two states. `init` is the state of no points; `structure` is
    the structure of a list with the state of each reducer.
    """

    absorb: Step
    merge: Step
    init: list[Array]
    structure: Any

    @property
    def state_bytes(self) -> int:
        """The size of a state in bytes."""
        return sum(leaf.nbytes for leaf in map(as_data, self.init))


def trace_reducers(
    reducers: ReducerTree, traced: Traced, batch_size: int
) -> TracedReducers:
    """Return the jaxprs of some reducers for batches of the outputs of a function."""
    place = _place(reducers, traced, batch_size)
    reducing = None if place is None else REDUCERS.get(place)
    if reducing is None:
        reducing = _trace(reducers, traced, batch_size)
        # The initial state is kept on devices.
        if place is not None and reducing.state_bytes <= SMALL_BYTES:
            REDUCERS.put(place, reducing)
    return reducing


def _place(reducers: ReducerTree, traced: Traced, batch_size: int) -> Hashable | None:
    """Return the key of a trace; `None` if it depends on user code."""
    ours = AbstractReducer.__module__.rpartition(".")[0]
    for reducer in reducers.reducers:
        is_ours = type(reducer).__module__.startswith(ours)
        if not is_ours or isinstance(reducer, Reducer) or callable(reducer.by):
            return None
    which = key_of((reducers.reducers, traced.structure))
    return which, *traced.outputs, batch_size, *settings().items()


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
    absorbing, merging = map(detached, (absorbing, merging))
    return TracedReducers(Step(absorbing), Step(merging), init, structure)


def _without_weak_type(leaf: Any) -> Array:
    leaf = jnp.asarray(leaf)
    if not getattr(leaf, "weak_type", False):  # keys have no such thing
        return leaf
    return jax.lax.convert_element_type(leaf, leaf.dtype)
