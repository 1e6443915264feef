"""Compiled programs, and copies of arrays on devices, kept for the next call."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from .._cache import PROGRAMS, WeakCache
from .._errors import type_error
from .._jaxprs import Fingerprint
from .._mesh_context import NO_MESH
from .._types import PyTree

# A copy to every device takes longer than a small sweep. JAX arrays are immutable, so
# those that several sweeps use (tables of axes, keys, small weights) are copied once. A
# copy is removed with its array.
_SMALL_BYTES = 2**20
_HANDED_IN_BYTES = 2**12
_copies: WeakCache[dict[Any, jax.Array]] = WeakCache()


def compiled(
    programs: Sequence[Fingerprint],
    place: Any,
    lower: Callable[[], jax.stages.Lowered],
    options: dict[str, Any] | None = None,
) -> Any:
    """Return the cached compilation of some programs, or that of `lower()`.

    `place` has everything that is compiled in besides the programs; `options` are those
    of the compiler.
    """
    key = "sweep", tuple(program.key() for program in programs), place
    kept, made = PROGRAMS.get(key) or ((), None)
    if made is None or not all(program.still_valid() for program in kept):
        made = lower().compile(compiler_options=options)
        # Keep them without their arrays, which may be large and are passed in at calls.
        kept = tuple(program.without_constants() for program in programs)
        PROGRAMS.put(key, (kept, made))
    return made


def put(tree: PyTree, place: jax.sharding.Sharding) -> PyTree:
    """Return a pytree with its arrays on some devices, copied only if needed.

    Small NumPy arrays are not copied, since a call copies them faster.
    """
    leaves, structure = jtu.tree_flatten(tree)
    found = [
        leaf if _is_handed_in(leaf) else (_copies.get(leaf) or {}).get(place)
        for leaf in leaves
    ]
    new = [k for k, there in enumerate(found) if there is None]
    if new:
        copies = jax.device_put([leaves[k] for k in new], place)
        for k, copy in zip(new, copies, strict=True):
            found[k] = copy
            _keep(leaves[k], place, copy)
    return jtu.tree_unflatten(structure, found)


def _is_handed_in(leaf: Any) -> bool:
    return type(leaf) is np.ndarray and leaf.nbytes <= _HANDED_IN_BYTES


def _keep(leaf: Any, place: jax.sharding.Sharding, copy: jax.Array) -> None:
    # Other arrays may change, and an entry that is its own copy would never be removed.
    if not isinstance(leaf, jax.Array) or copy is leaf:
        return
    if math.prod(leaf.shape) * leaf.dtype.itemsize <= _SMALL_BYTES:
        copies = _copies.get(leaf)
        copies = _copies.put(leaf, {}) if copies is None else copies
        copies[place] = copy


def no_mesh(function: str = "sweep") -> Any:
    """Leave the user's mesh context, which would become part of the program."""
    try:
        return jax.set_mesh(NO_MESH)
    except ValueError as error:  # it can only be set outside of transformations
        raise type_error(
            function,
            "it was called under a transformation (`jit`, `grad`, `vmap`, ...).",
            "A sweep runs on the host. Use `eqx_pipe.vmap_space`, which is a pure "
            "function.",
        ) from error
