"""Resolve specs to one sharding for each array, or to one error for all."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import jax
import jax.tree_util as jtu
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .._errors import (
    bullets,
    describe_value,
    nearest,
    structure_error,
    type_error,
    value_error,
)
from .._mesh_context import check_mesh
from .._stage import check_matched, matches, named_leaves
from .._tree import leaf_text
from .._types import PyTree, PyTreeDef
from .mesh import (
    Placeable,
    fitting_sizes,
    is_global,
    is_placeable,
    names_of,
    num_shards,
)
from .rules import RulesLike, as_rules

SpecsLike: TypeAlias = PyTree[P | None] | Mapping[str, P | None]
"""A prefix tree of specs, or a mapping from patterns of paths to specs."""


class PathLeaf(NamedTuple):
    """A leaf with its paths, one for each of the stages stacked in it."""

    paths: tuple[str, ...]
    leaf: Any  # of a user's tree: anything

    @property
    def name(self) -> str:
        """The path, with `*` for the positions of stacked stages."""
        parts = zip(*(path.split(".") for path in self.paths), strict=True)
        return ".".join(p[0] if len(set(p)) == 1 else "*" for p in parts)


def path_leaves(tree: PyTree) -> tuple[list[PathLeaf], PyTreeDef]:
    """Return every leaf of `tree` with its paths, and the structure of `tree`."""
    leaves, structure = jtu.tree_flatten(tree)
    named = zip(named_leaves(tree), leaves, strict=True)
    return [PathLeaf(tuple(n.paths.flat), leaf) for n, leaf in named], structure


class LeafSharding(NamedTuple):
    """A leaf with its intended sharding, which is None if it is not an array."""

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
    """Return every leaf of `tree` with its sharding, and the structure of `tree`.

    One error lists every misfit. With `divide=False` sizes need not be divisible. With
    `local` the arrays of one process are its part of a global array.
    """
    check_mesh(function, mesh)
    known = as_rules(rules)
    leaves, structure = path_leaves(tree)
    resolved, problems, uneven = [], [], False
    for at, spec in zip(leaves, _specs_of(function, tree, leaves, specs), strict=True):
        sharding, wrong = None, []
        if is_placeable(at.leaf):
            spec = spec if at.leaf.ndim else P()  # an array without axes is not split
            if known is not None:  # the names are logical
                spec, wrong = known.resolve(tuple(spec))
            wrong = wrong or _wrong_axes(at.leaf, spec, mesh)
            if divide and not wrong:
                wrong = _uneven_sizes(at.leaf, spec, mesh, local=local)
                uneven = uneven or bool(wrong)
            sharding = None if wrong else NamedSharding(mesh, spec)
        problems += [f"`{at.name}`: {line}" if at.name else line for line in wrong]
        resolved.append(LeafSharding(at.name, at.leaf, sharding))
    if problems:
        names = "specs" if known is None else "logical names or the rules"
        pad = " or the sizes; `eqx_pipe.sharding.pad_to` pads arrays to sizes that fit."
        raise value_error(
            function,
            f"these specs do not fit the arrays and the mesh {dict(mesh.shape)}:"
            + bullets(problems),
            f"Change the {names}" + (pad if uneven else "."),
        )
    return resolved, structure


def _wrong_axes(leaf: Placeable, spec: P, mesh: Mesh) -> list[str]:
    """Return the reasons why a spec does not fit an array and a mesh, one per line."""
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
        text = leaf_text(leaf)
        line = f"{spec} has {len(spec)} entries, but {text} has {leaf.ndim} axes."
        problems.append(line)
    return problems


def _uneven_sizes(
    leaf: Placeable, spec: P, mesh: Mesh, *, local: bool = False
) -> list[str]:
    """Return a line for each axis with an indivisible size, with sizes that fit."""
    lines, where = [], ""
    if local and not is_global(leaf):
        mesh, where = mesh.local_mesh, " in this process"
    # Not strict: axes after the last entry are whole.
    for axis, (size, entry) in enumerate(zip(leaf.shape, spec, strict=False)):
        parts = num_shards(mesh, entry)
        if size % parts:
            over = " x ".join(f"`{name}`" for name in names_of([entry]))
            lines.append(
                f"axis {axis} has size {size}, which does not divide over the mesh "
                f"axis {over} of size {parts}{where}; the nearest that fits: "
                f"{fitting_sizes(size, parts)}."
            )
    return lines


def is_spec_leaf(spec: object) -> TypeGuard[P | None]:
    """Return whether a node in a tree of specs is a leaf: a spec, or None."""
    return spec is None or isinstance(spec, P)


def _specs_of(
    function: str, tree: PyTree, leaves: Sequence[PathLeaf], specs: SpecsLike
) -> list[P]:
    """Return the spec of each leaf; it is P() for a leaf that is not an array."""
    try:
        return _by_prefix(function, tree, leaves, specs)
    except _NoPrefix as error:
        why = str(error.__cause__).replace("broadcast_prefix prefix_tree", "specs")
    if _are_patterns(specs):
        return _by_pattern(function, leaves, specs)
    raise structure_error(
        function,
        f"`specs` is not a prefix of the tree: {' '.join(why.split()).rstrip('.')}.",
        "One `PartitionSpec` (or None) stands for all arrays below it; a mapping "
        'from patterns of paths, `{"head.weight": P("model")}`, fits every tree.',
    )


class _NoPrefix(Exception):
    """A tree of specs is not a prefix of the tree; the cause has the place."""


class _Entry:
    """A leaf of a tree of specs, wrapped because it may be None."""

    def __init__(self, spec: object):
        self.spec = spec


def _by_prefix(
    function: str, tree: PyTree, leaves: Sequence[PathLeaf], specs: PyTree
) -> list[P]:
    entries = jtu.tree_map(_Entry, specs, is_leaf=is_spec_leaf)
    try:
        whole = jax.tree.broadcast(entries, tree)
    except ValueError as error:
        raise _NoPrefix from error
    exact = {path for path, _ in jtu.tree_flatten_with_path(entries)[0]}
    found = []
    both = zip(leaves, jtu.tree_flatten_with_path(whole)[0], strict=True)
    for at, (path, entry) in both:
        spec = P()
        if is_placeable(at.leaf):
            place = f"specs` for `{at.name}" if at.name else "specs"
            spec = _as_spec(function, place, entry.spec)
            spec = spec if path in exact else _cut(spec, at.leaf)
        found.append(spec)
    return found


def _cut(spec: P, leaf: Placeable) -> P:
    """Truncate a spec shared by several arrays: a bias has fewer axes than a weight."""
    return P(*tuple(spec)[: leaf.ndim])


def _are_patterns(specs: PyTree) -> TypeGuard[Mapping[str, P | None]]:
    return isinstance(specs, Mapping) and all(
        isinstance(key, str) and is_spec_leaf(spec) for key, spec in specs.items()
    )


def _by_pattern(
    function: str, leaves: Sequence[PathLeaf], specs: Mapping[str, P | None]
) -> list[P]:
    """Return the spec of each leaf: that of a pattern that matches it or a parent."""
    arrays = [at for at in leaves if is_placeable(at.leaf)]
    paths = [path for at in arrays for path in at.paths]
    check_matched(function, specs, paths, "array", below=True)
    placeable = (is_placeable(at.leaf) for at in leaves)
    both = zip(leaves, placeable, strict=True)
    return [_of_patterns(function, at, specs) if good else P() for at, good in both]


def _of_patterns(function: str, at: PathLeaf, specs: Mapping[str, P | None]) -> P:
    """Return the spec of an array, which must be the same for stages stacked in it."""
    found: dict[P, str] = {}
    for path in at.paths:
        matched = [p for p in specs if matches(p, path, below=True)]
        for pattern in matched:
            spec = specs[pattern] or P()
            spec = spec if matches(pattern, path) else _cut(spec, at.leaf)
            found.setdefault(spec, f"`{pattern}` for `{path}`: {spec}")
        if not matched:
            found.setdefault(P(), f"no pattern for `{path}`: {P()}")
    if len(found) > 1:
        raise value_error(
            function,
            f"patterns in `specs` disagree about `{at.name}`:{bullets(found.values())}",
            "Let one pattern match each array, for example by naming it in full, with "
            "`*` in the place of a position. Stages that are stacked in one array have "
            "one spec, which begins with the axis of the stages.",
        )
    return next(iter(found), P())


def _as_spec(function: str, argument: str, spec: object) -> P:
    if is_spec_leaf(spec):
        return P() if spec is None else spec
    raise type_error(
        function,
        f"`{argument}` is {describe_value(spec)}.",
        "Give a `jax.sharding.PartitionSpec`, as in `P('data', None)`, or None for a "
        "copy on every device. For specs by a function of the arrays, give "
        "`jax.tree.map(f, equinox.filter(tree, equinox.is_array))`.",
    )
