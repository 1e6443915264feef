"""The `vmap` rule of a choice.

With one index for the whole batch, one branch runs, as in `lax.switch`. With an index
per example, each branch that any example chose runs once for the whole batch, without
copies of its parameters, and the results are selected lane by lane. (A branch of only
elementwise operations always runs: fused into the select, it costs less than the test.)

A branch may return an inf or NaN in a lane that did not choose it. The select drops it
from the values, but in reverse mode `0 * inf` would reach the gradients of the input
and of the parameters. In `vmap` of `grad`, all gradients are per lane and are selected
too. In `grad` of `vmap`, they are summed over the lanes. Only in this case, lanes that
did not choose a branch get the operands of a lane that did, with stopped gradients, so
the branch runs only on inputs of examples that chose it. This costs a masked copy of
the batched operands per branch.

A branch with a `while_loop` or a callback always gets such operands: the other lanes
must neither prolong the loop nor raise. In the linear part of a derivative, if the
outputs are larger than the operands, as for gradients of parameters per lane, the
tangents of other lanes are set to zero instead of selecting outputs.
"""

import functools as ft
import itertools as it
import math
from collections.abc import Sequence
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import batching
from jaxtyping import Array, Bool

from .._jaxprs import (
    as_function,
    depends_on,
    is_elementwise,
    may_loop_or_call_back,
    trace,
    used_inputs,
)
from .._tree import broadcast_mask, fill
from .._types import ClosedJaxpr
from .masked_operand import lane_in, masked_operand
from .primitive import bind, choose_p, zeros


