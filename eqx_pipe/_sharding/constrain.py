"""Constraints on shardings inside a program, by logical names."""

import jax.numpy as jnp
import jax.tree_util as jtu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from .._errors import bullets, value_error
from .._tree import leaf_text, leaves_with_names
from .leaves import Placeable, Tree, is_placeable
from .mesh import constrain_to, is_manual, mesh_like
from .rules import LogicalAxis, current_rules
from .specs import uneven_sizes, wrong_axes


def constrain(x: Tree, *logical: LogicalAxis) -> Tree:
    """Says how an array inside a program is split, by logical names.

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
    spec, problems = rules.resolve(logical)
    found = list(problems)
    if not problems:
        for name, leaf in leaves_with_names(x):
            if is_placeable(leaf):
                prefix = f"`{name}`: " if name else ""
                found += [prefix + line for line in _misfits(leaf, spec, mesh)]
    if found:
        names = ", ".join(map(repr, logical))
        raise value_error(
            "sharding.constrain",
            f"({names}) does not fit on the mesh {dict(mesh.shape)}:{bullets(found)}",
            "Give one name per axis; name None, or add rules, for what stays "
            "whole; or make sizes fit with `eqx_pipe.sharding.pad_to`.",
        )
    return jtu.tree_map(
        lambda leaf: (
            constrain_to(jnp.asarray(leaf), mesh_like(mesh, leaf), spec)
            if is_placeable(leaf)
            else leaf
        ),
        x,
    )


def _misfits(leaf: Placeable, spec: P, mesh: Mesh) -> list[str]:
    if len(spec) != leaf.ndim:
        return [
            f"{leaf_text(leaf)} has {leaf.ndim} axes, but {len(spec)} names are given."
        ]
    return wrong_axes(leaf, spec, mesh) or uneven_sizes(leaf, spec, mesh)
