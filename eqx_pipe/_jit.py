"""Compiled programs of Modules, cached by owner.

Owners that differ only in the values of their arrays share a program, whose arguments
are the arrays. `equinox.filter_jit` flattens a Module at every call (93 us instead of
11), and waits for the result.
"""

import functools as ft
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import Tracer
from jaxtyping import Array

from ._cache import PROGRAMS, WeakCache
from ._mesh_context import is_explicit, is_staged, with_axis_types
from ._same import Unsure, seen_by
from ._tree import as_hashable
from ._types import PyTree

_Made = TypeVar("_Made")

_programs: WeakCache[dict[Hashable, Callable[..., Any]]] = WeakCache()
_arrays: WeakCache[list[Array]] = WeakCache()


def program(
    owner: eqx.Module,
    function: Callable[..., Any],
    *options: Hashable,
    without: type | tuple[()] = (),
) -> Callable[..., Any]:
    """Compile `function(owner, *options, *arguments)` as a function of `arguments`.

    The first argument of the compiled function is the list of the owner's arrays, from
    `arrays_of`. `without` is a type of leaves that no program reads: owners that differ
    only in such leaves share a program, in which they are None.
    """
    programs = _programs.get(owner) or _programs.put(owner, {})
    compiled = programs.get((function, options))
    if compiled is None:
        static = Static(owner, without)
        made = ft.partial(_make, function, options, static)
        compiled = shared(("module", function, options), static, made)
        programs[function, options] = compiled
    return compiled


def shared(kind: Hashable, static: "Static", make: Callable[[], _Made]) -> _Made:
    """Return what was made for an equal `static`, if all that it reads is the same.

    It is made anew each time if that cannot be known, or if a static field has no hash.
    """
    try:
        key, guard = (kind, static), seen_by(static.rest)
        was, made = PROGRAMS.get(key) or (None, None)
    except (Unsure, TypeError):
        return make()
    if made is None or was != guard:
        made = make()
        PROGRAMS.put(key, (guard, made))
    return made


def arrays_of(owner: eqx.Module, sharded: bool = False) -> list[Array]:
    """Return the arrays of a Module on the device, as its programs take them.

    `sharded` is True if its programs have a mesh, with automatic axes.
    """
    arrays = _arrays.get(owner)
    if arrays is not None and not sharded:
        return arrays
    leaves = arrays_in(owner)
    if sharded and is_staged():
        # Part of a user's program, with the user's kind of axes.
        if is_explicit(jax.sharding.get_abstract_mesh()):
            return [jnp.asarray(leaf) for leaf in leaves]
    if arrays is None:
        with jax.ensure_compile_time_eval():
            # The package's programs have automatic axes.
            leaves = with_axis_types(leaves) if sharded else leaves
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        # Tracers are invalid after their trace, so they are not cached.
        if not any(isinstance(leaf, Tracer) for leaf in arrays):
            _arrays.put(owner, arrays)
    return arrays


def arrays_in(tree: PyTree) -> list[Any]:
    """Return the leaves of a pytree that are arrays, in order."""
    return jtu.tree_leaves(eqx.filter(tree, eqx.is_array))


@jtu.register_static
class Static:
    """A pytree without its arrays, with equality and a hash, and without leaves.

    `without` is a type of other leaves to leave out.
    """

    def __init__(self, tree: PyTree, without: type | tuple[()] = ()):
        arrays, rest = eqx.partition(tree, eqx.is_array)
        self.rest = jtu.tree_map(
            lambda leaf: None if isinstance(leaf, without) else leaf, rest
        )
        self.structure = jtu.tree_structure(arrays)
        leaves, structure = jtu.tree_flatten(self.rest)
        self._known = self.structure, structure, tuple(map(as_hashable, leaves))

    def filled(self, leaves: list[Array]) -> PyTree:
        """Return the pytree with the arrays from `arrays_in`."""
        return eqx.combine(jtu.tree_unflatten(self.structure, leaves), self.rest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)


def _make(
    function: Callable[..., Any], options: tuple[Hashable, ...], static: Static
) -> Callable[..., Any]:
    def run(leaves: list[Array], *arguments: Any) -> Any:
        return function(static.filled(leaves), *options, *arguments)

    run.__name__ = function.__name__.strip("_")
    return jax.jit(run)
