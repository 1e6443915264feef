"""How a choice is batched.

With one index for the whole batch, one branch runs, as in `lax.switch`. With an index
per example, each branch

- runs once for the whole batch, its parameters uncopied, if any example chose it;
- sees, in the lanes of examples that did not choose it, the operands of one that did,
  with their gradients stopped.

So nothing is computed that no example asked for: an inf or NaN that a branch would give
in a lane that did not choose it is never there, neither in the values nor in the
gradients of inputs and parameters, whichever of `grad` and `vmap` comes first. The cost
over a plain `select` of all branches is a masked copy of the batched operands.
"""

from collections.abc import Sequence
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.interpreters import batching
from jaxtyping import Array, Bool

from .primitive import bind, choose_p, trace


def _batch(
    axis_data: Any, args: Any, dims: Any, *, branches: Any, owners: Any
) -> tuple[list[Any], list[int | None]]:
    args = [
        x if dim is None else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    index, *operands = args
    index_batched, *batched = [dim is not None for dim in dims]
    depends = [depends_on(branch, batched) for branch in branches]
    in_axes = [0 if b else None for b in batched]

    def over_batch(branch: ClosedJaxpr, out_batched: Sequence[bool]) -> Any:
        return jax.vmap(
            jaxpr_as_fun(branch),
            in_axes=in_axes,
            out_axes=[0 if b else None for b in out_batched],
            axis_name=axis_data.name,
            axis_size=axis_data.size,
            spmd_axis_name=axis_data.spmd_name,
        )

    if not index_batched:
        out_batched = [any(outputs) for outputs in zip(*depends, strict=True)]
        vmapped = [trace(over_batch(b, out_batched), *operands) for b in branches]
        out = bind(index, operands, vmapped, owners)
        return out, [0 if b else None for b in out_batched]

    masks = _masks(index, len(branches))
    results = [
        _run_where(mask, over_batch(branch, out_batched), operands, batched)
        for mask, branch, out_batched in zip(masks, branches, depends, strict=True)
    ]
    outputs, out_dims = [], []
    for k, owner in enumerate(owners):
        if owner is not None:
            outputs.append(results[owner][k])
            out_dims.append(0 if depends[owner][k] else None)
            continue
        choices = [
            r[k] if d[k] else r[k][None] for r, d in zip(results, depends, strict=True)
        ]
        outputs.append(_select(masks, choices))
        out_dims.append(0)
    return outputs, out_dims


def _masks(index: Array, num_branches: int) -> list[Bool[Array, " batch"]]:
    """For each branch, which examples chose it."""
    if num_branches == 1:
        return [jnp.ones(index.shape, bool)]
    if index.dtype == jnp.bool_:
        return [~index, index]
    inner = [index == i for i in range(1, num_branches - 1)]
    return [index <= 0, *inner, index >= num_branches - 1]


def _run_where(
    mask: Bool[Array, " batch"],
    function: Any,
    operands: Sequence[Array],
    batched: Sequence[bool],
) -> list[Array]:
    """Runs a batched branch for the lanes in `mask`, if there are any, else zeros."""

    def run(*operands: Array) -> list[Array]:
        guarded = [
            _guard(mask, x) if b else x for x, b in zip(operands, batched, strict=True)
        ]
        return list(function(*guarded))

    def skip(*operands: Array) -> list[Array]:
        return [jnp.zeros(s.shape, s.dtype) for s in shapes]

    shapes = jax.eval_shape(run, *operands)
    return lax.cond(eqxi.unvmap_any(mask), run, skip, *operands)


def _guard(mask: Bool[Array, " batch"], x: Array) -> Array:
    """`x` in the lanes of the mask, and in the others a constant copy of one of those."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x  # draws from any key are as good
    spare = _lane_of(mask, lax.stop_gradient(x))
    return jnp.where(_align(mask, x), x, spare[None])


@custom_vmap
def _lane_of(mask: Bool[Array, " batch"], x: Array) -> Array:
    """One lane of `x` that is in the mask. Under `vmap` still one, for all batches."""
    return lax.dynamic_index_in_dim(x, jnp.argmax(mask), keepdims=False)


@_lane_of.def_vmap
def _lane_of_batches(
    axis_size: int, in_batched: list[bool], mask: Array, x: Array
) -> tuple[Array, bool]:
    mask_batched, x_batched = in_batched
    if not mask_batched:
        return _lane_of(mask, x[0] if x_batched else x), False
    if not x_batched:
        return _lane_of(mask.any(0), x), False
    return _lane_of(mask.reshape(-1), x.reshape(-1, *x.shape[2:])), False


def _select(masks: Sequence[Bool[Array, " batch"]], choices: Sequence[Array]) -> Array:
    """Lane by lane, the choice whose mask is on."""
    out = choices[-1]
    for mask, choice in zip(masks[:-1], choices[:-1], strict=True):
        out = jnp.where(_align(mask, choice), choice, out)
    return jnp.broadcast_to(out, (masks[0].shape[0], *out.shape[1:]))


def _align(mask: Bool[Array, " batch"], x: Array) -> Array:
    return mask.reshape(mask.shape + (1,) * (x.ndim - 1))


def depends_on(branch: ClosedJaxpr, inputs: Sequence[bool]) -> list[bool]:
    """For each output of a jaxpr, whether it may depend on the marked inputs.

    What does not depend on a batched input must not become batched: a transposed weight
    that is saved for the backward pass would be copied per example.
    """
    jaxpr = branch.jaxpr
    marked = {v for v, m in zip(jaxpr.invars, inputs, strict=True) if m}

    def is_marked(atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in marked

    for eqn in jaxpr.eqns:
        operands = [is_marked(v) for v in eqn.invars]
        if not any(operands):
            continue
        outputs = _depends_in_equation(eqn, operands)
        marked.update(v for v, m in zip(eqn.outvars, outputs, strict=True) if m)
    return [is_marked(v) for v in jaxpr.outvars]


def _depends_in_equation(eqn: Any, operands: list[bool]) -> list[bool]:
    """Looks into what calls or chooses a jaxpr; elsewhere all outputs depend."""
    everything = [True] * len(eqn.outvars)
    if eqn.primitive is choose_p:
        owners, branches = eqn.params["owners"], eqn.params["branches"]
        depends = [depends_on(branch, operands[1:]) for branch in branches]
        return [
            depends[owner][k] if owner is not None else operands[0] or any(column)
            for k, (owner, column) in enumerate(
                zip(owners, zip(*depends, strict=True), strict=True)
            )
        ]
    if eqn.primitive.name in ("cond", "switch") and not operands[0]:
        depends = [depends_on(b, operands[1:]) for b in eqn.params["branches"]]
        return [any(column) for column in zip(*depends, strict=True)]
    if eqn.primitive.name in ("jit", "pjit", "closed_call", "remat2", "checkpoint"):
        inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        if isinstance(inner, ClosedJaxpr):
            return depends_on(inner, operands)
    return everything


batching.fancy_primitive_batchers[choose_p] = _batch
