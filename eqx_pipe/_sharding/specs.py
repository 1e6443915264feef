"""From specs to one sharding per array, or to one error for all."""

from typing import Any, NamedTuple

import jax.tree_util as jtu
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .._errors import nearest, value_error
from .._tree import leaf_text
from .._types import PyTree, PyTreeDef
from .leaves import Placeable, is_global, is_placeable
from .mesh import check_mesh, names_of, num_shards
from .prefix import SpecsLike, pair
from .rules import AxisRules, RulesLike, as_rules


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
            spec, wrong = _mesh_spec(leaf, spec, known)
            wrong = wrong or wrong_axes(leaf, spec, mesh)
            if divide and not wrong:
                wrong = uneven_sizes(leaf, spec, mesh, local=local)
                uneven = uneven or bool(wrong)
            sharding = None if wrong else NamedSharding(mesh, spec)
        problems += [f"`{name}`: {line}" if name else line for line in wrong]
        resolved.append(LeafSharding(name, leaf, sharding))
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise value_error(
            function,
            "these specs do not fit the arrays and the mesh "
            f"{dict(mesh.shape)}:{listed}\n",
            "Change the specs or the sizes; `eqx_pipe.pad_to` pads arrays to sizes "
            "that fit."
            if uneven
            else "Change the specs.",
        )
    return resolved, structure


def _mesh_spec(
    leaf: Placeable, spec: P, rules: AxisRules | None
) -> tuple[P, list[str]]:
    """The spec in names of mesh axes, and what is wrong with the names it has."""
    spec = spec if leaf.ndim else P()  # what has no axes is never split
    return (spec, []) if rules is None else rules.resolve(tuple(spec))


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
        problems.append(too_long(leaf, spec))
    return problems


def too_long(leaf: Placeable, spec: P) -> str:
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
    """One spec for each array of the output of `sharded`."""
    paired, structure = pair("sharded", struct, specs)
    problems = [
        f"\n- {f'`{name}` of the output' if name else 'the output'}: "
        + too_long(leaf, spec)
        for name, leaf, spec in paired
        if len(spec) > leaf.ndim
    ]
    if problems:
        raise value_error(
            "sharded",
            f"`out_specs` does not fit the stage's output:{''.join(problems)}\n",
            "Give at most one entry for each axis.",
        )
    return jtu.tree_unflatten(structure, [spec for _, _, spec in paired])
