"""How a loop is differentiated: in forward mode, as `lax.while_loop` is.

The derivative is a loop with the tangents in its carry, which is refilled like any
other. Reverse mode would have to keep every step, and their number is not known.
"""

import itertools as it
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe

from .._conditionals import zeros
from .._errors import value_error
from .._jaxprs import as_function, depends_on
from .._tree import fill
from .._types import ClosedJaxpr
from .batch import carry_depends
from .loop import LoopParams, loop, refill_p, struct


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    p = LoopParams(**params)
    num_consts = p.num_consts
    inexact = [jnp.issubdtype(struct(x).dtype, jnp.inexact) for x in primals]
    moving = [
        type(t) is not ad.Zero and i for t, i in zip(tangents, inexact, strict=True)
    ]
    # A carry without a tangent at first may get one in a later step.
    depends = carry_depends(p.body, *p.split(moving))
    moves = [d and i for d, i in zip(depends, inexact[num_consts:], strict=True)]
    moving[num_consts:] = moves
    num, extra = len(primals), sum(moving[:num_consts])

    def split(args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The primals, and the tangents of those that move."""
        consts, rest = list(args[:num_consts]), args[num_consts + extra :]
        middle = list(args[num_consts : num_consts + extra])
        num_carry = num - num_consts
        return [*consts, *rest[:num_carry]], [*middle, *rest[num_carry:]]

    def test(*args: Any) -> Any:
        return as_function(p.cond)(*split(args)[0])

    def step(*args: Any) -> list[Any]:
        values, moved = split(args)

        def of_moving(*given: Any) -> list[Any]:
            return as_function(p.body)(*fill(values, moving, given))

        at = list(it.compress(values, moving))
        carry, slopes = jax.jvp(of_moving, at, moved)
        return [*carry, *it.compress(slopes, moves)]

    given = list(map(ad.instantiate_zeros, it.compress(tangents, moving)))
    results = loop(
        test,
        step,
        [*primals[:num_consts], *given[:extra]],
        [*primals[num_consts:], *given[extra:]],
        p.size,
        [*p.tilings, *it.compress(p.tilings, moving[:num_consts])],
    )
    outputs, slopes = results[: num - num_consts], results[num - num_consts :]
    still = [ad.Zero(jax.typeof(y).to_tangent_aval()) for y in outputs]
    return outputs, fill(still, moves, slopes)


def _partial_eval(trace: Any, *tracers: Any, **params: Any) -> list[Any]:
    """What is known is computed by a loop of its own; the rest is the whole loop.

    So the values are known while their tangents wait for theirs (`jax.linearize`).
    """
    p = LoopParams(**params)
    unknown = [not t.pval.is_known() for t in tracers]
    consts, carry = p.split(unknown)
    carry = carry_depends(p.body, consts, carry)
    hidden = [*consts, *carry]
    missing = list(it.compress(p.body.in_avals, hidden))
    whole = trace.default_process_primitive
    if all(carry) or not any(unknown) or depends_on(p.cond, hidden)[0]:
        return whole(refill_p, tracers, params)

    known = [not u for u in hidden]
    known_consts, known_carry = p.split(known)

    def of_known(jaxpr: ClosedJaxpr) -> Callable[..., list[Any]]:
        def function(*args: Any) -> list[Any]:
            given = fill(fill(known, hidden, zeros(missing)), known, args)
            return as_function(jaxpr)(*given)

        return function

    def step(*args: Any) -> list[Any]:
        return list(it.compress(of_known(p.body)(*args), known_carry))

    values = [t.pval.get_known() for t in it.compress(tracers, known)]
    shown = sum(known_consts)
    tilings = list(it.compress(p.tilings, known_consts))
    own = values[:shown], values[shown:]
    results = loop(of_known(p.cond), step, *own, p.size, tilings)
    return fill(whole(refill_p, tracers, params), known_carry, results)


def _transpose(*_: Any, **__: Any) -> Any:
    raise value_error(
        "refill",
        "it was differentiated in reverse mode (`jax.grad`, `jax.vjp`), and how "
        "many steps there are to go back over is not known.",
        "Use forward mode (`jax.jvp`, `jax.jacfwd`), or a `jax.lax.scan` with a "
        "largest number of steps.",
    )


ad.primitive_jvps[refill_p] = _jvp
ad.primitive_transposes[refill_p] = _transpose
pe.custom_partial_eval_rules[refill_p] = _partial_eval
