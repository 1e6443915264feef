"""Constraints on shardings inside a program, by logical names."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from .._errors import bullets, value_error
from .._tree import leaf_text
from .mesh import Placeable, Tree, constrain_to, is_manual, is_placeable, mesh_like
from .paths import path_leaves
from .rules import LogicalAxis, current_rules
from .specs import uneven_sizes, wrong_axes


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
    spec, problems = rules.resolve(logical)
    arrays, rest = eqx.partition(x, is_placeable)
    if not problems:
        for at in path_leaves(arrays)[0]:
            prefix = f"`{at.name}`: " if at.name else ""
            problems += [prefix + line for line in _misfits(at.leaf, spec, mesh)]
    if problems:
        names = ", ".join(map(repr, logical))
        raise value_error(
            "sharding.constrain",
            f"({names}) does not fit on the mesh {dict(mesh.shape)}:"
            + bullets(problems),
            "Give one name per axis; name None, or add rules, for what stays "
            "whole; or make sizes fit with `eqx_pipe.sharding.pad_to`.",
        )

    def one(leaf: Placeable) -> jax.Array:
        return constrain_to(jnp.asarray(leaf), mesh_like(mesh, leaf), spec)

    return eqx.combine(jtu.tree_map(one, arrays), rest)


def _misfits(leaf: Placeable, spec: P, mesh: Mesh) -> list[str]:
    if len(spec) != leaf.ndim:
        return [
            f"{leaf_text(leaf)} has {leaf.ndim} axes, but {len(spec)} names are given."
        ]
    return wrong_axes(leaf, spec, mesh) or uneven_sizes(leaf, spec, mesh)
