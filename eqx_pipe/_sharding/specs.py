"""From a prefix tree of specs to one sharding per array, or to one error for all."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .._errors import StructureError, describe_value, message, nearest
from .._tree import join_path, leaf_text, path_name
from .._types import PyTree
from .mesh import check_mesh, names_of, num_shards
from .rules import AxisRules, as_rules


class Placed(NamedTuple):
    """One leaf with the place it is meant to have: none, if it is no array."""

    name: str
    leaf: Any
    sharding: NamedSharding | None


def is_placeable(leaf: Any) -> bool:
    """Whether a leaf is an array, of JAX or NumPy, that devices can hold."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUMm"
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def resolve(
    function: str,
    tree: PyTree,
    mesh: Mesh,
    specs: Any,
    rules: Any = None,
    *,
    divide: bool = True,
    local: bool = False,
) -> tuple[list[Placed], Any]:
    """Every leaf of `tree` with its sharding, and the structure of `tree`.

    Whatever does not fit is told in one error. With `divide=False` sizes need not.
    With `local` the arrays of one process are its part of a global array.
    """
    check_mesh(function, mesh)
    known = as_rules(function, rules)
    named, structure = _pair(function, tree, specs)
    placed, problems, sizes_fit = [], [], True
    for name, leaf, spec, exact in named:
        if not is_placeable(leaf):
            placed.append(Placed(name, leaf, None))
            continue
        spec, found = _mesh_spec(leaf, spec, exact, known)
        if not found:
            found = misfits(leaf, spec, mesh, divide=False)
        if not found and divide:
            found = misfits(leaf, spec, mesh, local=local)
            sizes_fit = sizes_fit and not found
        problems += [f"`{name}`: {p}" if name else p for p in found]
        sharding = None if found else NamedSharding(mesh, spec)
        placed.append(Placed(name, leaf, sharding))
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        sizes = dict(mesh.shape)
        raise ValueError(
            message(
                function,
                f"these specs do not fit the arrays and the mesh {sizes}:{listed}\n",
                "Change the specs."
                if sizes_fit
                else "Change the specs or the sizes; `eqx_pipe.pad_to` pads arrays to "
                "sizes that fit.",
            )
        )
    return placed, structure


def _mesh_spec(
    leaf: Any, spec: P, exact: bool, rules: AxisRules | None
) -> tuple[P, list[str]]:
    """The spec in names of mesh axes, cut to the leaf's rank where it is shared."""
    if leaf.ndim == 0 or not exact:
        spec = P(*tuple(spec)[: leaf.ndim])
    return (spec, []) if rules is None else rules.resolve(tuple(spec))


