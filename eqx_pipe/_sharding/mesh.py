"""Meshes: checks, and the one place that knows about kinds of mesh axes.

JAX has automatic axes, where the compiler spreads shardings, and explicit ones, where
shardings are part of an array's type. Both are accepted: what is computed depends on
whether the arrays at hand have such types, not on the kind of mesh that was given.
"""

import functools as ft
import math
from collections.abc import Iterable
from typing import TypeAlias

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from .._errors import value_error
from .._mesh_context import is_staged

MeshAxes: TypeAlias = str | tuple[str, ...] | None
"""The mesh axis that an axis of an array is split over, or several, or none."""


def names_of(spec: Iterable[object]) -> list[str]:
    """The mesh axes that a spec mentions, in order, with repetitions."""
    # An entry may also be None, or `PartitionSpec.UNCONSTRAINED`.
    entries = ([entry] if isinstance(entry, str) else entry for entry in spec)
    return [
        name for entry in entries if isinstance(entry, list | tuple) for name in entry
    ]


def num_shards(mesh: Mesh | AbstractMesh, entry: object) -> int:
    """Into how many parts one entry of a spec splits an axis."""
    return math.prod(mesh.shape[name] for name in names_of([entry]))


def with_types(mesh: Mesh, kind: AxisType) -> Mesh:
    """The same devices and names, with axes of one kind."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(kind,) * mesh.devices.ndim)


def mesh_like(mesh: Mesh, *leaves: object) -> Mesh:
    """`mesh` with the kind of axes that these arrays, and the context, have.

    Explicit axes are part of the arrays' types, and cannot be mixed with others.
    """
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [_own_mesh(leaf) for leaf in leaves if isinstance(leaf, jax.Array)]
    explicit = [m for m in meshes if AxisType.Explicit in m.axis_types]
    for found in explicit:
        if found.axis_names == mesh.axis_names:  # of both kinds, perhaps
            return Mesh(mesh.devices, mesh.axis_names, axis_types=found.axis_types)
    return with_types(mesh, AxisType.Explicit if explicit else AxisType.Auto)


def _own_mesh(x: Array) -> AbstractMesh:
    """The mesh that stands in the type of `x`, an empty one if there is none."""
    return jax.typeof(x).sharding.mesh


def check_context(function: str, mesh: Mesh) -> None:
    """Raises a `ValueError` inside a `jax.set_mesh` of another mesh than `mesh`."""
    context = jax.sharding.get_abstract_mesh()
    if not context.empty and dict(context.shape) != dict(mesh.shape):
        raise value_error(
            function,
            f"it runs on the mesh {dict(mesh.shape)}, and was called under "
            f"`jax.set_mesh` with the mesh {dict(context.shape)}.",
            "Call it outside of that context, or set the mesh that it was built with.",
        )


def is_manual() -> bool:
    """Whether this is traced inside a `shard_map`."""
    return AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types


@ft.partial(jax.jit, static_argnums=1)
def _constrained(x: Array, sharding: NamedSharding) -> Array:
    return jax.lax.with_sharding_constraint(x, sharding)


def constrain_to(x: Array, mesh: Mesh, spec: P) -> Array:
    """`x` constrained to a spec while tracing, or moved there if not.

    The kind of the mesh's axes must be that of the arrays: see `mesh_like`.
    """
    sharding = NamedSharding(mesh, spec)
    explicit = AxisType.Explicit in mesh.axis_types
    if not isinstance(x, Tracer):
        return jax.device_put(x, sharding)
    if not (explicit or is_staged()):
        # `device_put` would take the spec's first axis for that of an outer `vmap`;
        # it is used only to bring whole arrays to the mesh.
        try:
            return _constrained(x, sharding)
        except ValueError:  # it lives on other devices
            return _constrained(jax.device_put(x, NamedSharding(mesh, P())), sharding)
    if explicit:
        if not names_of(spec) and not _own_mesh(x).axis_names:
            # It is whole on every device as it stands. A `reshard` would change its
            # type, and then its cotangent would not have the type of the argument.
            return x
        x = jax.sharding.reshard(x, _part(sharding, AxisType.Explicit))
        if AxisType.Auto not in mesh.axis_types:
            return x
        sharding = _part(sharding, AxisType.Auto)
    return jax.lax.with_sharding_constraint(x, sharding)


def _part(sharding: NamedSharding, kind: AxisType) -> NamedSharding:
    """What a sharding says of axes of one kind: each has a function of its own."""
    mesh = sharding.mesh
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))

    def one(entry: MeshAxes) -> MeshAxes:
        names = tuple(name for name in names_of([entry]) if kinds[name] == kind)
        return names or None

    return NamedSharding(mesh, P(*map(one, sharding.spec)))
