"""Constraints on shardings inside a program, by logical names."""

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from .._errors import bullets, type_error, value_error
from .._tree import leaf_text, leaves_with_names
from .leaves import Placeable, Tree, is_placeable
from .mesh import check_mesh, constrain_to, is_manual, mesh_like
from .rules import AxisRules, LogicalAxis, RulesLike, as_rules
from .specs import uneven_sizes, wrong_axes

# The one ambient setting of the package, read while tracing only: a constraint deep
# inside a model cannot be handed the rules. `jax.jit` knows of it: it belongs to the
# key of its cache, so a program traced under other rules is never used.
_RULES = jax.make_user_context(None)


@contextlib.contextmanager
def axis_rules(rules: RulesLike, mesh: Mesh) -> Iterator[AxisRules]:
    """Gives `constrain` its rules and mesh, for what is traced in the `with` block.

    A function under `jit` is traced again under other rules; the blocks nest, and the
    innermost counts.

    **Arguments:**

    - `rules`: `AxisRules`, or a mapping or pairs that make them.
    - `mesh`: a `jax.sharding.Mesh`.

    **Returns:** a context manager, which gives the rules as `AxisRules`.

    **Raises:**

    - `TypeError` if these are no rules or no mesh.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> f = jax.jit(lambda x: ep.constrain(2 * x, "batch", None))
        >>> with ep.axis_rules({"batch": "data"}, mesh):
        ...     y = f(jnp.ones((16, 3)))
        >>> y.sharding.num_devices == len(jax.devices())
        True
    """
    check_mesh("axis_rules", mesh)
    known = as_rules("axis_rules", rules)
    if known is None:
        raise type_error(
            "axis_rules",
            "`rules` is None.",
            'Give `AxisRules`, or a mapping such as `{"batch": "data"}`.',
        )
    with _RULES((known, mesh)):
        yield known


def current_rules() -> tuple[AxisRules, Mesh] | None:
    """The rules and mesh of the `axis_rules` around, if there are any."""
    return _RULES.value


def constrain(x: Tree, *logical: LogicalAxis) -> Tree:
    """Says how an array inside a program is split, by logical names.

    It has an effect under `with axis_rules(rules, mesh):`, and is the identity
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
        >>> ep.constrain(jnp.ones(3), "batch").shape
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
            "constrain",
            f"({names}) does not fit on the mesh {dict(mesh.shape)}:{bullets(found)}",
            "Give one name per axis; name None, or add rules, for what stays "
            "whole; or make sizes fit with `eqx_pipe.pad_to`.",
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