def _batch(
    axis_data: Any, args: Any, dims: Any, *, branches: Any, owners: Any, num_linear: int
) -> tuple[list[Any], list[int | None]]:
    # Each operand may have a different mapped axis.
    args = [
        x if dim is None or dim == 0 else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    index, *operands = args
    index_batched, *batched = [dim is not None for dim in dims]

    def over_batch(
        branch: ClosedJaxpr, batched: Sequence[bool], out_batched: Sequence[bool]
    ) -> Any:
        return jax.vmap(
            as_function(branch),
            in_axes=[0 if b else None for b in batched],
            out_axes=[0 if b else None for b in out_batched],
            axis_name=axis_data.name,
            axis_size=axis_data.size,
            # Without it, a sharding constraint in a branch would gather a sharded
            # batch.
            spmd_axis_name=axis_data.spmd_name,
        )

    if not index_batched:
        # The branches of a choice must return the same shapes: if one branch batches an
        # output, all branches do.
        depends = [depends_on(b, batched, axis_data.name) for b in branches]
        out_batched = [any(outputs) for outputs in zip(*depends, strict=True)]
        vmapped = [
            trace(over_batch(b, batched, out_batched), *operands) for b in branches
        ]
        out = bind(index, operands, vmapped, owners, num_linear)
        return out, [0 if b else None for b in out_batched]

    masks = _masks(index, len(branches))
    num_known = len(operands) - num_linear
    run, pays = _run_where, _pays_to_mask_tangents(branches, batched, num_known)
    if pays:
        batched = batched[:num_known] + [True] * num_linear
        run = ft.partial(_run_linear_where, num_known=num_known, size=axis_data.size)
    depends = [depends_on(branch, batched, axis_data.name) for branch in branches]
    results = [
        run(mask, branch, over_batch(branch, batched, out_batched), operands, batched)
        for mask, branch, out_batched in zip(masks, branches, depends, strict=True)
    ]
    if pays:
        return _add(branches, results, depends, num_known)
    return _select_or_owned(masks, results, depends, owners)


def _select_or_owned(
    masks: Sequence[Any],
    results: Sequence[Any],
    depends: Sequence[Sequence[bool]],
    owners: Sequence[int | None],
) -> tuple[list[Any], list[int | None]]:
    """Select the outputs lane by lane, except those that one branch owns."""
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


def _add(
    branches: Sequence[ClosedJaxpr],
    results: Sequence[Any],
    depends: Sequence[Sequence[bool]],
    num_known: int,
) -> tuple[list[Any], list[int | None]]:
    """Return the sum of linear branches, each zero in the lanes of the others."""
    terms = []
    for branch, result in zip(branches, results, strict=True):
        num_linear = len(branch.in_avals) - num_known
        linear = depends_on(branch, [False] * num_known + [True] * num_linear)
        terms.append(
            [y if moves else None for y, moves in zip(result, linear, strict=True)]
        )
    outputs: list[Any] = []
    for k, column in enumerate(zip(*terms, strict=True)):
        present = [y for y in column if y is not None]
        outputs.append(ft.reduce(jnp.add, present) if present else results[0][k])
    dims = [0 if any(column) else None for column in zip(*depends, strict=True)]
    return outputs, dims


def _pays_to_mask_tangents(
    branches: Sequence[ClosedJaxpr], batched: Sequence[bool], num_known: int
) -> bool:
    """Return whether a linear choice has smaller batched operands than outputs."""
    if num_known == len(batched) or all(is_elementwise(b) for b in branches):
        return False
    operands = [
        math.prod(a.shape)
        for k, (a, b) in enumerate(zip(branches[0].in_avals, batched, strict=True))
        if b or k >= num_known
    ]
    return sum(operands) < sum(math.prod(a.shape) for a in branches[0].out_avals)


def _masks(index: Array, num_branches: int) -> list[Bool[Array, " batch"]]:
    """Return a mask for each branch of the examples that chose it."""
    if num_branches == 1:
        return [jnp.ones(index.shape, bool)]
    if index.dtype == jnp.bool_:
        return [~index, index]
    inner = [index == i for i in range(1, num_branches - 1)]
    # The first and last branch include indices out of range, as `lax.switch` clamps.
    return [index <= 0, *inner, index >= num_branches - 1]


def _run_where(
    mask: Bool[Array, " batch"],
    branch: ClosedJaxpr,
    function: Any,
    operands: Sequence[Any],
    batched: Sequence[bool],
) -> list[Any]:
    """Run a branch, batched as `function`; only lanes in `mask` are used.

    Operands that the branch does not use are left out, so they get no zero gradients.
    """
    # Otherwise a gradient of zeros would be allocated per lane for each unused operand.
    used = used_inputs(branch)
    given = [mask, *it.compress(operands, used)]
    given_batched = list(it.compress(batched, used))
    elementwise = is_elementwise(branch)

    def plain(mask: Any, *operands: Any) -> list[Any]:
        return list(function(*fill([None] * len(used), used, operands)))

    def guarded(mask: Any, *operands: Any) -> list[Any]:
        return plain(mask, *_guard(mask, operands, given_batched))

    if may_loop_or_call_back(branch):
        return _if_any(guarded, *given)

    # Operands are guarded only in the derivative: primal outputs are selected lane by
    # lane, and need no masked copy.
    @jax.custom_jvp
    def run(mask: Any, *operands: Any) -> list[Any]:
        return (
            plain(mask, *operands) if elementwise else _if_any(plain, mask, *operands)
        )

    def run_jvp(primals: Any, tangents: Any) -> Any:
        moves = [not isinstance(t, SymbolicZero) for t in tangents]

        def moving(*moved: Any) -> list[Any]:
            full = fill(primals, moves, moved)
            return guarded(*full) if elementwise else _if_any(guarded, *full)

        moved = list(it.compress(tangents, moves))
        if elementwise:  # if no lane is in the mask, the gradients are zero
            is_open = eqxi.unvmap_any(primals[0])
            moved = [jnp.where(is_open, t, jnp.zeros_like(t)) for t in moved]
        return jax.jvp(moving, list(it.compress(primals, moves)), moved)

    # With array zeros every operand would seem to have a tangent, even parameters of
    # frozen layers.
    run.defjvp(run_jvp, symbolic_zeros=True)
    return run(*given)


def _if_any(function: Any, mask: Any, *operands: Any) -> list[Any]:
    """Return `function(mask, *operands)` if the mask has any lane, else zeros."""
    given = [mask, *operands]
    taken = trace(function, *given)
    skipped = trace(lambda *given: zeros(taken.out_avals), *given)
    # One boolean over the whole batch, for any number of outer `vmap`s, so the branch
    # can be skipped.
    return bind(eqxi.unvmap_any(mask), given, [skipped, taken])


def _run_linear_where(
    mask: Bool[Array, " batch"],
    branch: ClosedJaxpr,
    function: Any,
    operands: Sequence[Any],
    batched: Sequence[bool],
    *,
    num_known: int,
    size: int,
) -> list[Any]:
    """Run a branch that is linear in its last operands; zero outside the mask."""

    def run(mask: Any, *operands: Any) -> list[Any]:
        known = _guard(mask, operands[:num_known], batched[:num_known])
        moving = []
        for x, aval in zip(
            operands[num_known:], branch.in_avals[num_known:], strict=True
        ):
            x = jnp.broadcast_to(x, (size, *aval.shape))
            moving.append(lax.select(broadcast_mask(mask, x), x, jnp.zeros_like(x)))
        return list(function(*known, *moving))

    return _if_any(run, mask, *operands)


def _guard(
    mask: Bool[Array, " batch"], operands: Sequence[Any], batched: Sequence[bool]
) -> list[Any]:
    """Return the operands with a lane of the mask copied into all lanes outside it.

    Operands that are not batched here may be batched by an outer `vmap`; see
    `masked_operand.py`.
    """
    # An empty batch has no lane to copy.
    if mask.shape[0] == 0:
        return list(operands)
    # Keys are not replaced: draws from any key are valid.
    replaced = [
        b and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        for x, b in zip(operands, batched, strict=True)
    ]
    own = list(it.compress(operands, replaced))
    spare = lane_in(mask, list(map(lax.stop_gradient, own)))
    guarded = [
        lax.select(broadcast_mask(mask, x), x, jnp.broadcast_to(s, x.shape))
        for x, s in zip(own, spare, strict=True)
    ]
    pairs = zip(operands, batched, strict=True)
    return fill(
        [x if b else masked_operand(mask, x) for x, b in pairs], replaced, guarded
    )


def _select(masks: Sequence[Bool[Array, " batch"]], choices: Sequence[Any]) -> Any:
    """Select the choice whose mask is true, lane by lane."""
    shape = (masks[0].shape[0], *choices[0].shape[1:])
    out = jnp.broadcast_to(choices[-1], shape)
    for mask, choice in zip(masks[:-1], choices[:-1], strict=True):
        out = lax.select(
            broadcast_mask(mask, out), jnp.broadcast_to(choice, shape), out
        )
    return out


# Only "fancy" rules get the name and the size of the batch axis.
batching.fancy_primitive_batchers[choose_p] = _batch
