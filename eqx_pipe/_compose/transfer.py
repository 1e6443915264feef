"""Parameters taken over from another pipeline, by path."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._stage.parent import NamedLeaf, named_leaves
from .._stage.pattern import check_matched, check_patterns, chooser
from .._tree import leaf_text
from .._types import PyTree

Pipe = TypeVar("Pipe")


def transfer(pipe: Pipe, source: PyTree, *patterns: str) -> tuple[Pipe, dict[str, str]]:
    """Takes over the arrays of another pipeline that have the same paths.

    An array is taken if it agrees in shape and dtype; nothing is cut, padded or cast.
    The stages of a `repeat` are met one by one, so parameters go from a `chain` of
    blocks into a `repeat` of them and back. A state is not taken over: hand that of
    `source` on, or begin with a new one.

    To load a file, make a pipeline like that which was saved, and load it as ever:
    `equinox.tree_deserialise_leaves("old.eqx", like)`.

    **Arguments:**

    - `pipe`: the pipeline that gets them, or any module.
    - `source`: the one that has them.
    - `patterns`: which, by path, as in `trainable`; by default all.

    **Returns:** the new pipeline, and a dict that says of every array not taken over
    why: from its path to `"only here"`, `"only in the source"`, or both shapes. What
    the patterns leave out is not listed.

    **Raises:**

    - `TypeError` if a pattern is no string.
    - `ValueError` if one matches no array of either.

    **Laws:** `transfer(pipe, pipe)` is `(pipe, {})`; what was taken over is equal to
    the source bit for bit, and the rest to `pipe`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.random as jr
        >>> one, two, small = (
        ...     eqx.nn.Linear(3, n, key=jr.key(i)) for i, n in enumerate([3, 3, 2])
        ... )
        >>> old, new = ep.chain(body=one, head=small), ep.chain(body=two, head=two)
        >>> pipe, missed = ep.transfer(new, old)
        >>> (pipe["body"].weight == one.weight).all().item(), missed["head.bias"]
        (True, 'float32[3] here, float32[2] in the source')
    """
    check_patterns("transfer", "patterns", patterns)
    leaves = named_leaves(pipe)
    here = [leaf for leaf in leaves if _is_taken(leaf)]
    there = {
        path: (leaf.value, index)
        for leaf in named_leaves(source)
        if _is_taken(leaf)
        for index, path in np.ndenumerate(leaf.paths)
    }
    known = [path for leaf in here for path in leaf.paths.flat]
    paths = dict.fromkeys([*known, *there])
    check_matched("transfer", patterns, paths, "array", below=True)
    chosen = chooser(patterns or ("**",), below=True)
    missed: dict[str, str] = {}

    def taken(path: str, own: Array | np.ndarray) -> Array | np.ndarray | None:
        if not chosen(path):
            return None
        if path not in there:
            missed[path] = "only here"
            return None
        value, index = there[path]
        new = _slice(value, index)
        if new.shape == own.shape and new.dtype == own.dtype:
            return new
        missed[path] = f"{leaf_text(own)} here, {leaf_text(new)} in the source"
        return None

    values = []
    for leaf in leaves:
        values.append(_filled(leaf, taken) if _is_taken(leaf) else leaf.value)
    for path in there.keys() - set(known):
        if chosen(path):
            missed[path] = "only in the source"
    order = {path: i for i, path in enumerate(paths)}
    # They were found in three passes; readers look for them in the order of the
    # pipeline.
    missed = dict(sorted(missed.items(), key=lambda item: order[item[0]]))
    return jtu.tree_structure(pipe).unflatten(values), missed


def _is_taken(leaf: NamedLeaf) -> bool:
    array = eqx.is_array(leaf.value) or isinstance(leaf.value, np.ndarray)
    return array and not leaf.is_state


def _slice(value: Array | np.ndarray, index: tuple[int, ...]) -> Array | np.ndarray:
    return value[index] if index else value


def _filled(
    leaf: NamedLeaf, taken: Callable[..., Array | np.ndarray | None]
) -> Array | np.ndarray:
    """The leaf with what is taken for it, slice by slice where stages are stacked."""
    own = {index: _slice(leaf.value, index) for index in np.ndindex(leaf.paths.shape)}
    found = {index: taken(leaf.paths[index], part) for index, part in own.items()}
    if all(new is None for new in found.values()):
        return leaf.value
    parts = [own[index] if new is None else new for index, new in found.items()]
    return jnp.stack(parts).reshape(leaf.value.shape) if leaf.paths.shape else parts[0]
