"""What a program gives where every branch that its input may choose plays a part.

With one input, a closed gate can hide a draw: dropout of zeros is zeros, whatever the
key. Whether the key could reach the output at all is seen if no branch is closed. So
what each branch gives is added, in a share of its own, to what was chosen. Zeros that
do not come from a branch stay zeros: `0 * noise` is still found to ignore its key.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._jaxprs.jaxpr import Equation, interpret, rebind, sub_jaxprs
from ..._jaxprs.table import kind, scan_counts


class Value(NamedTuple):
    """An array, and whether it depends on the program's arguments."""

    array: Any
    varies: bool


def run_with_all_branches(closed: Any, args: list[Value]) -> list[Value]:
    """The outputs of a jaxpr, with all branches that are not chosen for good.

    Raises `NotImplementedError` for `while`: with other numbers it might not end.
    """
    return interpret(closed, args, _equation, lambda x: Value(x, False))


def _equation(eqn: Equation, inputs: list[Value]) -> list[Value]:
    arrays = [v.array for v in inputs]
    if not any(v.varies for v in inputs):
        return [Value(y, False) for y in rebind(eqn, arrays)]
    match kind(eqn):
        case "call":
            return run_with_all_branches(next(sub_jaxprs(eqn)), inputs)
        case "while":
            raise NotImplementedError
        case "scan":
            outputs = _scan(eqn, inputs)
        case _:
            outputs = rebind(eqn, arrays)
    if inputs[0].varies and kind(eqn) == "branches":
        each = [_arrays(body, inputs[1:]) for body in eqn.params["branches"]]
        outputs = [_mixed(*ys) for ys in zip(outputs, *each, strict=True)]
    elif inputs[0].varies and eqn.primitive.name == "select_n":
        outputs = [_mixed(outputs[0], *arrays[1:])]
    return [Value(y, True) for y in outputs]


def _arrays(closed: Any, args: list[Value]) -> list[Any]:
    return [v.array for v in run_with_all_branches(closed, args)]


def _scan(eqn: Equation, inputs: list[Value]) -> list[Any]:
    num_consts, num_carry = scan_counts(eqn)
    consts, arrays = inputs[:num_consts], [v.array for v in inputs[num_consts:]]

    def step(carry: list[Any], xs: list[Any]) -> Any:
        given = consts + [Value(v, True) for v in carry + xs]
        ys = _arrays(eqn.params["jaxpr"], given)
        return ys[:num_carry], ys[num_carry:]

    init, xs = arrays[:num_carry], arrays[num_carry:]
    keywords = {k: eqn.params[k] for k in ("length", "reverse")}
    carry, ys = jax.lax.scan(step, init, xs, **keywords)
    return [*carry, *ys]


def _mixed(chosen: Any, *cases: Any) -> Any:
    """What was chosen, with a share of each case; integers, often indices, are kept."""
    if not jnp.issubdtype(chosen.dtype, jnp.inexact):
        return chosen
    shares = [jnp.nan_to_num(y) * 0.62**k for k, y in enumerate(cases, start=1)]
    return sum(shares, chosen).astype(chosen.dtype)
