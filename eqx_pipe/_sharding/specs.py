"""From specs to one sharding for each array, or to one error for all."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import equinox as eqx
import jax.tree_util as jtu
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import KeyPath

from .._errors import (
    bullets,
    describe_value,
    nearest,
    structure_error,
    type_error,
    value_error,
)
from .._mesh_context import check_mesh
from .._tree import join_path, leaf_text, path_name
from .._types import PyTree, PyTreeDef
from .leaves import Placeable, is_global, is_placeable
from .mesh import names_of, num_shards
from .rules import RulesLike, as_rules

SpecsLike: TypeAlias = PyTree[P | None] | Callable[..., P | None]
"""A prefix tree of specs, or a function `leaf -> spec` or `(path, leaf) -> spec`."""


class LeafSharding(NamedTuple):
    """One leaf with the sharding it is meant to have: none, if it is no array."""

    name: str
    leaf: Any  # of a user's tree: anything
    sharding: NamedSharding | None


def resolve(
    function: str,
    tree: PyTree,
    mesh: Mesh,
    specs: SpecsLike,
    rules: RulesLike | None = None,
    *,
    divide: bool = True,
    local: bool = False,
) -> tuple[list[LeafSharding], PyTreeDef]:
    """Every leaf of `tree` with its sharding, and the structure of `tree`.

    Whatever does not fit is said in one error. With `divide=False` sizes need not.
    With `local` the arrays of one process are its part of a global array.
    """
    check_mesh(function, mesh)
    known = as_rules(function, rules)
    paired, structure = pair(function, tree, specs)
    resolved, problems, uneven = [], [], False
    for name, leaf, spec in paired:
        sharding, wrong = None, []
        if is_placeable(leaf):
            spec = spec if leaf.ndim else P()  # what has no axes is never split
            if known is not None:  # the names are logical
                spec, wrong = known.resolve(tuple(spec))
            wrong = wrong or wrong_axes(leaf, spec, mesh)
            if divide and not wrong:
                wrong = uneven_sizes(leaf, spec, mesh, local=local)
                uneven = uneven or bool(wrong)
            sharding = None if wrong else NamedSharding(mesh, spec)
        problems += [f"`{name}`: {line}" if name else line for line in wrong]
        resolved.append(LeafSharding(name, leaf, sharding))
    if problems:
        raise value_error(
            function,
            f"these specs do not fit the arrays and the mesh {dict(mesh.shape)}:"
            + bullets(problems),
            "Change the specs or the sizes; `eqx_pipe.sharding.pad_to` pads arrays to "
            "sizes "
            "that fit."
            if uneven
            else "Change the specs.",
        )
    return resolved, structure


def wrong_axes(leaf: Placeable, spec: P, mesh: Mesh) -> list[str]:
    """Why a spec is none for this array on this mesh, one line for each reason."""
    names = names_of(spec)
    problems = []
    for name in dict.fromkeys(names):
        if name not in mesh.shape:
            hint = nearest(name, mesh.axis_names)
            problems.append(f"the mesh has no axis `{name}`. {hint}")
        if names.count(name) > 1:
            problems.append(
                f"the mesh axis `{name}` stands twice in {spec}; an axis of the mesh "
                "can split one axis of an array."
            )
    if len(spec) > leaf.ndim:
        problems.append(_too_long(leaf, spec))
    return problems


def _too_long(leaf: Placeable, spec: P) -> str:
    """What is wrong with a spec of more entries than the array has axes."""
    return (
        f"{spec} has {len(spec)} entries, but {leaf_text(leaf)} has {leaf.ndim} axes."
    )


def uneven_sizes(
    leaf: Placeable, spec: P, mesh: Mesh, *, local: bool = False
) -> list[str]:
    """One line for each axis whose size does not divide, with the nearest that do."""
    lines, where = [], ""
    if local and not is_global(leaf):
        mesh, where = mesh.local_mesh, " in this process"
    # Not strict: axes behind the last entry are whole.
    for axis, (size, entry) in enumerate(zip(leaf.shape, spec, strict=False)):
        parts = num_shards(mesh, entry)
        if size % parts:
            over = " x ".join(f"`{name}`" for name in names_of([entry]))
            lower, upper = size // parts * parts, -(-size // parts) * parts
            fits = f"{lower} or {upper}" if lower else f"{upper}"
            lines.append(
                f"axis {axis} has size {size}, which does not divide over the mesh "
                f"axis {over} of size {parts}{where}; the nearest that fits: {fits}."
            )
    return lines


def output_specs(struct: PyTree, specs: SpecsLike) -> PyTree[P]:
    """One spec for each array of the output of `shard_map`."""
    paired, structure = pair("sharding.shard_map", struct, specs)
    problems = [
        f"{f'`{name}` of the output' if name else 'the output'}: "
        + _too_long(leaf, spec)
        for name, leaf, spec in paired
        if len(spec) > leaf.ndim
    ]
    if problems:
        raise value_error(
            "sharding.shard_map",
            f"`out_specs` does not fit the stage's output:{bullets(problems)}",
            "Give at most one entry for each axis.",
        )
    return jtu.tree_unflatten(structure, [spec for _, _, spec in paired])


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
                # Cut where the spec is that of a whole container: a bias has fewer axes
                # than its weight.
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
    both = len([p for p in required(specs) if p.kind != p.KEYWORD_ONLY]) == 2
    paired = []
    for path, leaf in leaves:
        name, spec = path_name(path), P()
        if is_placeable(leaf):
            given = specs(name, leaf) if both else specs(leaf)
            spec = _as_spec(function, f"specs(...)` for `{name}", given)
        paired.append(LeafSpec(name, leaf, spec))
    return paired


def required(fn: Callable[..., object]) -> list[inspect.Parameter]:
    """The parameters of a function without which it cannot be called."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return []
    return [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def _as_spec(function: str, argument: str, spec: object) -> P:
    if is_spec_leaf(spec):
        return P() if spec is None else spec
    raise type_error(
        function,
        f"`{argument}` is {describe_value(spec)}.",
        "Give a `jax.sharding.PartitionSpec`, as in `P('data', None)`, or None for "
        "a copy on every device.",
    )
