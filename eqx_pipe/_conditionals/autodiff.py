"""The differentiation rules of a choice.

The derivative of a choice is two choices with the same index: the first computes the
outputs and the residuals, the second is the linear map from input tangents to output
tangents. Only the second is transposed. So reverse mode stores and computes the same as
for `lax.switch`.
"""

import itertools as it
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import ad

from .._jaxprs import as_function, is_literal, trace, used_inputs
from .._tree import fill
from .._types import ClosedJaxpr
from .primitive import bind, choose_p, zeros


class _Linearized(NamedTuple):
    """One branch, split into a forward part and a linear map.

    `forward` maps operands to outputs followed by `saved`. The linear map is
    `structure` with its leaves filled in: leaf `k` is operand `i` or saved value `j` if
    `sources[k]` is `("operand", i)` or `("saved", j)`.
    """

    forward: ClosedJaxpr
    num_saved: int
    sources: list[tuple[str, int]]
    structure: Any


def _jvp(
    primals: Any, tangents: Any, *, branches: Any, owners: Any, num_linear: int
) -> Any:
    index, *operands = primals
    moves = [type(t) is not ad.Zero for t in tangents[1:]]
    moving = list(it.compress(tangents[1:], moves))
    out_avals = branches[0].out_avals
    num_out = len(out_avals)
    inexact = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in out_avals]

    parts = [_linearize(branch, operands, moves, inexact) for branch in branches]
    savers = it.chain(*([i] * part.num_saved for i, part in enumerate(parts)))
    forward = _with_all_saved(parts, num_out, operands)
    results = bind(index, operands, forward, (*owners, *savers))
    outputs, saved = results[:num_out], results[num_out:]
    moved = _linear_choice(index, operands, saved, moving, parts, owners, inexact)
    still = [ad.Zero(aval.to_tangent_aval()) for aval in out_avals]
    return outputs, fill(still, inexact, moved)


def _linearize(
    branch: ClosedJaxpr,
    operands: Sequence[Any],
    moves: Sequence[bool],
    inexact: Sequence[bool],
) -> _Linearized:
    structure = None

    def forward(*args: Any) -> Any:
        nonlocal structure

        def function(*primals: Any) -> Any:
            outputs = jaxpr_as_fun(branch)(*fill(args, moves, primals))
            return list(it.compress(outputs, inexact)), outputs

        primals = it.compress(args, moves)
        _, linear, outputs = jax.linearize(function, *primals, has_aux=True)
        leaves, structure = jtu.tree_flatten(linear)
        return outputs, leaves

    traced = trace(forward, *operands)
    num_out = len(branch.out_avals)
    # An operand that the linear map needs is not saved again: parameters are large, and
    # would be stored twice.
    arguments = {id(v): i for i, v in enumerate(traced.jaxpr.invars)}
    kept: dict[int, int] = {}  # identity of a saved variable -> its position
    positions, sources = [], []
    for position, variable in enumerate(traced.jaxpr.outvars[num_out:], num_out):
        name = id(variable)
        if not is_literal(variable) and name in arguments:
            sources.append(("operand", arguments[name]))
            continue
        if is_literal(variable) or name not in kept:
            kept[name] = len(positions)
            positions.append(position)
        sources.append(("saved", kept[name]))

    def pruned(*args: Any) -> Any:
        results = jaxpr_as_fun(traced)(*args)
        return results[:num_out] + [results[p] for p in positions]

    pruned_jaxpr = trace(pruned, *operands)
    return _Linearized(pruned_jaxpr, len(positions), sources, structure)


