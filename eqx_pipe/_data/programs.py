"""Compiled programs of a loader, found again by its second iterator and epoch.

A program is found beside the loader itself, or among those of loaders that differ only
in the values of their arrays (a pipeline with other parameters, say): these are
arguments of the program. (`equinox.filter_jit` takes a Module apart at every call: 93
us against 11.)
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Hashable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import Tracer
from jaxtyping import Array

from .._cache import LRUCache, WeakCache
from .._sharding.mesh import is_staged
from .._tree import as_hashable
from .layout import is_explicit, with_axis_types
from .source import HostSource

# A training has few loaders and settings; searches make many, whose programs may go.
_MOST = 64


@dataclasses.dataclass
class Known:
    """What was made for a loader, or for another Module that has programs."""

    programs: dict[Hashable, Callable[..., Any]] = dataclasses.field(
        default_factory=dict
    )
    arrays: list[Array] | None = None
    counters: LRUCache = dataclasses.field(default_factory=lambda: LRUCache(_MOST))


_known: WeakCache[Known] = WeakCache()


def known(owner: eqx.Module) -> Known:
    """What was made for a Module before."""
    found = _known.get(owner)
    return _known.put(owner, Known()) if found is None else found


def program(
    owner: eqx.Module, function: Callable[..., Any], *options: Hashable
) -> Callable[..., Any]:
    """`function(owner, *options, *arguments)` compiled, as a function of `arguments`.

    The first argument of what is returned are the arrays of the owner, which
    `arrays_of` gives.
    """
    own = known(owner).programs
    found = own.get((function, options))
    if found is None:
        static = _Static(owner)
        try:
            found = _jitted(function, options, static)
        except TypeError:  # a static field that has no hash
            found = _make(function, options, static)
        own[function, options] = found
    return found


def arrays_of(owner: eqx.Module) -> list[Array]:
    """The arrays of a Module, on the device, as its programs take them."""
    kept = known(owner)
    found = kept.arrays
    sharded = getattr(owner, "sharding", None) is not None
    if found is not None and not sharded:
        return found
    leaves = jtu.tree_leaves(eqx.filter(owner, eqx.is_array))
    if sharded and is_staged():
        # Part of a program of the user, with axes of the user's kind.
        if is_explicit(jax.sharding.get_abstract_mesh()):
            return [jnp.asarray(leaf) for leaf in leaves]
    if found is None:
        with jax.ensure_compile_time_eval():
            # Programs of ours have automatic axes.
            leaves = with_axis_types(leaves) if sharded else leaves
        found = [jnp.asarray(leaf) for leaf in leaves]
        # Tracers do not outlive their trace.
        if not any(isinstance(leaf, Tracer) for leaf in found):
            kept.arrays = found
    return found


class _Static:
    """Everything of a Module but its arrays, with equality and a hash."""

    def __init__(self, owner: eqx.Module):
        arrays, rest = eqx.partition(owner, eqx.is_array)
        # No program reads a host source: those of loaders with other data are the same.
        self.rest = jtu.tree_map(
            lambda leaf: None if isinstance(leaf, HostSource) else leaf, rest
        )
        self.structure = jtu.tree_structure(arrays)
        leaves, structure = jtu.tree_flatten(self.rest)
        self._known = self.structure, structure, tuple(map(as_hashable, leaves))

    def filled(self, leaves: list[Array]) -> eqx.Module:
        """A Module with these arrays."""
        return eqx.combine(jtu.tree_unflatten(self.structure, leaves), self.rest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)


def _make(
    function: Callable[..., Any], options: tuple[Hashable, ...], static: _Static
) -> Callable[..., Any]:
    def run(leaves: list[Array], *arguments: Any) -> Any:
        return function(static.filled(leaves), *options, *arguments)

    run.__name__ = function.__name__.strip("_")
    return jax.jit(run)


_jitted = ft.lru_cache(_MOST)(_make)
