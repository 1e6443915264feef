"""Compiled programs, traces, and copies on devices: what a call leaves for the next.

What this process keeps, all of it here:

- `PROGRAMS` (in `_cache.py`, since loaders use it, too): compiled programs. The key has
  the jaxprs and everything else that is compiled in; arrays are no part of it. At most
  256; an entry counts while the objects that its jaxprs hold by identity live.
- `TRACES`: the traces of a function, by its identity, the options, and the schema of
  the space. At most 32 of at most 4 MiB of arrays; removed with the function, and
  traced again if something that the function reads has changed (`_same`).
- `REDUCERS`: the traces of built-in reducers, which depend on their fields and on the
  outputs alone. At most 128, with initial states of at most 1 MiB.
- `copies_of(array)`: copies of a JAX array by place, and the columns made of a table.
  Of at most 1 MiB each; removed with the array.
- `CONTROLS`: the numbers that select the points of a call, on the devices, by the
  points and the layout. At most 256.

What a plan keeps (`Programs` and `Points.placed` in `_sweep`) is found without
comparing such keys, and is gone with the plan: a `Sweeper` has at most 32 plans, a
worker at most 4 sweeps.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from .._cache import PROGRAMS, LRUCache, WeakCache
from .._errors import type_error
from .._jaxprs import Fingerprint
from .._mesh_context import NO_MESH
from .._types import PyTree

TRACES, REDUCERS, CONTROLS = LRUCache(32), LRUCache(128), LRUCache(256)

SMALL_BYTES = 2**20
"""The maximum bytes of an array of which copies are kept."""

_HANDED_IN_BYTES = 2**12
_copies: WeakCache[dict[Any, Any]] = WeakCache()


def copies_of(array: jax.Array) -> dict[Any, Any]:
    """Return the copies of an array, to add to or to look up.

    A copy to every device takes longer than a small sweep. JAX arrays are immutable, so
    those that several sweeps use (tables of axes, keys, small weights) are copied once.
    No array may be a copy of itself, since its entry would never be removed.
    """
    copies = _copies.get(array)
    return _copies.put(array, {}) if copies is None else copies


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
    key = "sweep", tuple(program.key for program in programs), place
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
    there = [
        leaf if _is_handed_in(leaf) else (_copies.get(leaf) or {}).get(place)
        for leaf in leaves
    ]
    new = [k for k, copy in enumerate(there) if copy is None]
    if new:
        copies = jax.device_put([leaves[k] for k in new], place)
        for k, copy in zip(new, copies, strict=True):
            there[k], leaf = copy, leaves[k]
            if isinstance(leaf, jax.Array) and copy is not leaf:  # others may change
                if math.prod(leaf.shape) * leaf.dtype.itemsize <= SMALL_BYTES:
                    copies_of(leaf)[place] = copy
    return jtu.tree_unflatten(structure, there)


def _is_handed_in(leaf: Any) -> bool:
    return type(leaf) is np.ndarray and leaf.nbytes <= _HANDED_IN_BYTES


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
