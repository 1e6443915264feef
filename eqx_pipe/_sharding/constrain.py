"""Constraints on shardings inside a program, by logical names."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from .._errors import value_error
from .._tree import leaf_text, leaves_with_names
from .mesh import Tree, constrain_to, is_placeable, mesh_like
from .rules import LogicalAxis, current_rules
from .specs import resolve


def constrain(x: Tree, *logical: LogicalAxis) -> Tree:
    """Constrain the sharding of an array inside a program by logical axis names.

    It takes effect under `with rules.on(mesh):`, and is the identity elsewhere, so a
    model with constraints also runs without rules. Use it inside `jit`; outside, it
    moves the array. It works under `grad` and `vmap` (the compiler chooses the sharding
    of the mapped axis), and does nothing inside a `shard_map`, where every device
    already has its part.

    **Arguments:**

    - `x`: an array, or a pytree, in which all arrays get the same constraint, and
        numbers and other leaves pass through unchanged.
    - `logical`: one logical name per axis of the arrays, or `None` for an axis that is
        replicated.

    **Returns:** `x`, with the constraint.

    **Raises:** `ValueError` if the names do not fit the rules or the array, or a size
    is not divisible by the mesh axes that split it; the error names the leaf, sizes and
    axes.

    **Laws:** values change at most by rounding.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> ep.sharding.constrain(jnp.ones(3), "batch").shape
        (3,)
    """
    current = current_rules()
    in_shard_map = AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types
    if current is None or in_shard_map:
        return x
    rules, mesh = current
    arrays, rest = eqx.partition(x, is_placeable)
    for name, leaf in leaves_with_names(arrays):
        if len(logical) != leaf.ndim:
            place = f"`{name}`: " if name else ""
            raise value_error(
                "sharding.constrain",
                f"{place}{leaf_text(leaf)} has {leaf.ndim} axes, but {len(logical)} "
                "names are given.",
                "Give one name per axis, and None for an axis that is replicated.",
            )
    spec = P(*logical)
    resolved, structure = resolve("sharding.constrain", arrays, mesh, spec, rules)
    placed = [
        constrain_to(jnp.asarray(leaf), mesh_like(mesh, leaf), sharding.spec)
        for _, leaf, sharding in resolved
        if sharding is not None
    ]
    return eqx.combine(jtu.tree_unflatten(structure, placed), rest)
