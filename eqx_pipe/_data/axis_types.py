"""The kinds of mesh axes that arrays carry in their types.

Explicit axes are part of an array's type, and a program takes one kind only. Ours are
written for automatic axes, whatever the user's meshes have: arrays change at the
boundary, which moves no data.
"""

import jax
import jax.tree_util as jtu
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from .._sharding.mesh import with_types
from .._types import PyTree


def auto_mesh(sharding: NamedSharding) -> Mesh:
    """The mesh of a sharding with automatic axes, as our programs use it."""
    assert isinstance(sharding.mesh, Mesh)
    return with_types(sharding.mesh, AxisType.Auto)


def is_explicit(mesh: Mesh | AbstractMesh) -> bool:
    """Whether any of its axes are explicit."""
    return AxisType.Explicit in mesh.axis_types


def with_auto_axes(tree: PyTree) -> PyTree:
    """Arrays of explicit meshes on the same meshes with automatic axes."""
    return with_axis_types(tree, None)


def with_axis_types(tree: PyTree, types: tuple[AxisType, ...] | None) -> PyTree:
    """Arrays that lie on meshes of so many axes, with axes of these kinds.

    `None` stands for automatic axes, however many.
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
