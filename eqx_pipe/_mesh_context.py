"""JAX's mesh context: which mesh is set, which kind of axes arrays have, what traces.

JAX has automatic axes, where the compiler spreads shardings, and explicit ones, where
shardings are part of an array's type.
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

# `set_mesh` takes no None.
NO_MESH = Mesh(np.empty((), object), ())
"""The mesh that JAX has where none is set."""


# The one ambient setting of the package, read while tracing only: a constraint deep
# inside a model cannot be handed the rules. `jax.jit` knows of it: it belongs to the
# key of its cache, so a program traced under other rules is never used. For the same
# reason each function that was jitted before is compiled once more when it is made,
# which `import eqx_pipe` does rather than the first use of a sharding.
RULES = jax.make_user_context(None)
"""The sharding rules that are in force, and their mesh; see `AxisRules.on`."""


def check_mesh(function: str, mesh: object) -> None:
    """Raise a `TypeError` unless `mesh` is a mesh of devices."""
    cure = "Give a `jax.sharding.Mesh`: `jax.make_mesh((4, 2), ('data', 'model'))`."
    check_is(function, "mesh", mesh, Mesh, cure)


def no_context() -> AbstractContextManager[object]:
    """Leave the user's `jax.set_mesh` for work on the host and programs of our own.

    A compiled program that is traced around it keeps its context.
    """
    if jax.sharding.get_abstract_mesh().empty or is_staged():
        return contextlib.nullcontext()
    try:
        return jax.set_mesh(NO_MESH)
    except ValueError:  # under `grad` or `vmap`
        return contextlib.nullcontext()


def is_staged() -> bool:
    """Return whether this is traced for a compiled program: inside `jit` or `scan`.

    `grad` and `vmap` alone compute as they go.
    """
    # JAX has no public question for it. A constant is traced only where all is.
    return isinstance(jax.lax.add(np.float32(0), np.float32(0)), Tracer)


def is_explicit(mesh: Mesh | AbstractMesh) -> bool:
    """Return whether any of its axes are explicit."""
    return AxisType.Explicit in mesh.axis_types


def with_axis_types(tree: PyTree, types: tuple[AxisType, ...] | None = None) -> PyTree:
    """Return arrays that lie on meshes of as many axes, with axes of these kinds.

    By default with automatic axes, however many.
    """

    def one(leaf: object) -> object:
        if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
            return leaf
        own = leaf.sharding
        if not isinstance(own, NamedSharding):
            return leaf
        wanted = types or (AxisType.Auto,) * len(own.mesh.axis_names)
        if own.mesh.axis_types == wanted or len(wanted) != len(own.mesh.axis_names):
            return leaf
        assert isinstance(own.mesh, Mesh)  # an array at hand lies on devices
        mesh = Mesh(own.mesh.devices, own.mesh.axis_names, axis_types=wanted)
        return jax.device_put(leaf, NamedSharding(mesh, own.spec))

    return jtu.tree_map(one, tree)
