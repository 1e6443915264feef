"""The shardings of a function's inputs, from the constraints inside it."""

import itertools as it
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled, Traced
from jaxtyping import Array

from .._jaxprs.jaxpr import equations
from .._types import PyTree
from .leaves import is_placeable

_ANNOTATIONS = "sharding_constraint", "shard_map", "reshard"

Function = Callable[[PyTree, PyTree], PyTree]
"""A function of parameters and a batch."""


class Program(NamedTuple):
    """A compiled function and where its inputs have to be.

    `shardings` are those of the parameters and of the batch, `None` for leaves that are
    no arrays.
    """

    compiled: Compiled
    shardings: tuple[PyTree, PyTree]
    others: PyTree
    anchor: Array

    def __call__(self, params: PyTree, batch: PyTree) -> PyTree:
        arrays = eqx.filter((params, batch), is_placeable)
        placed = jtu.tree_leaves(jax.device_put(arrays, self.shardings))
        return eqx.combine(self.compiled(self.anchor, *placed), self.others)


def struct_of(tree: PyTree) -> PyTree:
    """Shapes and dtypes in place of arrays, without their present shardings."""

    def strip(leaf: Any) -> Any:
        if not is_placeable(leaf):
            return leaf
        host = isinstance(leaf, np.ndarray | np.generic)
        # Of the host's dtypes JAX has no 64-bit ones, as long as they are off.
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype) if host else leaf.dtype
        return jax.ShapeDtypeStruct(leaf.shape, dtype)

    return jtu.tree_map(strip, tree)


def cache_key(struct: PyTree) -> Hashable:
    """What distinguishes one program from another."""
    leaves, structure = jtu.tree_flatten(struct)
    return structure, tuple(
        (leaf.shape, str(leaf.dtype)) if is_placeable(leaf) else leaf for leaf in leaves
    )


def derive(fun: Function, struct: tuple[PyTree, PyTree], mesh: Mesh) -> Program:
    """Compiles `fun(params, batch)`, `struct` being both, and reads its shardings.

    The inputs are lowered without shardings, so the compiler carries those of the
    constraints back to them. An additional input that has one tells it the mesh, and
    so the answer is in terms of the mesh.
    """
    dynamic, static = eqx.partition(struct, is_placeable)
    arrays, structure = jtu.tree_flatten(dynamic)
    others: list[PyTree] = []

    def flat(anchor: Array, *arrays: Array) -> PyTree:
        out = fun(*eqx.combine(jtu.tree_unflatten(structure, arrays), static))
        dynamic, rest = eqx.partition(out, eqx.is_array)
        others[:] = [rest]
        return dynamic

    whole = NamedSharding(mesh, P())
    # Inputs that `fun` does not read are kept: each has an entry in `input_shardings`.
    anchor = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
    traced = jax.jit(flat, keep_unused=True).trace(anchor, *arrays)
    compiled = None
    found: list[Sharding] = [whole] * len(arrays)
    if any(eqn.primitive.name in _ANNOTATIONS for eqn in equations(traced.jaxpr)):
        compiled, derived = _compiled(traced, flat, arrays, mesh)
        found = [_even(s, x, whole) for s, x in zip(derived, arrays, strict=True)]
        if any(a is not b for a, b in zip(derived, found, strict=True)):
            compiled = None
    else:
        warnings.warn(
            "`eqx_pipe.parallelize`: nothing inside `fun` says how an array is split, "
            "so every device gets a copy of all inputs. Use `eqx_pipe.constrain(x, "
            '"batch", ...)` in `fun` and give `rules=`.',
            stacklevel=4,
        )
    if compiled is None:
        jitted = jax.jit(flat, keep_unused=True, in_shardings=(whole, *found))
        compiled = jitted.lower(anchor, *arrays).compile()
    start = jax.device_put(np.zeros((), np.float32), whole)
    return Program(compiled, jtu.tree_unflatten(structure, found), others[0], start)


def mesh_inside(fun: Function, struct: tuple[PyTree, PyTree]) -> Mesh | None:
    """The mesh of the first constraint inside `fun(params, batch)` that has one."""
    dynamic, static = eqx.partition(struct, is_placeable)

    def arrays(dynamic: PyTree) -> PyTree:
        return eqx.filter(fun(*eqx.combine(dynamic, static)), eqx.is_array)

    for eqn in equations(jax.make_jaxpr(arrays)(dynamic)):
        for value in eqn.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                mesh = item if isinstance(item, Mesh) else getattr(item, "mesh", None)
                if isinstance(mesh, Mesh):
                    return mesh
    return None


def _compiled(
    traced: Traced,
    flat: Callable[..., PyTree],
    arrays: Sequence[jax.ShapeDtypeStruct],
    mesh: Mesh,
) -> tuple[Compiled | None, Sequence[Sharding]]:
    """The compiled program, if it can be used as it is, and the inputs' shardings."""
    try:
        compiled = traced.lower().compile()
        return compiled, compiled.input_shardings[0][1:]
    except ValueError:
        # The compiler may split an axis in fewer parts than the mesh's axis has, which
        # JAX cannot put into words. Without an input on the mesh it does not try.
        anchor = jax.ShapeDtypeStruct((), jnp.float32)
        compiled = jax.jit(flat, keep_unused=True).lower(anchor, *arrays).compile()
        derived = compiled.input_shardings[0][1:]
        pairs = zip(derived, arrays, strict=True)
        return None, [_in_words(sharding, leaf.ndim, mesh) for sharding, leaf in pairs]


def _in_words(sharding: Sharding, rank: int, mesh: Mesh) -> NamedSharding:
    """A sharding in terms of the mesh, a copy everywhere if there is no such one."""
    for axes in it.product((None, *range(rank)), repeat=len(mesh.axis_names)):
        pairs = list(zip(mesh.axis_names, axes, strict=True))
        entries = [tuple(n for n, at in pairs if at == axis) for axis in range(rank)]
        candidate = NamedSharding(mesh, P(*entries))
        if sharding.is_equivalent_to(candidate, rank):
            return candidate
    return NamedSharding(mesh, P())


def _even(
    sharding: Sharding, leaf: jax.ShapeDtypeStruct, whole: NamedSharding
) -> Sharding:
    """The sharding, or a copy on every device where sizes do not divide."""
    try:
        sharding.shard_shape(leaf.shape)
    except ValueError:
        return whole
    return sharding
