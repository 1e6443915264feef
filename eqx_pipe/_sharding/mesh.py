"""Meshes and arrays on them, with both kinds of axes.

JAX has automatic axes, for which the compiler propagates shardings, and explicit axes,
for which shardings are part of an array's type. Both work: the program depends on the
types of the arrays, not on the kind of the user's mesh.
"""

import functools as ft
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from .._mesh_context import is_staged
from .._types import PyTree

MeshAxes: TypeAlias = str | tuple[str, ...] | None
"""The mesh axis, or axes, over which an axis of an array is split; or None."""

Placeable: TypeAlias = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
"""An array or its struct; Python numbers pass through all functions."""

Tree = TypeVar("Tree")
"""A pytree that is returned with the same structure and other shardings."""


def wraps_function(fun: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate a function like `functools.wraps(fun)`, but never with a Module.

    For a Module such as `eqx.filter_value_and_grad(fun)` it uses the function inside:
    Equinox warns about functions that hold the arrays of a Module as an attribute.
    """
    return ft.wraps(inspect.unwrap(fun))


def is_placeable(leaf: object) -> TypeGuard[Placeable]:
    """Return whether a leaf is an array, of JAX or NumPy, that devices can hold."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUMm"
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def is_global(leaf: object) -> bool:
    """Return whether an array is already on the devices of several processes."""
    if isinstance(leaf, Tracer):  # inside `jit` an array is whole
        return True
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def numpy_as_jax(tree: PyTree) -> PyTree:
    """Convert NumPy arrays in the tree to JAX arrays; Python numbers do not change."""
    return jtu.tree_map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, tree
    )


def names_of(spec: Iterable[object]) -> list[str]:
    """Return the mesh axes in a spec, in order, with repetitions."""
    # An entry may also be None, or `PartitionSpec.UNCONSTRAINED`.
    entries = ([entry] if isinstance(entry, str) else entry for entry in spec)
    return [
        name for entry in entries if isinstance(entry, list | tuple) for name in entry
    ]


def num_shards(mesh: Mesh | AbstractMesh, entry: object) -> int:
    """Return the number of parts into which an entry of a spec splits an axis."""
    return math.prod(mesh.shape[name] for name in names_of([entry]))


def fitting_sizes(size: int, parts: int) -> str:
    """Return the multiples of `parts` nearest to a size, for a message."""
    below, above = size // parts * parts, -(-max(size, 1) // parts) * parts
    return f"{below} or {above}" if below else f"{above}"


def with_types(mesh: Mesh, kind: AxisType) -> Mesh:
    """Return a mesh of the same devices and names, with axes of one kind."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(kind,) * mesh.devices.ndim)


def mesh_like(mesh: Mesh, *leaves: object) -> Mesh:
    """Return `mesh` with the kind of axes of these arrays and of the context.

    Explicit axes are part of the arrays' types, and cannot be mixed with others.
    """
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [_mesh_of(leaf) for leaf in leaves if isinstance(leaf, jax.Array)]
    explicit = [m for m in meshes if AxisType.Explicit in m.axis_types]
    for other in explicit:
        if other.axis_names == mesh.axis_names:  # may have both kinds
            return Mesh(mesh.devices, mesh.axis_names, axis_types=other.axis_types)
    return with_types(mesh, AxisType.Explicit if explicit else AxisType.Auto)


def _mesh_of(x: Array) -> AbstractMesh:
    """Return the mesh in the type of `x`; it may be empty."""
    return jax.typeof(x).sharding.mesh


@ft.partial(jax.jit, static_argnums=1)
def _constrained(x: Array, sharding: NamedSharding) -> Array:
    return jax.lax.with_sharding_constraint(x, sharding)


def constrain_to(x: Array, mesh: Mesh, spec: P) -> Array:
    """Constrain `x` to a spec while tracing; otherwise move it.

    The mesh must have the same kind of axes as the arrays; see `mesh_like`.
    """
    sharding = NamedSharding(mesh, spec)
    explicit = AxisType.Explicit in mesh.axis_types
    if not isinstance(x, Tracer):
        return jax.device_put(x, sharding)
    if not (explicit or is_staged()):
        # `device_put` would apply the spec's first entry to the axis of an outer
        # `vmap`; it is used only to copy whole arrays to the mesh.
        try:
            return _constrained(x, sharding)
        except ValueError:  # it is on other devices
            return _constrained(jax.device_put(x, NamedSharding(mesh, P())), sharding)
    if explicit:
        if not names_of(spec) and not _mesh_of(x).axis_names:
            # It is already replicated. A `reshard` would change its type, and then its
            # cotangent would not have the type of the argument.
            return x
        x = jax.sharding.reshard(x, _part(sharding, AxisType.Explicit))
        if AxisType.Auto not in mesh.axis_types:
            return x
        sharding = _part(sharding, AxisType.Auto)
    return jax.lax.with_sharding_constraint(x, sharding)


def _part(sharding: NamedSharding, kind: AxisType) -> NamedSharding:
    """Return the part of a sharding on axes of one kind, which one function applies."""
    mesh = sharding.mesh
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))

    def one(entry: MeshAxes) -> MeshAxes:
        names = tuple(name for name in names_of([entry]) if kinds[name] == kind)
        return names or None

    return NamedSharding(mesh, P(*map(one, sharding.spec)))
