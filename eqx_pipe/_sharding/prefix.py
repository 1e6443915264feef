"""From a prefix tree of specs to a spec for each leaf."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import equinox as eqx
import jax.tree_util as jtu
from jax.sharding import PartitionSpec as P
from jax.tree_util import KeyPath

from .._errors import describe_value, structure_error, type_error
from .._tree import join_path, path_name
from .._types import PyTree, PyTreeDef
from .leaves import is_placeable

SpecsLike: TypeAlias = PyTree[P | None] | Callable[..., P | None]
"""A prefix tree of specs, or a function `leaf -> spec` or `(path, leaf) -> spec`."""


class LeafSpec(NamedTuple):
    """A leaf and its spec, which is cut to the leaf's rank if several leaves share it.

    That of a leaf that no device can hold says nothing.
    """

    name: str
    leaf: Any  # of a user's tree: anything
    spec: P


def is_spec_leaf(spec: object) -> TypeGuard[P | None]:
    """Whether a node in a tree of specs is a leaf: a spec, or None."""
    return spec is None or isinstance(spec, P)


def pair(
    function: str, tree: PyTree, specs: SpecsLike
) -> tuple[list[LeafSpec], PyTreeDef]:
    """Every leaf of `tree` with its spec, and the structure of `tree`."""
    leaves, structure = jtu.tree_flatten_with_path(tree)
    # A model with specs for arrays, as `tree_at` makes it, can often be called, too.
    if callable(specs) and not isinstance(specs, eqx.Module):
        return _by_function(function, leaves, specs), structure
    spec_leaves, spec_structure = jtu.tree_flatten_with_path(
        specs, is_leaf=is_spec_leaf
    )
    try:
        parts = spec_structure.flatten_up_to(tree)
    except ValueError as error:
        raise structure_error(
            function,
            f"`specs` is not a prefix of the tree: {_mismatch(specs, tree, ())}.",
            "Give a spec for every part of the tree, in the same containers: one "
            "`PartitionSpec` (or None) stands for all arrays below it. A function "
            "`(path, leaf) -> spec` fits every tree.",
        ) from error
    paired = []
    for (spec_path, spec), part in zip(spec_leaves, parts, strict=True):
        prefix = path_name(spec_path)
        argument = f"specs.{prefix}" if prefix else "specs"
        for path, leaf in jtu.tree_flatten_with_path(part)[0]:
            own = P()
            if is_placeable(leaf):
                own = _as_spec(function, argument, spec)
                own = P(*tuple(own)[: leaf.ndim]) if path else own
            name = join_path(prefix, path_name(path)) if path else prefix
            paired.append(LeafSpec(name, leaf, own))
    return paired, structure


def _mismatch(specs: PyTree, tree: PyTree, path: KeyPath) -> str:
    """Where, first, a tree of specs has something else than the tree."""
    place = f" at `{path_name(path)}`" if path else ""
    if isinstance(specs, tuple) and all(isinstance(n, str | None) for n in specs):
        names = ", ".join(map(repr, specs))
        return f"the specs have a tuple of names{place}; did you mean `P({names})`?"
    mine, theirs = _children(specs), _children(tree)
    if type(specs) is not type(tree) or (mine is None) != (theirs is None):
        here, there = type(specs).__name__, type(tree).__name__
        return f"the specs have a `{here}`{place} where the tree has a `{there}`"
    mine, theirs = mine or {}, theirs or {}
    if list(mine) != list(theirs):
        here, there = (
            ", ".join(map(path_name, c)) or "nothing" for c in (mine, theirs)
        )
        return f"the specs have {here}{place} where the tree has {there}"
    for key, below in mine.items():
        if not is_spec_leaf(below):
            found = _mismatch(below, theirs[key], (*path, *key))
            if found:
                return found
    return "" if path else "its static fields differ"


def _children(tree: PyTree) -> dict[KeyPath, PyTree] | None:
    """The parts of a container by their paths; `None` of a leaf."""
    if jtu.all_leaves([tree]):
        return None
    inner = jtu.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    return dict(inner[0])


def _by_function(
    function: str, leaves: list[tuple[KeyPath, Any]], specs: Callable[..., object]
) -> list[LeafSpec]:
    both = _takes_two(specs)
    paired = []
    for path, leaf in leaves:
        name, spec = path_name(path), P()
        if is_placeable(leaf):
            given = specs(name, leaf) if both else specs(leaf)
            spec = _as_spec(function, f"specs(...)` for `{name}", given)
        paired.append(LeafSpec(name, leaf, spec))
    return paired


def _takes_two(fn: Callable[..., object]) -> bool:
    """Whether a function needs a path and a leaf, not the leaf alone."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    needed = [
        p
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) == 2


def _as_spec(function: str, argument: str, spec: object) -> P:
    if is_spec_leaf(spec):
        return P() if spec is None else spec
    raise type_error(
        function,
        f"`{argument}` is {describe_value(spec)}.",
        "Give a `jax.sharding.PartitionSpec`, as in `P('data', None)`, or None for "
        "a copy on every device.",
    )
