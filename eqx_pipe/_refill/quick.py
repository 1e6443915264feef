"""Loops whose steps are so short that several are compiled as one.

Whatever it computes, a step costs something: a call, a look at whether any lane goes
on, the carry read and written. Where it is a few operations on single numbers that is
most of it. Several of them at once, each for those that go on, keep their numbers in
registers. Points take the steps that they take alone, so their values are the same.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from .._choose.dependence import equations
from .._types import ClosedJaxpr

_SHORT = frozenset(
    """
    abs add and convert_element_type copy copy_p div eq ge gt integer_pow le lt max min
    mul ne neg not or select_n sqrt square stop_gradient sub xor
    """.split()
)
_MOST = 12  # operations
_STEPS = 4, 2
# Of all steps and lanes together. With more, XLA begins to split steps over threads on
# CPUs, and they take several times as long.
_BYTES = 40 * 1024


def steps_at_once(
    cond: ClosedJaxpr, body: ClosedJaxpr, lanes: int, most: int = _STEPS[0]
) -> int:
    """How many steps of a loop to compile as one for so many points side by side."""
    if not is_quick(cond, body):
        return 1
    # Constants that both read count twice, which is near enough.
    held = sum(v.dtype.itemsize for v in (*_constants(cond, body), *body.in_avals))
    fitting = (n for n in _STEPS if n <= most and n * lanes * held <= _BYTES)
    return next(fitting, 1)


def is_quick(cond: ClosedJaxpr, body: ClosedJaxpr) -> bool:
    """Whether a step of a loop is a few short operations on single numbers."""
    number = 0
    for jaxpr in (cond, body):
        if not all(map(_is_number, (*jaxpr.in_avals, *jaxpr.out_avals))):
            return False
        inner: Any = getattr(jaxpr, "jaxpr", jaxpr)
        for eqn in equations(inner):
            if eqn.primitive.name in ("jit", "pjit"):
                continue  # what it calls is among the equations
            if not _is_short(eqn):
                return False
            number += 1
    return number <= _MOST


def _is_short(eqn: Any) -> bool:
    name, types = eqn.primitive.name, [v.aval for v in eqn.outvars]
    if name == "div" and not jnp.issubdtype(types[0].dtype, jnp.inexact):
        return False  # many times as long as that of floats
    return name in _SHORT and all(map(_is_number, types))


def several(
    test: Callable[[list[Any]], Any],
    step: Callable[[list[Any]], list[Any]],
    count: int,
) -> Callable[[list[Any]], list[Any]]:
    """`count` steps of a loop of single numbers; `test` holds before the first."""

    def steps(carry: list[Any]) -> list[Any]:
        carry = step(carry)
        for _ in range(count - 1):
            goes_on = test(carry)
            pairs = zip(step(carry), carry, strict=True)
            carry = [lax.select(goes_on, new, old) for new, old in pairs]
        return carry

    return steps


def _constants(cond: ClosedJaxpr, body: ClosedJaxpr) -> list[Any]:
    """The types of what the test of a loop reads besides the carry."""
    return list(cond.in_avals[: len(cond.in_avals) - len(body.out_avals)])


def _is_number(aval: Any) -> bool:
    if getattr(aval, "shape", None) != ():
        return False
    return jnp.issubdtype(aval.dtype, jnp.number) or aval.dtype == jnp.bool_