def _with_all_saved(
    parts: Sequence[_Linearized], num_out: int, operands: Sequence[Any]
) -> list[ClosedJaxpr]:
    """Make the forward parts agree: each returns zeros for values others save."""
    saved_avals = [part.forward.out_avals[num_out:] for part in parts]

    def padded(chosen: int) -> Any:
        def forward(*args: Any) -> Any:
            results = jaxpr_as_fun(parts[chosen].forward)(*args)
            before = list(it.chain(*saved_avals[:chosen]))
            filler = zeros(before + list(it.chain(*saved_avals[chosen + 1 :])))
            own, others = results[num_out:], len(before)
            return [*results[:num_out], *filler[:others], *own, *filler[others:]]

        return forward

    return [trace(padded(i), *operands) for i in range(len(parts))]


def _linear_choice(
    index: Any,
    operands: Sequence[Any],
    saved: Sequence[Any],
    moving: Sequence[Any],
    parts: Sequence[_Linearized],
    owners: Sequence[int | None],
    inexact: Sequence[bool],
) -> list[Any]:
    """Choose one of the branches' linear maps, and apply it to the tangents."""
    if not any(inexact) or not moving:
        avals = it.compress(parts[0].forward.out_avals, inexact)
        return [ad.Zero(aval.to_tangent_aval()) for aval in avals]
    wanted = sorted({i for p in parts for kind, i in p.sources if kind == "operand"})
    place = {i: k for k, i in enumerate(wanted)}
    needed = [operands[i] for i in wanted]
    starts = list(it.accumulate((p.num_saved for p in parts), initial=len(needed)))
    first = starts[-1]

    def linear(part: _Linearized, start: int) -> Any:
        def function(*args: Any) -> Any:
            leaves = [
                args[place[i] if kind == "operand" else start + i]
                for kind, i in part.sources
            ]
            return jtu.tree_unflatten(part.structure, leaves)(*args[first:])

        return function

    given = [*needed, *saved, *moving]
    branches = [
        trace(linear(part, start), *given)
        # Not strict: `starts` also has the end of the last part.
        for part, start in zip(parts, starts, strict=False)
    ]
    kept_owners = list(it.compress(owners, inexact))
    return bind(index, given, branches, kept_owners, len(moving))


def _transpose(
    cotangents: Any,
    index: Any,
    *operands: Any,
    branches: Any,
    owners: Any,
    num_linear: int,
) -> list[Any]:
    linear = [isinstance(x, ad.UndefinedPrimal) for x in operands]
    known = [x for x, is_linear in zip(operands, linear, strict=True) if not is_linear]
    alive = [type(ct) is not ad.Zero for ct in cotangents]
    cotangents = list(it.compress(cotangents, alive))
    given = [*known, *cotangents]
    backward = [
        trace(_backward(branch, operands, linear, alive), *given) for branch in branches
    ]
    results = bind(index, given, backward, num_linear=len(cotangents))
    return [None, *fill([None] * len(linear), linear, results)]


def _backward(
    branch: ClosedJaxpr,
    operands: Sequence[Any],
    linear: Sequence[bool],
    alive: Sequence[bool],
) -> Any:
    """Return the transpose of a branch, with known operands and cotangents."""
    used = used_inputs(branch)
    tangents = list(it.compress(operands, linear))
    moves = list(it.compress(used, linear))
    # `linear_transpose` makes zeros for unused operands; they share one array.
    unknown = [x.aval for x in it.compress(tangents, moves)]
    num_known = len(linear) - sum(linear)

    def function(*args: Any) -> list[Any]:
        def forward(*moving: Any) -> list[Any]:
            given = fill([None] * len(moves), moves, moving)
            is_known = [not is_linear for is_linear in linear]
            full = fill(fill(linear, linear, given), is_known, args)
            return list(it.compress(as_function(branch)(*full), alive))

        moved = ()
        if unknown:
            transposed = jax.linear_transpose(forward, *unknown)
            moved = transposed(list(args[num_known:]))
        unmoved = [x.aval for x, m in zip(tangents, moves, strict=True) if not m]
        rest = fill(list(moves), [not m for m in moves], zeros(unmoved))
        return fill(rest, moves, moved)

    return function


ad.primitive_jvps[choose_p] = _jvp
ad.primitive_transposes[choose_p] = _transpose