def misfits(
    leaf: Any, spec: P, mesh: Mesh, *, divide: bool = True, local: bool = False
) -> list[str]:
    """Why an array cannot be split by a spec of mesh axes, one line for each reason."""
    names = names_of(spec)
    problems = [
        f"the mesh has no axis `{name}`. {nearest(name, mesh.axis_names)}"
        for name in dict.fromkeys(names)
        if name not in mesh.shape
    ]
    problems += [
        f"the mesh axis `{name}` stands twice in {spec}; an axis of the mesh can "
        "split one axis of an array."
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if len(spec) > leaf.ndim:
        problems.append(
            f"{spec} has {len(spec)} entries, but {leaf_text(leaf)} has "
            f"{leaf.ndim} axes."
        )
    if problems or not divide:
        return problems
    if local and not is_global(leaf):
        return _misfit_sizes(leaf.shape, spec, mesh.local_mesh, " in this process")
    return _misfit_sizes(leaf.shape, spec, mesh)


def is_global(leaf: Any) -> bool:
    """Whether an array is spread over several processes already."""
    if isinstance(leaf, Tracer):  # inside `jit` an array is whole
        return True
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def _misfit_sizes(
    shape: tuple[int, ...], spec: P, mesh: Mesh, where: str = ""
) -> list[str]:
    """One line for each axis whose size does not divide, with the nearest that do."""
    lines = []
    for axis, (size, entry) in enumerate(zip(shape, spec, strict=False)):
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


def output_specs(struct: PyTree, specs: Any) -> PyTree:
    """One spec for each array of the output of `sharded`."""
    named, structure = _pair("sharded", struct, specs)
    found, problems = [], []
    for name, leaf, spec, exact in named:
        spec = spec if exact else P(*tuple(spec)[: leaf.ndim])
        if len(spec) > leaf.ndim:
            place = f"`{name}` of the output" if name else "the output"
            problems.append(
                f"\n- {place}: {spec} has {len(spec)} entries, but {leaf_text(leaf)} "
                f"has {leaf.ndim} axes."
            )
        found.append(spec)
    if problems:
        raise ValueError(
            message(
                "sharded",
                f"`out_specs` does not fit the stage's output:{''.join(problems)}\n",
                "Give at most one entry for each axis.",
            )
        )
    return jtu.tree_unflatten(structure, found)


def is_spec_leaf(spec: Any) -> bool:
    """Whether a node in a tree of specs is a leaf: a spec, or None."""
    return spec is None or isinstance(spec, P)


def _pair(
    function: str, tree: PyTree, specs: Any
) -> tuple[list[tuple[str, Any, P, bool]], Any]:
    """Every leaf with its path, its spec, and whether the spec is its own."""
    leaves, structure = jtu.tree_flatten_with_path(tree)
    if callable(specs) and not isinstance(specs, eqx.Module):
        return _by_function(function, leaves, specs), structure
    spec_leaves, spec_structure = jtu.tree_flatten_with_path(
        specs, is_leaf=is_spec_leaf
    )
    try:
        parts = spec_structure.flatten_up_to(tree)
    except ValueError as error:
        raise StructureError(
            message(
                function,
                f"`specs` is not a prefix of the tree: {_mismatch(specs, tree, ())}.",
                "Give a spec for every part of the tree, in the same containers: one "
                "`PartitionSpec` (or None) stands for all arrays below it. A function "
                "`(path, leaf) -> spec` fits every tree.",
            )
        ) from error
    named = []
    for (spec_path, spec), part in zip(spec_leaves, parts, strict=True):
        below = jtu.tree_flatten_with_path(part)[0]
        exact = len(below) == 1 and below[0][0] == ()
        for path, leaf in below:
            if is_placeable(leaf):
                spec = _as_spec(function, f"specs{_suffix(spec_path)}", spec)
            own = spec if isinstance(spec, P) else P()
            prefix = path_name(spec_path)
            name = join_path(prefix, path_name(path)) if path else prefix
            named.append((name, leaf, own, exact))
    return named, structure


def _mismatch(specs: PyTree, tree: PyTree, path: tuple[Any, ...]) -> str:
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


def _children(tree: PyTree) -> dict[Any, Any] | None:
    """The parts of a container by their paths; `None` of a leaf."""
    if jtu.all_leaves([tree]):
        return None
    inner = jtu.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    return dict(inner[0])


def _suffix(path: tuple[Any, ...]) -> str:
    return f".{path_name(path)}" if path else ""


def _by_function(
    function: str, leaves: list[tuple[Any, Any]], specs: Callable[..., Any]
) -> list[tuple[str, Any, P, bool]]:
    both = _takes_two(specs)
    named = []
    for path, leaf in leaves:
        name, spec = path_name(path), P()
        if is_placeable(leaf):
            spec = specs(name, leaf) if both else specs(leaf)
            spec = _as_spec(function, f"specs(...)` for `{name}", spec)
        named.append((name, leaf, spec, True))
    return named


def _takes_two(fn: Callable[..., Any]) -> bool:
    """Whether a function needs a path and a leaf, not the leaf alone."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    needed = [
        p
        for p in signature.parameters.values()
        if p.kind in kinds and p.default is inspect.Parameter.empty
    ]
    return len(needed) == 2


def _as_spec(function: str, argument: str, spec: Any) -> P:
    if spec is None:
        return P()
    if isinstance(spec, P):
        return spec
    raise TypeError(
        message(
            function,
            f"`{argument}` is {describe_value(spec)}.",
            "Give a `jax.sharding.PartitionSpec`, as in `P('data', None)`, or None for "
            "a copy on every device.",
        )
    )
