"""Branches of a program: what is used on one side alone, and what if none is closed.

`vmap` makes a select of a branch whose condition differs from lane to lane, and both
sides are then computed, from the same key too. What is used by one side of a select
alone matters only in the lanes that choose this side: `guards_in`.

With one input, a closed gate can hide a draw: dropout of zeros is zeros, whatever the
key. Whether the key could reach the output at all is seen if no branch is closed. So
`run_with_all_branches` adds what each branch gives, in a share of its own, to what was
chosen. Zeros that do not come from a branch stay zeros: `0 * noise` is still found to
ignore its key.

So can a value that happens to be constant before the draw is applied to it, as the mean
of `x` and `-x` is. `run_with_others` puts other numbers there.
"""

import functools as ft
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..._jaxprs.evaluate import scan_of
from ..._jaxprs.jaxpr import Equation, interpret, is_literal, rebind, sub_jaxprs
from ..._jaxprs.table import kind, scan_counts

Guards = frozenset[tuple[Any, int]]
"""Conditions: the variable that a select asks, and the side that it must choose."""

# These give the condition another form, and are traced anew for each select.
_SHAPES = {"broadcast_in_dim", "reshape", "squeeze", "convert_element_type", "copy"}


def exclusive(first: Guards, second: Guards) -> bool:
    """Whether no lane can need both."""
    sides = dict(first)
    return any(sides.get(asked, side) != side for asked, side in second)


def guards_in(jaxpr: Any) -> tuple[Guards | None, ...]:
    """The guards of each operation of a jaxpr; `None` if nothing uses its outputs."""
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    known: dict[Any, Guards] = {}

    def meet(variable: Any, guards: Guards) -> None:
        if not is_literal(variable):
            known[variable] = known.get(variable, guards) & guards

    def root(variable: Any) -> Any:
        while variable in makers and makers[variable].primitive.name in _SHAPES:
            variable = makers[variable].invars[0]
        return variable

    for variable in jaxpr.outvars:
        meet(variable, frozenset())
    found: list[Guards | None] = []
    for eqn in reversed(jaxpr.eqns):
        needed = [known[v] for v in eqn.outvars if v in known]
        if eqn.effects:
            needed.append(frozenset())
        if not needed:
            found.append(None)
            continue
        guards = frozenset.intersection(*needed)
        found.append(guards)
        is_select = eqn.primitive.name == "select_n"
        for side, variable in enumerate(eqn.invars, start=-1):
            chosen = {(root(eqn.invars[0]), side)} if is_select and side >= 0 else set()
            meet(variable, guards | chosen)
    return tuple(reversed(found))


class Value(NamedTuple):
    """An array, whether it depends on the program's arguments, and whether on a key."""

    array: Any
    varies: bool
    of_key: bool = False


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
            outputs = scan_of(eqn, ft.partial(_pass, eqn, inputs), arrays)
        case _:
            outputs = rebind(eqn, arrays)
    if inputs[0].varies and kind(eqn) == "branches":
        each = [_arrays(body, inputs[1:]) for body in eqn.params["branches"]]
        outputs = [_mixed(*ys) for ys in zip(outputs, *each, strict=True)]
    elif inputs[0].varies and eqn.primitive.name == "select_n":
        outputs = [_mixed(outputs[0], *arrays[1:])]
    return [Value(y, True) for y in outputs]


def run_with_others(closed: Any, args: list[Value]) -> list[Value]:
    """The outputs with all branches, and with other numbers where a draw is applied.

    Where an operation takes what depends on a key and what does not, the latter, if it
    depends on the arguments, is replaced by fixed numbers without zeros. What does not
    depend on them is kept, so that `x + 0 * noise` is still found to ignore its key.
    """
    return interpret(closed, args, _equation_with_others, lambda x: Value(x, False))


def _equation_with_others(eqn: Equation, inputs: list[Value]) -> list[Value]:
    if kind(eqn) == "call":
        return run_with_others(next(sub_jaxprs(eqn)), inputs)
    of_key = any(v.of_key for v in inputs)
    if of_key:
        inputs = [v if v.of_key or not v.varies else _other(v) for v in inputs]
    return [v._replace(of_key=of_key) for v in _equation(eqn, inputs)]


def _other(value: Value) -> Value:
    array = value.array
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return value
    drawn = np.random.default_rng(0).uniform(0.5, 1.5, array.shape)
    return value._replace(array=jnp.asarray(drawn, array.dtype))


def _arrays(closed: Any, args: list[Value]) -> list[Any]:
    return [v.array for v in run_with_all_branches(closed, args)]


def _pass(eqn: Equation, inputs: list[Value], *arrays: Any) -> list[Any]:
    """One pass of a scan, of which only the constants may vary or not."""
    count, _ = scan_counts(eqn)
    given = inputs[:count] + [Value(v, True) for v in arrays[count:]]
    return _arrays(eqn.params["jaxpr"], given)


def _mixed(chosen: Any, *cases: Any) -> Any:
    """What was chosen, with a share of each case; integers, often indices, are kept."""
    if not jnp.issubdtype(chosen.dtype, jnp.inexact):
        return chosen
    # Unequal, as `x` and `-x` would cancel; a side that is not chosen may be NaN.
    shares = [jnp.nan_to_num(y) * 0.62**k for k, y in enumerate(cases, start=1)]
    return sum(shares, chosen).astype(chosen.dtype)
