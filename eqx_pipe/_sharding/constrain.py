"""Constraints on shardings inside a program, by logical names."""

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.sharding import PartitionSpec as P

from .._errors import value_error
from .._tree import leaf_text
from .mesh import Placeable, Tree, constrain_to, is_manual, is_placeable, mesh_like
from .rules import LogicalAxis, current_rules
from .specs import resolve


def constrain(x: Tree, *logical: LogicalAxis) -> Tree:
    """Constrain how an array inside a program is split, by logical names.

    It has an effect under `with rules.on(mesh):`, and is the identity
    elsewhere, so a model with constraints also runs where there are no rules. Use it
    inside `jit`; outside, the array is moved. It passes through `grad` and `vmap` (the
    axis that `vmap` takes away is left to the compiler), and does nothing inside a
    `shard_map`, where every device has its part already.

    **Arguments:**

    - `x`: an array; of a pytree all arrays are constrained alike, numbers and other
        leaves pass untouched.
    - `logical`: one logical name per axis, or `None` for an axis that is not split.

    **Returns:** `x`.

    **Raises:** `ValueError` if the names do not fit the rules or the array, or a size
    does not divide by the mesh axes that split it; names leaf, sizes and axes.

    **Laws:** values change at most by rounding.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> ep.sharding.constrain(jnp.ones(3), "batch").shape
        (3,)
    """
    current = current_rules()
    if current is None or is_manual():
        return x
    rules, mesh = current

    def spec_of(path: str, leaf: Placeable) -> P:
        if len(logical) == leaf.ndim:
            return P(*logical)
        place = f"`{path}`: " if path else ""
        raise value_error(
            "sharding.constrain",
            f"{place}{leaf_text(leaf)} has {leaf.ndim} axes, but {len(logical)} names "
            "are given.",
            "Give one name per axis, and None for an axis that stays whole.",
        )

    arrays, rest = eqx.partition(x, is_placeable)
    resolved, structure = resolve("sharding.constrain", arrays, mesh, spec_of, rules)
    placed = [
        constrain_to(jnp.asarray(leaf), mesh_like(mesh, leaf), sharding.spec)
        for _, leaf, sharding in resolved
        if sharding is not None
    ]
    return eqx.combine(jtu.tree_unflatten(structure, placed), rest)
