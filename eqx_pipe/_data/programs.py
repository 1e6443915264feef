"""Compiled programs of a loader, kept for its second iterator and epoch.

A program is found on the loader itself, or among those of loaders that differ only in
the values of their arrays (a pipeline with other parameters, say): these are arguments
of the program.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import Tracer

from .._sharding.mesh import is_staged
from .._spaces.static import identity
from .prepare import is_explicit, relaxed

_KEPT = 64


def program(loader: Any, function: Callable[..., Any], *options: Any) -> Any:
    """`function(loader, *options, *arguments)` compiled, as a function of `arguments`.

    The first argument of what is returned are the arrays of the loader, which
    `arrays_of` gives.
    """
    own = loader.__dict__.setdefault("_programs", {})
    found = own.get((function, options))
    if found is None:
        static = _Static(loader)
        try:
            found = _jitted(function, options, static)
        except TypeError:  # a static field that has no hash
            found = _make(function, options, static)
        own[function, options] = found
    return found


def arrays_of(loader: Any) -> list[Any]:
    """The arrays of a loader, on the device, as its programs take them."""
    found = loader.__dict__.get("_arrays")
    sharded = getattr(loader, "sharding", None) is not None
    if found is not None and not sharded:
        return found
    leaves = jtu.tree_leaves(eqx.filter(loader, eqx.is_array))
    if sharded and is_staged():
        # Part of a program of the user, with axes of his kind.
        if is_explicit(jax.sharding.get_abstract_mesh()):
            return [jnp.asarray(leaf) for leaf in leaves]
    if found is None:
        with jax.ensure_compile_time_eval():
            # Programs of ours have automatic axes.
            leaves = relaxed(leaves) if sharded else leaves
        found = [jnp.asarray(leaf) for leaf in leaves]
        if not any(isinstance(leaf, Tracer) for leaf in found):
            loader.__dict__["_arrays"] = found
    return found


class _Static:
    """Everything of a loader but its arrays, with equality and a hash."""

    def __init__(self, loader: Any):
        arrays, self.rest = eqx.partition(loader, eqx.is_array)
        self.structure = jtu.tree_structure(arrays)
        leaves, structure = jtu.tree_flatten(self.rest)
        self._known = self.structure, structure, tuple(map(identity, leaves))

    def filled(self, leaves: list[Any]) -> Any:
        """A loader with these arrays."""
        return eqx.combine(jtu.tree_unflatten(self.structure, leaves), self.rest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)


@ft.lru_cache(maxsize=_KEPT)
def _jitted(function: Callable[..., Any], options: tuple, static: _Static) -> Any:
    return _make(function, options, static)


def _make(function: Callable[..., Any], options: tuple, static: _Static) -> Any:
    def run(leaves: list[Any], *arguments: Any) -> Any:
        return function(static.filled(leaves), *options, *arguments)

    run.__name__ = function.__name__.strip("_")
    return jax.jit(run)
