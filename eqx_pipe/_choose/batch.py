"""How a choice is batched.

With one index for the whole batch, one branch runs, as in `lax.switch`. With an index
per example each branch runs once for the whole batch, its parameters uncopied, if any
example chose it, and the results are selected lane by lane. (A branch of elementwise
operations alone runs in any case: fused into the select, it costs less than to ask.)

A branch may give an inf or NaN in a lane that did not choose it. The select keeps that
out of the values, but in reverse mode `0 * inf` would reach the gradients of the input
and of the parameters. If `vmap` comes after `grad` all gradients are per lane and are
selected too. If `grad` comes after `vmap` they are summed over the lanes; so there, and
only there, the lanes that did not choose a branch are given the operands of one that
did, with their gradients stopped: nothing is computed that no example asked for. This
costs a masked copy of the batched operands per branch.

A branch with a `while_loop` or a callback is always given such operands: its other
lanes must neither prolong the loop nor raise.
"""

import functools as ft
from collections.abc import Sequence
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax
from jax.core import eval_jaxpr
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr
from jax.interpreters import batching
from jaxtyping import Array, Bool

from .dependence import (
    depends_on,
    is_elementwise,
    may_loop_or_call_back,
    used_inputs,
)
from .primitive import bind, choose_p, trace, zeros


def _batch(
    axis_data: Any, args: Any, dims: Any, *, branches: Any, owners: Any
) -> tuple[list[Any], list[int | None]]:
    args = [
        x if dim is None or dim == 0 else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    index, *operands = args
    index_batched, *batched = [dim is not None for dim in dims]
    depends = [depends_on(branch, batched) for branch in branches]
    in_axes = [0 if b else None for b in batched]

    def over_batch(branch: ClosedJaxpr, out_batched: Sequence[bool]) -> Any:
        return jax.vmap(
            ft.partial(eval_jaxpr, branch.jaxpr, branch.consts),
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
        _run_where(mask, branch, over_batch(branch, out_batched), operands, batched)
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
    branch: ClosedJaxpr,
    function: Any,
    operands: Sequence[Any],
    batched: Sequence[bool],
) -> list[Any]:
    """Runs a branch, `function` over the batch; only lanes in `mask` mean anything.

    Operands that the branch does not use are left out, so that no gradients of zero
    are made for them.
    """
    used = used_inputs(branch)
    given = [mask, *(x for x, u in zip(operands, used, strict=True) if u)]
    given_batched = [b for b, u in zip(batched, used, strict=True) if u]
    elementwise = is_elementwise(branch)

    def plain(mask: Any, *operands: Any) -> list[Any]:
        rest = iter(operands)
        return list(function(*(next(rest) if u else None for u in used)))

    def guarded(mask: Any, *operands: Any) -> list[Any]:
        return plain(mask, *_guard(mask, operands, given_batched))

    if may_loop_or_call_back(branch):
        return _if_any(guarded, *given)

    @jax.custom_jvp
    def run(mask: Any, *operands: Any) -> list[Any]:
        return (
            plain(mask, *operands) if elementwise else _if_any(plain, mask, *operands)
        )

    def run_jvp(primals: Any, tangents: Any) -> Any:
        moves = [not isinstance(t, SymbolicZero) for t in tangents]

        def moving(*moved: Any) -> list[Any]:
            given = iter(moved)
            pairs = zip(primals, moves, strict=True)
            full = [next(given) if m else x for x, m in pairs]
            return guarded(*full) if elementwise else _if_any(guarded, *full)

        moved = [t for t, m in zip(tangents, moves, strict=True) if m]
        if elementwise:  # with no lane to borrow from, the gradients are cut here
            is_open = eqxi.unvmap_any(primals[0])
            moved = [jnp.where(is_open, t, jnp.zeros_like(t)) for t in moved]
        return jax.jvp(
            moving, [x for x, m in zip(primals, moves, strict=True) if m], moved
        )

    run.defjvp(run_jvp, symbolic_zeros=True)
    return run(*given)


def _if_any(function: Any, mask: Any, *operands: Any) -> list[Any]:
    """`function(mask, *operands)` if any lane is in the mask, else zeros."""
    given = [mask, *operands]
    taken = trace(function, *given)
    skipped = trace(lambda *given: zeros(taken.out_avals), *given)
    return bind(eqxi.unvmap_any(mask), given, [skipped, taken])


def _guard(
    mask: Bool[Array, " batch"], operands: Sequence[Any], batched: Sequence[bool]
) -> list[Any]:
    """The operands, with a constant copy of a lane of the mask in all other lanes."""
    # Keys stay as they are: draws from any key are as good.
    replaced = [
        b and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        for x, b in zip(operands, batched, strict=True)
    ]
    constant = [
        lax.stop_gradient(x) for x, r in zip(operands, replaced, strict=True) if r
    ]
    spare = iter(_lane_of(mask, constant))
    return [
        lax.select(_align(mask, x), x, jnp.broadcast_to(next(spare), x.shape))
        if r
        else x
        for x, r in zip(operands, replaced, strict=True)
    ]


@custom_vmap
def _lane_of(mask: Bool[Array, " batch"], operands: list[Any]) -> list[Any]:
    """One lane that is in the mask. Under `vmap` still one, for all batches."""
    lane = lax.argmax(mask, 0, jnp.int32)

    def pick(x: Array) -> Array:
        start = [lane, *[jnp.int32(0)] * (x.ndim - 1)]
        shape = (1, *x.shape[1:])
        return lax.dynamic_slice(x, start, shape, allow_negative_indices=False)

    return [pick(x) for x in operands]


@_lane_of.def_vmap
def _lane_of_batches(
    axis_size: int, in_batched: Any, mask: Any, operands: list[Any]
) -> tuple[list[Any], list[bool]]:
    mask_batched, operands_batched = in_batched
    if not mask_batched:
        # Any of the batches has the lane in the mask: take the first.
        pairs = zip(operands, operands_batched, strict=True)
        lanes = _lane_of(mask, [x[0] if b else x for x, b in pairs])
    else:
        flat = [
            (x if b else jnp.broadcast_to(x, (axis_size, *x.shape))).reshape(
                -1, *x.shape[2 if b else 1 :]
            )
            for x, b in zip(operands, operands_batched, strict=True)
        ]
        lanes = _lane_of(mask.reshape(-1), flat)
    return lanes, [False] * len(lanes)


def _select(masks: Sequence[Bool[Array, " batch"]], choices: Sequence[Any]) -> Any:
    """Lane by lane, the choice whose mask is on."""
    shape = (masks[0].shape[0], *choices[0].shape[1:])
    out = jnp.broadcast_to(choices[-1], shape)
    for mask, choice in zip(masks[:-1], choices[:-1], strict=True):
        out = lax.select(_align(mask, out), jnp.broadcast_to(choice, shape), out)
    return out


def _align(mask: Bool[Array, " batch"], x: Any) -> Any:
    """The mask, spread over the trailing axes of `x`."""
    return lax.broadcast_in_dim(mask, x.shape, (0,))


batching.fancy_primitive_batchers[choose_p] = _batch
