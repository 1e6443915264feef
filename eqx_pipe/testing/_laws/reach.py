"""What a program gives where every branch that its input may choose plays a part.

With one input, a closed gate can hide a draw: dropout of zeros is zeros, whatever the
key. Whether the key could reach the output at all is seen if no branch is closed. So
what each branch gives is added, in a share of its own, to what was chosen. Zeros that
do not come from a branch stay zeros: `0 * noise` is still found to ignore its key.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from ..._sweep.tracing.evaluate import scan_counts

BRANCHES = {"cond", "eqx_pipe_choose"}
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint"}
_CALLS |= {"custom_jvp_call", "custom_vjp_call"}


class Value(NamedTuple):
    """An array, and whether it depends on the program's arguments."""

    array: Any
    varies: bool


def run_with_all_branches(closed: Any, args: list[Value]) -> list[Value]:
    """The outputs of a jaxpr, with all branches that are not chosen for good.

    Raises `NotImplementedError` for `while`: with other numbers it might not end.
    """
    jaxpr = getattr(closed, "jaxpr", closed)
    consts = [Value(c, False) for c in getattr(closed, "consts", ())]
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))

    def read(v: Any) -> Value:
        return Value(v.val, False) if isinstance(v, Literal) else values[v]

    for eqn in jaxpr.eqns:
        outputs = _equation(eqn, [read(v) for v in eqn.invars])
        values |= zip(eqn.outvars, outputs, strict=True)
    return [read(v) for v in jaxpr.outvars]


def _equation(eqn: Any, inputs: list[Value]) -> list[Value]:
    name, params = eqn.primitive.name, eqn.params
    if not any(v.varies for v in inputs):
        return [Value(y, False) for y in _bind(eqn, inputs)]
    if name in _CALLS:
        body = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
        return run_with_all_branches(body, inputs)
    if name == "while":
        raise NotImplementedError
    outputs = _scan(params, inputs) if name == "scan" else _bind(eqn, inputs)
    if inputs[0].varies and name in BRANCHES:
        each = [_arrays(body, inputs[1:]) for body in params["branches"]]
        outputs = [_mixed(*ys) for ys in zip(outputs, *each, strict=True)]
    elif inputs[0].varies and name == "select_n":
        outputs = [_mixed(outputs[0], *(v.array for v in inputs[1:]))]
    return [Value(y, True) for y in outputs]


def _arrays(closed: Any, args: list[Value]) -> list[Any]:
    return [v.array for v in run_with_all_branches(closed, args)]


def _scan(params: dict[str, Any], inputs: list[Value]) -> list[Any]:
    num_consts, num_carry = scan_counts(params)
    consts, arrays = inputs[:num_consts], [v.array for v in inputs[num_consts:]]

    def step(carry: list[Any], xs: list[Any]) -> Any:
        ys = _arrays(params["jaxpr"], consts + [Value(v, True) for v in carry + xs])
        return ys[:num_carry], ys[num_carry:]

    init, xs = arrays[:num_carry], arrays[num_carry:]
    keywords = {k: params[k] for k in ("length", "reverse")}
    carry, ys = jax.lax.scan(step, init, xs, **keywords)
    return [*carry, *ys]


def _bind(eqn: Any, inputs: list[Value]) -> list[Any]:
    params = eqn.primitive.get_bind_params(eqn.params)
    outputs = eqn.primitive.bind(*(v.array for v in inputs), **params)
    return outputs if eqn.primitive.multiple_results else [outputs]


def _mixed(chosen: Any, *cases: Any) -> Any:
    """What was chosen, with a share of each case; integers, often indices, are kept."""
    if not jnp.issubdtype(chosen.dtype, jnp.inexact):
        return chosen
    shares = [jnp.nan_to_num(y) * 0.62**k for k, y in enumerate(cases, start=1)]
    return sum(shares, chosen).astype(chosen.dtype)
