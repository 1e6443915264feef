"""The shardings of a function's inputs, from the constraints inside it."""

import itertools as it
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .._types import PyTree
from .specs import is_placeable

_ANNOTATIONS = "sharding_constraint", "shard_map", "reshard"


class Program(NamedTuple):
    """A compiled function and where its inputs have to be.

    `shardings` has one entry for each leaf that is an array, `None` for others.
    """

    compiled: Any
    shardings: list[Any]
    structure: Any
    other: list[PyTree]
    anchor: Any

    def place(self, tree: PyTree) -> list[Any]:
        """The leaves of the inputs, each array in its place."""
        leaves, where = jtu.tree_leaves(tree), self.shardings
        held = [i for i, sharding in enumerate(where) if sharding is not None]
        moved = jax.device_put([leaves[i] for i in held], [where[i] for i in held])
        for i, leaf in zip(held, moved, strict=True):
            leaves[i] = leaf
        return leaves

    def __call__(self, tree: PyTree) -> PyTree:
        arrays = [leaf for leaf in self.place(tree) if is_placeable(leaf)]
        return eqx.combine(self.compiled(self.anchor, *arrays), self.other[0])


def struct_of(tree: PyTree) -> PyTree:
    """Shapes and dtypes in place of arrays, without their present shardings."""

    def strip(leaf: Any) -> Any:
        if not is_placeable(leaf):
            return leaf
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype) if _is_plain(leaf) else None
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype if dtype is None else dtype)

    return jtu.tree_map(strip, tree)


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic)


def identity_of(struct: PyTree) -> Any:
    """What tells one program from another, fit to be the key of a dict."""
    leaves, structure = jtu.tree_flatten(struct)
    return structure, tuple(
        (leaf.shape, str(leaf.dtype)) if is_placeable(leaf) else leaf for leaf in leaves
    )


def derive(fun: Callable[..., PyTree], struct: PyTree, mesh: Mesh) -> Program:
    """Compiles `fun(params, batch)`, `struct` being both, and reads its shardings.

    The inputs are lowered without shardings, so the compiler carries those of the
    constraints back to them. An additional input that has one tells it the mesh, and
    so the answer is in terms of the mesh.
    """
    leaves, structure = jtu.tree_flatten(struct)
    is_array = [is_placeable(leaf) for leaf in leaves]
    arrays = [leaf for leaf in leaves if is_placeable(leaf)]
    other: list[PyTree] = []

    def flat(anchor, *given):
        filled = iter(given)
        parts = zip(leaves, is_array, strict=True)
        both = [next(filled) if array else leaf for leaf, array in parts]
        out = fun(*jtu.tree_unflatten(structure, both))
        dynamic, rest = eqx.partition(out, eqx.is_array)
        other[:] = [rest]
        return dynamic

    whole = NamedSharding(mesh, P())
    anchor = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
    traced = jax.jit(flat, keep_unused=True).trace(anchor, *arrays)
    text = str(traced.jaxpr)
    found: list[Any]
    if any(name in text for name in _ANNOTATIONS):
        compiled, derived = _compiled(traced, flat, arrays, mesh)
        found = [_even(d, a, whole) for d, a in zip(derived, arrays, strict=True)]
        same = all(a is b for a, b in zip(derived, found, strict=True))
        same = same and compiled is not None
    else:
        warnings.warn(
            "`eqx_pipe.parallelize`: nothing inside `fun` says how an array is split, "
            "so every device gets a copy of all inputs. Use `eqx_pipe.constrain(x, "
            '"batch", ...)` in `fun` and give `rules=`.',
            stacklevel=4,
        )
        compiled, found, same = None, [whole] * len(arrays), False
    if not same:
        jitted = jax.jit(flat, keep_unused=True, in_shardings=(whole, *found))
        compiled = jitted.lower(anchor, *arrays).compile()
    each = iter(found)
    shardings = [next(each) if array else None for array in is_array]
    start = jax.device_put(np.zeros((), np.float32), whole)
    return Program(compiled, shardings, structure, other, start)


def mesh_inside(fun: Callable[..., PyTree], struct: PyTree) -> Mesh | None:
    """The mesh of the first constraint inside `fun(params, batch)` that has one."""
    dynamic, static = eqx.partition(struct, is_placeable)

    def arrays(dynamic):
        return eqx.filter(fun(*eqx.combine(dynamic, static)), eqx.is_array)

    return _first_mesh(jax.make_jaxpr(arrays)(dynamic))


def _first_mesh(jaxpr: Any) -> Mesh | None:
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        for value in eqn.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                mesh = item if isinstance(item, Mesh) else getattr(item, "mesh", None)
                if not isinstance(mesh, Mesh) and hasattr(item, "eqns"):
                    mesh = _first_mesh(item)
                if isinstance(mesh, Mesh):
                    return mesh
    return None


def _compiled(traced: Any, flat: Any, arrays: list[Any], mesh: Mesh) -> Any:
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


def _in_words(sharding: Any, rank: int, mesh: Mesh) -> NamedSharding:
    """A sharding in terms of the mesh, a copy everywhere if there is no such one."""
    for places in it.product((None, *range(rank)), repeat=len(mesh.axis_names)):
        pairs = list(zip(mesh.axis_names, places, strict=True))
        entries = [tuple(n for n, at in pairs if at == axis) for axis in range(rank)]
        candidate = NamedSharding(mesh, P(*(e or None for e in entries)))
        if sharding.is_equivalent_to(candidate, rank):
            return candidate
    return NamedSharding(mesh, P())


def _even(sharding: Any, leaf: Any, whole: NamedSharding) -> Any:
    """The sharding, or a copy on every device where sizes do not divide."""
    try:
        sharding.shard_shape(leaf.shape)
    except ValueError:
        return whole
    return sharding
