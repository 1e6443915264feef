"""Reducers as jaxprs, kept from one sweep to the next.

Tracing a reducer takes longer than a small sweep. What our own reducers do to outputs
of a given form follows from their fields, so they are traced once for each form. Those
with functions of the user's in them are traced for every sweep: what such a function
does may have changed.
"""

import dataclasses
import functools as ft
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from ..._cache import LRUCache
from ..._jaxprs import Fingerprint, evaluate, fingerprint_of, key_of
from ..._reduce import AbstractReducer, Reducer, ReducerTree
from ..tracing.trace import Traced

# Of larger states nothing is kept: what they begin with is held on devices too.
_KEPT_BYTES = 2**20
_kept = LRUCache(128)


@dataclasses.dataclass(frozen=True)
class OneReducing:
    """A reducer as jaxprs on flat states.

    `absorb` takes the leaves of a state, those of a batch of outputs, and which of
    them count; `merge` takes the leaves of two states. `init` are the leaves of the
    state of no points.
    """

    absorb: Any
    merge: Any
    init: list[Array]
    structure: Any

    @ft.cached_property
    def programs(self) -> tuple[Fingerprint, Fingerprint]:
        """What identifies `absorb` and `merge`."""
        return fingerprint_of(self.absorb), fingerprint_of(self.merge)

    @property
    def state_bytes(self) -> int:
        """The size of one state."""
        sizes = [getattr(leaf.dtype, "itemsize", 8) for leaf in self.init]
        shapes = [math.prod(leaf.shape) for leaf in self.init]
        return sum(a * b for a, b in zip(sizes, shapes, strict=True))

    def placed(self, place: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """`init` and the constants of `absorb` and of `merge`, on some devices."""
        if place not in self._places:
            given = (self.init, *(program.constants for program in self.programs))
            self._places[place] = jax.device_put(given, place)
        return self._places[place]

    @ft.cached_property
    def _places(self) -> dict[Any, Any]:
        return {}


@dataclasses.dataclass(frozen=True)
class Reducing:
    """All reducers of a sweep; a state has the leaves of all of theirs, in order."""

    each: tuple[OneReducing, ...]

    @property
    def init(self) -> list[Array]:
        """The leaves of the state of no points."""
        return [leaf for one in self.each for leaf in one.init]

    @ft.cached_property
    def structure(self) -> Any:
        """That of a list of states."""
        states = [jtu.tree_unflatten(one.structure, one.init) for one in self.each]
        return jtu.tree_structure(states)

    @property
    def absorbing(self) -> list[Fingerprint]:
        """What identifies how batches are taken in."""
        return [one.programs[0] for one in self.each]

    @property
    def merging(self) -> list[Fingerprint]:
        """What identifies how states are merged."""
        return [one.programs[1] for one in self.each]

    @property
    def state_bytes(self) -> int:
        """The size of one state."""
        return sum(one.state_bytes for one in self.each)

    def placed(self, place: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """The leaves of `init`, and for each reducer the constants of `absorb` and
        of `merge`, on some devices.
        """
        placed = [one.placed(place) for one in self.each]
        init = [leaf for leaves, _, _ in placed for leaf in leaves]
        return init, [absorb for _, absorb, _ in placed], [m for _, _, m in placed]

    def absorb(
        self,
        constants: Sequence[Sequence[Any]],
        state: Sequence[Array],
        values: Sequence[Any],
        ok: Bool[Array, " points"],
    ) -> list[Array]:
        """The state after a batch of outputs."""
        left, result = iter(state), []
        for one, own in zip(self.each, constants, strict=True):
            leaves = [next(left) for _ in one.init]
            result += evaluate(one.absorb, own, [*leaves, *values, ok])
        return result

    def merge(
        self,
        constants: Sequence[Sequence[Any]],
        first: Sequence[Array],
        second: Sequence[Array],
    ) -> list[Array]:
        """The state of the points of both."""
        a, b, result = iter(first), iter(second), []
        for one, own in zip(self.each, constants, strict=True):
            leaves = [next(x) for x in (a, b) for _ in one.init]
            result += evaluate(one.merge, own, leaves)
        return result


def trace_reducers(reducers: ReducerTree, traced: Traced, batch_size: int) -> Reducing:
    """The jaxprs of some reducers for the outputs of a function."""
    cache_key = _cache_key(traced, batch_size)
    return Reducing(
        tuple(_one(r, traced, batch_size, cache_key) for r in reducers.reducers)
    )


def _one(reducer: Any, traced: Traced, batch_size: int, cache_key: Any) -> OneReducing:
    identity = None if cache_key is None else _identity(reducer)
    if identity is None:
        return _trace(reducer, traced, batch_size)
    known = _kept.get((identity, cache_key))
    if known is not None:
        return known
    made = _trace(reducer, traced, batch_size)
    if made.state_bytes <= _KEPT_BYTES:
        _kept.put((identity, cache_key), made)
    return made


def _identity(reducer: Any) -> Any:
    """Equal only for reducers that do the same; `None` if the user's code does it."""
    ours = type(reducer).__module__.startswith(
        AbstractReducer.__module__.rpartition(".")[0]
    )
    if not ours or isinstance(reducer, Reducer) or callable(reducer.by):
        return None
    return key_of(reducer)


def _cache_key(traced: Traced, batch_size: int) -> Any:
    """What else a trace depends on: the outputs, and the settings of JAX."""
    leaves = tuple(
        (leaf.shape, leaf.dtype, bool(getattr(leaf, "weak_type", False)))
        for leaf in traced.outputs
    )
    # Treedefs are equal whose dicts have the keys `1` and `True`; their texts differ.
    structure = (traced.structure, str(traced.structure))
    # JAX keeps a trace under the settings that it was made with, and gives the same
    # one again as long as they are the same.
    form = (structure, leaves, batch_size, _nothing.trace().jaxpr)
    try:
        hash(form)
    except TypeError:  # a node of the output has a field that cannot be hashed
        return None
    return form


@jax.jit
def _nothing() -> tuple[()]:
    return ()


def _trace(reducer: Any, traced: Traced, batch_size: int) -> OneReducing:
    struct = jtu.tree_unflatten(traced.structure, traced.outputs)
    init, structure = jtu.tree_flatten(reducer.begin(struct))
    init = [_without_weak_type(leaf) for leaf in init]

    def absorb(
        state: list[Array], values: list[Array], ok: Bool[Array, " points"]
    ) -> list[Array]:
        state = jtu.tree_unflatten(structure, state)
        outputs = jtu.tree_unflatten(traced.structure, values)
        return jtu.tree_leaves(reducer.absorb(state, outputs, ok))

    def merge(first: list[Array], second: list[Array]) -> list[Array]:
        states = (jtu.tree_unflatten(structure, x) for x in (first, second))
        return jtu.tree_leaves(reducer.merge(*states))

    states = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in init]
    values = [
        jax.ShapeDtypeStruct((batch_size, *leaf.shape), leaf.dtype)
        for leaf in traced.outputs
    ]
    ok = jax.ShapeDtypeStruct((batch_size,), bool)
    return OneReducing(
        absorb=jax.make_jaxpr(absorb)(states, values, ok),
        merge=jax.make_jaxpr(merge)(states, states),
        init=init,
        structure=structure,
    )


def _without_weak_type(leaf: Any) -> Array:
    leaf = jnp.asarray(leaf)
    if not getattr(leaf, "weak_type", False):  # keys have no such thing
        return leaf
    return jax.lax.convert_element_type(leaf, leaf.dtype)
