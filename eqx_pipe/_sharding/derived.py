"""Derive the shardings of a function's inputs from the constraints inside it."""

import contextlib
import warnings
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled
from jaxtyping import Array

from .._jaxprs import equations
from .._mesh_context import is_staged, with_axis_types
from .._types import PyTree
from .mesh import is_placeable
from .rules import AxisRules

# Without any of these the compiler has no sharding to propagate to the inputs.
_ANNOTATIONS = "sharding_constraint", "shard_map", "reshard"

Function = Callable[[PyTree, PyTree], PyTree]
"""A function of parameters and a batch."""


class Program(NamedTuple):
    """A compiled function and the shardings of its inputs: None for other leaves."""

    compiled: Compiled
    shardings: tuple[PyTree, PyTree]
    others: PyTree
    anchor: Array

    def __call__(self, params: PyTree, batch: PyTree) -> PyTree:
        arrays = eqx.filter((params, batch), is_placeable)
        placed = jtu.tree_leaves(jax.device_put(arrays, self.shardings))
        return eqx.combine(self.compiled(self.anchor, *placed), self.others)


class Derived:
    """The compiled programs of one `parallelize`, by the structs of their inputs.

    `params` and `batch` are the last known structs. Everything here can be recomputed.
    """

    def __init__(self, fun: Function, mesh: Mesh, rules: AxisRules | None):
        def under_rules(params: PyTree, batch: PyTree) -> PyTree:
            with contextlib.nullcontext() if rules is None else rules.on(mesh):
                return fun(params, batch)

        self.fun, self.mesh = under_rules, mesh
        self.jitted = eqx.filter_jit(under_rules)
        self.params: PyTree = None
        self.batch: PyTree = None
        self.programs: dict[Hashable, Program] = {}

    def program(self, params: PyTree, batch: PyTree) -> Program:
        struct = struct_of((params, batch))
        leaves, structure = jtu.tree_flatten(struct)
        known = structure, tuple(leaves)
        if known not in self.programs:
            self.programs[known] = _derive(self.fun, struct, self.mesh)
        return self.programs[known]

    def shardings(self) -> tuple[PyTree, PyTree]:
        return self.program(self.params, self.batch).shardings

    def run(self, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
        """Call a function in this mesh context; its outputs fit the user's context."""
        types = jax.sharding.get_abstract_mesh().axis_types
        if AxisType.Explicit not in types or is_staged():
            return function(*args)
        # The compiler derives shardings only on automatic axes.
        with jax.set_mesh(self.mesh):
            out = function(*with_axis_types(args))
        return with_axis_types(out, types)


def struct_of(tree: PyTree) -> PyTree:
    """Replace arrays by structs, without their current shardings."""

    def strip(leaf: Any) -> Any:
        if not is_placeable(leaf):
            return leaf
        dtype = leaf.dtype
        if isinstance(leaf, np.ndarray | np.generic):  # 64-bit dtypes may be disabled
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        return jax.ShapeDtypeStruct(leaf.shape, dtype)

    return jtu.tree_map(strip, tree)


def _derive(fun: Function, struct: tuple[PyTree, PyTree], mesh: Mesh) -> Program:
    """Compile `fun(params, batch)` for the structs of both, and read its shardings.

    The inputs are lowered without shardings, so the compiler propagates the constraints
    back to them. An additional input with a sharding, the anchor, sets the mesh:
    without it the derived shardings have no mesh.
    """
    dynamic, static = eqx.partition(struct, is_placeable)
    arrays, structure = jtu.tree_flatten(dynamic)
    others: list[PyTree] = []

    def flat(anchor: Array, *arrays: Array) -> PyTree:
        out = fun(*eqx.combine(jtu.tree_unflatten(structure, arrays), static))
        out, rest = eqx.partition(out, eqx.is_array)
        others[:] = [rest]
        return out

    whole = NamedSharding(mesh, P())
    anchor = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
    # Unused inputs are kept: each needs an entry in `input_shardings`.
    traced = jax.jit(flat, keep_unused=True).trace(anchor, *arrays)
    if not any(eqn.primitive.name in _ANNOTATIONS for eqn in equations(traced.jaxpr)):
        warnings.warn(
            "`eqx_pipe.sharding.parallelize`: `fun` has no sharding constraint, so "
            "every device gets a copy of all inputs. Use "
            '`eqx_pipe.sharding.constrain(x, "batch", ...)` in `fun` and give '
            "`rules=`.",
            stacklevel=6,
        )
    compiled = traced.lower().compile()
    found = compiled.input_shardings[0][1:]
    start = jax.device_put(np.zeros((), np.float32), whole)
    return Program(compiled, jtu.tree_unflatten(structure, found), others[0], start)


def placed(tree: PyTree, shardings: PyTree) -> PyTree:
    """Place the arrays of a pytree; other leaves pass through unchanged."""
    arrays, rest = eqx.partition(tree, is_placeable)
    return eqx.combine(jax.device_put(arrays, shardings), rest)
