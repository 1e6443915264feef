"""Meshes and the arrays on them, and the one place that knows both kinds of axes.

JAX has automatic axes, where the compiler spreads shardings, and explicit ones, where
shardings are part of an array's type. Both are accepted: the program depends on the
types of the arrays at hand, not on the kind of mesh that the user gave.
"""

import functools as ft
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from .._errors import bullets, value_error
from .._mesh_context import is_staged
from .._tree import is_key_array, leaf_text, leaves_with_names
from .._types import PyTree

MeshAxes: TypeAlias = str | tuple[str, ...] | None
"""The mesh axis that an axis of an array is split over, or several, or none."""

Placeable: TypeAlias = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
"""An array or its struct; Python numbers pass through all functions."""

Tree = TypeVar("Tree")
"""A pytree that comes out as it went in, but for where its arrays live."""


def wraps_function(fun: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate a function like `functools.wraps(fun)`, but never with a Module.

    Of one, such as `eqx.filter_value_and_grad(fun)`, it is the function inside: Equinox
    warns of functions that hold the numbers of a Module as an attribute.
    """
    return ft.wraps(inspect.unwrap(fun))


def is_placeable(leaf: object) -> TypeGuard[Placeable]:
    """Return whether a leaf is an array, of JAX or NumPy, that devices can hold."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUMm"
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def is_global(leaf: object) -> bool:
    """Return whether an array lives on the devices of several processes already."""
    if isinstance(leaf, Tracer):  # inside `jit` an array is whole
        return True
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def draws_by_sharding(leaf: Any) -> bool:
    """Return whether it is a key whose draws depend on how an array is split.

    XLA makes the numbers of the `rbg` kinds on each device by itself.
    """
    return is_key_array(leaf) and "rbg" in str(jr.key_impl(leaf))


def numpy_as_jax(tree: PyTree) -> PyTree:
    """Return the tree with JAX arrays for NumPy's; numbers stay what they are."""
    return jtu.tree_map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, tree
    )


def names_of(spec: Iterable[object]) -> list[str]:
    """Return the mesh axes that a spec mentions, in order, with repetitions."""
    # An entry may also be None, or `PartitionSpec.UNCONSTRAINED`.
    entries = ([entry] if isinstance(entry, str) else entry for entry in spec)
    return [
        name for entry in entries if isinstance(entry, list | tuple) for name in entry
    ]


def num_shards(mesh: Mesh | AbstractMesh, entry: object) -> int:
    """Return the number of parts into which an entry of a spec splits an axis."""
    return math.prod(mesh.shape[name] for name in names_of([entry]))


def fitting_sizes(size: int, parts: int) -> str:
    """Return the multiples of `parts` next to a size, for a message."""
    below, above = size // parts * parts, -(-max(size, 1) // parts) * parts
    return f"{below} or {above}" if below else f"{above}"


def common_size(function: str, what: str, tree: PyTree, axis: int, cure: str) -> int:
    """Return the size that all arrays of `tree`, called `what`, have along an axis."""
    sizes = {}
    for name, leaf in leaves_with_names(tree):
        fits = -leaf.ndim <= axis < leaf.ndim
        sizes[name or "."] = leaf.shape[axis] if fits else leaf_text(leaf)
    found = list(dict.fromkeys(sizes.values()))
    if len(found) == 1 and not isinstance(found[0], str):
        return found[0]
    lines = bullets(f"`{name}`: {size}" for name, size in sizes.items())
    raise value_error(
        function,
        f"the arrays of {what} have no common size along axis {axis}"
        + (f":{lines}" if sizes else "; there are none."),
        cure,
    )


def with_types(mesh: Mesh, kind: AxisType) -> Mesh:
    """Return a mesh of the same devices and names, with axes of one kind."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(kind,) * mesh.devices.ndim)


def mesh_like(mesh: Mesh, *leaves: object) -> Mesh:
    """Return `mesh` with the kind of axes that these arrays, and the context, have.

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
    """Return the mesh in the type of `x`, an empty one if there is none."""
    return jax.typeof(x).sharding.mesh


def check_context(function: str, mesh: Mesh) -> None:
    """Raise a `ValueError` inside a `jax.set_mesh` of another mesh than `mesh`."""
    context = jax.sharding.get_abstract_mesh()
    if not context.empty and dict(context.shape) != dict(mesh.shape):
        raise value_error(
            function,
            f"it runs on the mesh {dict(mesh.shape)}, and was called under "
            f"`jax.set_mesh` with the mesh {dict(context.shape)}.",
            "Call it outside of that context, or set the mesh that it was built with.",
        )


def is_manual() -> bool:
    """Return whether this is traced inside a `shard_map`."""
    return AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types


@ft.partial(jax.jit, static_argnums=1)
def _constrained(x: Array, sharding: NamedSharding) -> Array:
    return jax.lax.with_sharding_constraint(x, sharding)


def constrain_to(x: Array, mesh: Mesh, spec: P) -> Array:
    """Constrain `x` to a spec while tracing, else move it there.

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
    """Return the part of a sharding for axes of one kind, each with its function."""
    mesh = sharding.mesh
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))

    def one(entry: MeshAxes) -> MeshAxes:
        names = tuple(name for name in names_of([entry]) if kinds[name] == kind)
        return names or None

    return NamedSharding(mesh, P(*map(one, sharding.spec)))
