"""Counts of the steps of loops, in addition to the outputs of a program.

A step is one run of the body of a `while_loop`. Nested loops count their own steps, in
addition to those of the loops around them. Loops whose length does not depend on values
(`scan`) never wait and are not counted, nor are loops inside of primitives that the
table does not list as calls, branches or loops.

Two numbers are counted: the steps that the point needs by itself, and the steps
executed until all lanes of its batch have finished. They differ under `jax.vmap` only.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

from .._types import AnyJaxpr, ClosedJaxpr
from .evaluate import remade, scan_of, stepped
from .jaxpr import Equation, equations, interpret, open_jaxpr, rebind, trace
from .table import bodies, kind, while_counts

Count: TypeAlias = UInt32[Array, ""]
"""A number of steps, which saturates at 2^32 - 1."""

# A loop of Equinox continues while any lane does. The condition of a lane by itself:
_ALONE: dict[str, Callable[[Any], Any]] = {
    "unvmap_any": jnp.any,
    "unvmap_all": jnp.all,
    "unvmap_max": jnp.max,
    "nonbatchable": lambda x: x,
}


def counted(jaxpr: AnyJaxpr, args: Sequence[Any]) -> list[Any]:
    """Return the outputs of a jaxpr, then the numbers of steps needed and executed."""
    needed = executed = jnp.uint32(0)

    def rule(eqn: Equation, inputs: list[Any]) -> list[Any]:
        nonlocal needed, executed
        if not _has_steps(eqn):
            return rebind(eqn, inputs)
        with eqn.ctx.manager:
            *outputs, steps, all_lanes = _RULES[kind(eqn)](eqn, inputs)
        needed, executed = _sum(needed, steps), _sum(executed, all_lanes)
        return outputs

    outputs = interpret(jaxpr, args, rule)
    return [*outputs, needed, executed]


def _has_steps(eqn: Equation) -> bool:
    if eqn.primitive.name == "while":
        return True
    inside = bodies(eqn) if kind(eqn) in ("call", "branches", "scan") else []
    return any(_has_steps(inner) for b in inside for inner in open_jaxpr(b)[0].eqns)


def _sum(a: Count, b: Count) -> Count:
    total = a + b
    return jnp.where(total < a, jnp.uint32(2**32 - 1), total)


def _branches(eqn: Equation, inputs: list[Any]) -> list[Any]:
    """Count branches; all lanes run each branch that any of them has chosen."""
    branches = bodies(eqn)

    def run(k: int, *operands: Any) -> list[Any]:
        *outputs, needed, executed = counted(branches[k], operands)
        others = [jnp.uint32(0)] * len(branches)
        return [*outputs, needed, *others[:k], executed, *others[k + 1 :]]

    runs = [ft.partial(run, k) for k in range(len(branches))]
    outputs = remade(eqn, runs, inputs)
    # Lanes in one branch step together until the slowest ends; other lanes count 0.
    each = map(eqxi.unvmap_max, outputs[-len(branches) :])
    return [*outputs[: -len(branches)], ft.reduce(_sum, each)]


def _scan(eqn: Equation, inputs: list[Any]) -> list[Any]:
    def step(*args: Any) -> list[Any]:
        *inner, needed, executed = args
        *outputs, steps, all_lanes = counted(bodies(eqn)[0], inner)
        return [*outputs, _sum(needed, steps), _sum(executed, all_lanes)]

    return scan_of(eqn, step, inputs, [jnp.uint32(0)] * 2)


def _while_loop(eqn: Equation, inputs: list[Any]) -> list[Any]:
    """Count a loop; a finished lane keeps its counts, as it keeps its carry."""
    (cond, body), (of_cond, of_body) = bodies(eqn), while_counts(eqn)
    consts, init = inputs[of_cond : of_cond + of_body], inputs[of_cond + of_body :]
    one = jnp.uint32(1)

    def goes(carry: Sequence[Any], rule: Any) -> Any:
        return interpret(cond, [*inputs[:of_cond], *carry], rule)[0]

    def step(state: Any) -> Any:
        carry, needed, executed = state
        *outputs, steps, all_lanes = counted(body, [*consts, *carry])
        more = _sum(needed, _sum(steps, one))
        if any(inner.primitive.name in _ALONE for inner in equations(cond)):
            # Lanes step together, and the results of finished lanes are discarded.
            more = jnp.where(jnp.any(goes(carry, _alone)), more, needed)
        outputs = stepped(eqn, lambda carry: goes(carry, rebind), outputs, carry)
        return outputs, more, _sum(executed, _sum(all_lanes, one))

    first = init, jnp.uint32(0), jnp.uint32(0)
    carry, needed, executed = jax.lax.while_loop(
        lambda state: jnp.any(goes(state[0], rebind)), step, first
    )
    return [*carry, needed, eqxi.unvmap_max(executed)]


def alone(cond: ClosedJaxpr) -> ClosedJaxpr:
    """Return the condition of a loop, or of a loop of Equinox, for a lane by itself."""
    if not any(eqn.primitive.name in _ALONE for eqn in equations(cond)):
        return cond
    avals = [v.aval for v in open_jaxpr(cond)[0].invars]
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    return trace(lambda *args: interpret(cond, args, _alone), *structs)


def _alone(eqn: Equation, inputs: list[Any]) -> list[Any]:
    if kind(eqn) == "call":
        return interpret(bodies(eqn)[0], inputs, _alone)
    of_lane = _ALONE.get(eqn.primitive.name)
    return rebind(eqn, inputs) if of_lane is None else [of_lane(*inputs)]


_RULES: dict[Any, Callable[[Equation, list[Any]], list[Any]]] = {
    "call": lambda eqn, inputs: counted(bodies(eqn)[0], inputs),
    "branches": _branches,
    "scan": _scan,
    "while": _while_loop,
}
