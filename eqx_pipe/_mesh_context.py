"""JAX's mesh context: the current mesh, the kinds of axes, and tracing.

JAX has automatic axes, for which the compiler propagates shardings, and explicit axes,
for which shardings are part of an array's type.
"""

import contextlib
from contextlib import AbstractContextManager

import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from ._check import check_is
from ._types import PyTree

# `set_mesh` does not accept None.
NO_MESH = Mesh(np.empty((), object), ())
"""The mesh that JAX has if none is set."""


# The only ambient setting of the package, read only while tracing: rules cannot be
# passed to a constraint deep inside a model. It is part of the key of `jax.jit`'s
# cache, so a program traced under other rules is never used. For the same reason,
# creating it makes functions that were jitted before compile once more, so it is
# created by `import eqx_pipe`, not by the first use of a sharding.
RULES = jax.make_user_context(None)
"""The current sharding rules and their mesh; see `AxisRules.on`."""

IN_LANE = jax.make_user_context(None)
"""`"lane"` while `eqx_pipe.vmap` traces a lane, `"device"` if it has a mesh."""


def check_mesh(function: str, mesh: object) -> None:
    """Raise a `TypeError` unless `mesh` is a mesh of devices."""
    cure = "Give a `jax.sharding.Mesh`: `jax.make_mesh((4, 2), ('data', 'model'))`."
    check_is(function, "mesh", mesh, Mesh, cure)


def no_context() -> AbstractContextManager[object]:
    """Leave the user's `jax.set_mesh` for host work and the package's own programs.

    Inside a program that is being traced the context is kept.
    """
    if jax.sharding.get_abstract_mesh().empty or is_staged():
        return contextlib.nullcontext()
    try:
        return jax.set_mesh(NO_MESH)
    except ValueError:  # under `grad` or `vmap`
        return contextlib.nullcontext()


def is_staged() -> bool:
    """Return whether a compiled program is being traced, as inside `jit` or `scan`.

    `grad` and `vmap` alone compute eagerly.
    """
    # JAX has no public function for this. Operations on constants are traced only then.
    return isinstance(jax.lax.add(np.float32(0), np.float32(0)), Tracer)


def is_explicit(mesh: Mesh | AbstractMesh) -> bool:
    """Return whether any axis of a mesh is explicit."""
    return AxisType.Explicit in mesh.axis_types


def with_axis_types(tree: PyTree, types: tuple[AxisType, ...] | None = None) -> PyTree:
    """Return the tree with these types of mesh axes, for arrays on such meshes.

    Only arrays on meshes with this number of axes change. By default all axes become
    automatic.
    """

    def one(leaf: object) -> object:
        if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
            return leaf
        sharding = leaf.sharding
        if not isinstance(sharding, NamedSharding):
            return leaf
        mesh = sharding.mesh
        wanted = types or (AxisType.Auto,) * len(mesh.axis_names)
        if mesh.axis_types == wanted or len(wanted) != len(mesh.axis_names):
            return leaf
        assert isinstance(mesh, Mesh)  # a concrete array is on devices
        mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=wanted)
        return jax.device_put(leaf, NamedSharding(mesh, sharding.spec))

    return jtu.tree_map(one, tree)
