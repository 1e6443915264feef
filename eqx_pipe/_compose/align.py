"""Stages that are to be stacked: what they must agree in, and what differs first."""

import dataclasses
import types
from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from .._errors import structure_error
from .._jaxprs.cache_key import freeze, function_key
from .._stage import Lift
from .._stage.base import is_state_index
from .._tree import join_path, leaf_text, path_name
from .._types import AnyStage


def align(
    function: str, argument: str, other: str, first: AnyStage, stage: AnyStage
) -> AnyStage:
    """The stage, with the markers by which the state of the first is found.

    Raises unless the two differ in the values of arrays only.
    """
    stage = _with_markers(first, stage)
    found = difference(first, stage)
    if found:
        path, first_text, text = found
        place = f" at `.{path}`" if path else ""
        raise structure_error(
            function,
            f"`{argument}` is not built as `{other}`, from which it first differs"
            f"{place}: {first_text} against {text}.",
            "Only the values of arrays may differ. Give each the same settings, share "
            "functions between them, or use `eqx_pipe.chain`, which takes any stages.",
        )
    return stage


def difference(first: Any, other: Any, path: str = "") -> tuple[str, str, str] | None:
    """Where two pytrees first differ in more than values of arrays, and both texts."""
    if type(first) is not type(other) or eqx.is_array(first):
        texts = _text(first), _text(other)
        return None if texts[0] == texts[1] else (path, *texts)
    ours, structure = _children(first)
    theirs, other_structure = _children(other)
    if not ours and not theirs and not isinstance(first, eqx.Module):
        same = first is other or _same_function(first, other) or bool(first == other)
        return None if same else (path, _text(first), _text(other))
    for name in [*ours, *theirs]:
        below = join_path(path, name)
        if name not in ours or name not in theirs:
            texts = [_text(each.get(name, "nothing")) for each in (ours, theirs)]
            return below, texts[0], texts[1]
        found = difference(ours[name], theirs[name], below)
        if found:
            return found
    if structure == other_structure:
        return None
    for field in dataclasses.fields(first) if isinstance(first, eqx.Module) else ():
        a, b = (getattr(each, field.name, None) for each in (first, other))
        if field.metadata.get("static") and a != b:
            return join_path(path, field.name), _text(a), _text(b)
    return path, str(structure), str(other_structure)


def _same_function(first: Any, other: Any) -> bool:
    """Whether both do the same: code made twice, which closes over the same values."""
    both = type(first) is types.FunctionType and type(other) is types.FunctionType
    return both and function_key(first, freeze) == function_key(other, freeze)


def _children(tree: Any) -> tuple[dict[str, Any], Any]:
    """The parts right below, by name, and the structure that holds them."""
    named, structure = jtu.tree_flatten_with_path(
        tree, is_leaf=lambda node: node is not tree
    )
    return {path_name(path): part for path, part in named if path}, structure


def _text(value: Any) -> str:
    """A value as it is told apart in a message."""
    if isinstance(value, Lift):
        return _text(value.fn)
    if isinstance(value, eqx.Module):
        return f"`{type(value).__name__}`"
    text = leaf_text(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _with_markers(first: AnyStage, stage: AnyStage) -> AnyStage:
    """The stage with the first's markers of state, where both have some.

    Each stage was made with markers of its own. What the state begins with goes with
    the stage, unless the first has given its own away to a `State`.
    """
    ours, _ = jtu.tree_flatten(first, is_leaf=is_state_index)
    theirs, structure = jtu.tree_flatten(stage, is_leaf=is_state_index)
    if len(ours) != len(theirs):
        return stage
    return jtu.tree_unflatten(
        structure,
        [
            _marked(a, b) if is_state_index(a) and is_state_index(b) else b
            for a, b in zip(ours, theirs, strict=True)
        ],
    )


def _marked(ours: eqx.nn.StateIndex, theirs: eqx.nn.StateIndex) -> eqx.nn.StateIndex:
    if not jtu.tree_leaves(ours.init):
        return ours
    return eqx.tree_at(lambda index: index.init, ours, theirs.init)
