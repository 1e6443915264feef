"""A primitive that is `lax.switch` until its index is batched.

Under `jax.vmap` with an index per example, `lax.switch` copies every operand of every
branch per example, including closed-over parameters, and evaluates each branch on
inputs of all examples. Whether the index is batched is known only when transformations
are applied (`vmap` may be applied after `jit` or `grad`), which requires a primitive.

This file defines its evaluation and compilation; `autodiff.py` and `batching.py` have
the rules of differentiation and batching. The pattern follows JAX's page on custom
primitives, "How JAX primitives work".
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir

from .._jaxprs import Bodies, Entry, Equation, Flow, hoist, register, trace
from .._mesh_context import is_explicit
from .._types import ClosedJaxpr, PyTree

choose_p = Primitive("eqx_pipe_choose")
choose_p.multiple_results = True


def bind(
    index: Any,
    operands: Sequence[Any],
    branches: Sequence[ClosedJaxpr],
    owners: Sequence[int | None] | None = None,
    num_linear: int = 0,
) -> list[Any]:
    """Run the branch at `index`, clamped to the existing branches, on `operands`.

    All branches take the operands and return the same types. `index` is an integer, or
    a boolean for two branches. `owners[k]` is the only branch whose output `k` is used
    (the others may return anything there), or `None`. The outputs are jointly linear in
    the last `num_linear` operands.
    """
    if owners is None:
        owners = (None,) * len(branches[0].out_avals)
    return choose_p.bind(
        index,
        *operands,
        branches=tuple(_as_varying(branches, operands)),
        owners=tuple(owners),
        num_linear=num_linear,
    )


def _as_varying(
    branches: Sequence[ClosedJaxpr], operands: Sequence[Any]
) -> Sequence[ClosedJaxpr]:
    """Give the branches the same type inside `shard_map`.

    There an array's type has the mesh axes over which it varies; constants such as
    zeros vary over none, and `lax.cond` rejects branches that differ in this.
    """
    varying = [[_varying_axes(a) for a in b.out_avals] for b in branches]
    # A value may be cast to vary over more axes, but not over fewer.
    union = [frozenset().union(*column) for column in zip(*varying, strict=True)]

    def cast(branch: ClosedJaxpr) -> ClosedJaxpr:
        def function(*args: Any) -> list[Any]:
            outputs = jaxpr_as_fun(branch)(*args)
            return [
                y if not axes else lax.pcast(y, tuple(axes), to="varying")
                for y, axes in zip(outputs, missing, strict=True)
            ]

        found = [_varying_axes(a) for a in branch.out_avals]
        missing = [u - f for u, f in zip(union, found, strict=True)]
        return trace(function, *operands) if any(missing) else branch

    return [cast(branch) for branch in branches]


def _varying_axes(aval: Any) -> frozenset[str]:
    if hasattr(aval, "mat"):
        return aval.mat.varying
    return getattr(aval, "vma", frozenset())  # the name before JAX 0.10.2


def varying_as(index: Any, tree: PyTree) -> PyTree:
    """Make floats in `tree` vary over the same axes of `shard_map` as `index`.

    If each device chooses for itself, no branch may sum over the devices: it would wait
    for devices that chose another branch. So shared parameters are cast to vary over
    the devices before the choice, and their gradients are summed there.
    """
    axes = _varying_axes(jax.typeof(index))
    if not axes:
        return tree

    def vary(leaf: Any) -> Any:
        if not (eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)):
            return leaf
        missing = axes - _varying_axes(jax.typeof(leaf))
        return lax.pcast(leaf, tuple(missing), to="varying") if missing else leaf

    return jtu.tree_map(vary, tree)


def zeros(examples: Sequence[Any]) -> list[Any]:
    """Return zeros like the examples; one array for each shape, dtype and sharding."""
    kinds = [(x.shape, x.dtype, explicit_sharding(x)) for x in examples]
    made = {
        (shape, dtype, sharding): lax.full(shape, 0, dtype, sharding=sharding)
        for shape, dtype, sharding in set(kinds)
    }
    return [made[kind] for kind in kinds]


def zeros_varying(avals: Sequence[Any]) -> list[Any]:
    """Return zeros that vary over the same axes of `shard_map` as the examples.

    So a loop can carry them, as the types of a carry must not change.
    """
    axes = [tuple(_varying_axes(aval)) for aval in avals]
    return [
        lax.pcast(zero, names, to="varying") if names else zero
        for zero, names in zip(zeros(avals), axes, strict=True)
    ]


def explicit_sharding(aval: Any) -> Any:
    """Return the sharding of an array if it is part of the array's type."""
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    return sharding if mesh is not None and is_explicit(mesh) else None


def _switch(index: Any, *operands: Any, branches: Any, **_: Any) -> list[Any]:
    functions = [jaxpr_as_fun(branch) for branch in branches]
    if len(functions) == 1:
        return functions[0](*operands)
    if jnp.result_type(index) == jnp.bool_:
        return lax.cond(index, functions[1], functions[0], *operands)
    return lax.switch(index, functions, *operands)


@choose_p.def_impl
def _evaluate(index: Any, *operands: Any, branches: Any, **_: Any) -> list[Any]:
    chosen = int(np.clip(np.asarray(index).astype(np.int64), 0, len(branches) - 1))
    return jaxpr_as_fun(branches[chosen])(*operands)


@choose_p.def_effectful_abstract_eval
def _abstract(index: Any, *operands: Any, branches: Any, **_: Any) -> Any:
    # Without them, JAX would drop a choice with unused outputs, including its prints.
    effects = frozenset().union(*(branch.effects for branch in branches))
    return list(branches[0].out_avals), effects


mlir.register_lowering(choose_p, mlir.lower_fun(_switch, multiple_results=True))


def _remake(eqn: Equation, bodies: Bodies, inputs: list[Any]) -> list[Any]:
    index, *operands = inputs
    given, branches = hoist([trace(body, *operands) for body in bodies], operands)
    added = len(branches[0].out_avals) - len(eqn.outvars)
    owners = (*eqn.params["owners"], *[None] * added)
    return bind(index, [*given, *operands], branches, owners, eqn.params["num_linear"])


def _flow(flow: Flow, eqn: Equation, marks: list[bool]) -> list[bool]:
    """Propagate marks as for `lax.switch`; owned outputs are not selected."""
    found = [flow.run(branch, marks[1:]) for branch in eqn.params["branches"]]
    pairs = zip(eqn.params["owners"], zip(*found, strict=True), strict=True)
    return [
        marks[0] or any(column) if owner is None else column[owner]
        for owner, column in pairs
    ]


register(choose_p.name, Entry("branches", ("branches",), remake=_remake, flow=_flow))
