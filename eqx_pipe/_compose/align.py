"""Align stages to be stacked, which may differ only in the values of arrays."""

import types
from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from .._captured import cells
from .._errors import structure_error
from .._stage import is_state_index
from .._tree import differences
from .._types import AnyStage, PyTree

_PLAIN = bool | int | float | complex | str | bytes


def align(
    function: str, argument: str, other: str, first: AnyStage, stage: AnyStage
) -> AnyStage:
    """Return the stage with the functions and the state indices of the first.

    Raise unless the two differ in the values of arrays only.
    """
    ours, structure = jtu.tree_flatten(first, is_leaf=is_state_index)
    theirs, their_structure = jtu.tree_flatten(stage, is_leaf=is_state_index)
    if structure == their_structure:
        both = zip(ours, theirs, strict=True)
        stage = structure.unflatten([_as_first(a, b) for a, b in both])
    found = differences(first, stage)
    if found:
        raise structure_error(
            function,
            f"`{other}` and `{argument}` differ: {found[0]}.",
            "Only the values of arrays may differ. Give each the same settings, share "
            "functions between them, or use `eqx_pipe.chain`, which takes any stages.",
        )
    return stage


def _as_first(ours: PyTree, theirs: PyTree) -> PyTree:
    if is_state_index(ours) and is_state_index(theirs):
        # Each stage has its own state indices. Each keeps its initial state, unless the
        # first stage has moved its initial state into a `State`.
        has_init = bool(jtu.tree_leaves(ours.init))
        return eqx.tree_at(lambda i: i.init, ours, theirs.init) if has_init else ours
    return ours if _same_function(ours, theirs) else theirs


def _same_function(ours: Any, theirs: Any) -> bool:
    """Return whether both have the same code and equal values in their closures."""
    if not isinstance(ours, types.FunctionType) or type(theirs) is not type(ours):
        return False
    if ours.__code__ is not theirs.__code__:
        return False
    held = [(*cells(fn).values(), *(fn.__defaults__ or ())) for fn in (ours, theirs)]
    return all(map(_same, *held)) and ours.__kwdefaults__ == theirs.__kwdefaults__


def _same(ours: Any, theirs: Any) -> bool:
    # Arrays are compared by identity: values can be large, or traced.
    plain = isinstance(ours, _PLAIN) and type(ours) is type(theirs) and ours == theirs
    return ours is theirs or plain or _same_function(ours, theirs)
