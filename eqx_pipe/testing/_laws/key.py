"""The law that draws depend on the key, and that no key is used twice."""

import itertools as it
import traceback
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.errors import KeyReuseError

from ..._jaxprs import (
    Equation,
    Flow,
    equations,
    interpret,
    kind,
    rebind,
    sub_jaxprs,
    within,
)
from .law import Broken, Undecided, law
from .trial import Trial

DRAWS = ("random_bits", "random_unwrap", "random_gamma", "threefry2x32")


@law("key", "draws come from `key`, and no key is used twice.")
def key_law(trial: Trial) -> None:
    programs = trial.programs
    draws = not programs.primitives.isdisjoint(DRAWS)
    marks = [name == "key" for name in programs.names]
    if draws and not any(Flow().run(programs.jaxpr, marks)):
        raise Broken("it draws random numbers, and the output does not depend on `key`")
    own = any(map(_is_own_choice, equations(programs.jaxpr)))
    function = _with_switches(programs.jaxpr) if own else programs.function
    try:
        # JAX tracks keys while tracing; nothing is compiled.
        with jax.debug_key_reuse(True):
            jax.jit(function).trace(*trial.leaves)
    except KeyReuseError as error:
        # Under `vmap` both branches of a `cond` run with the same key.
        if _selects(programs.jaxpr):
            raise Undecided("it selects between draws, which may share a key") from None
        place = "" if own else _place(error)
        raise Broken(f"one key is used twice{place}; split it") from None


def _is_own_choice(eqn: Equation) -> bool:
    return kind(eqn) == "branches" and eqn.primitive.name != "cond"


def _with_switches(jaxpr: Any) -> Callable[..., list[Any]]:
    """Return a program with `lax.switch` for choices in which JAX cannot track keys."""

    def rule(eqn: Equation, inputs: list[Any]) -> Any:
        if kind(eqn) == "call":
            return interpret(next(sub_jaxprs(eqn)), inputs, rule)
        if _is_own_choice(eqn):
            branches = list(map(_with_switches, eqn.params["branches"]))
            index = jax.numpy.asarray(inputs[0], int)
            return jax.lax.switch(index, branches, *inputs[1:])
        return rebind(eqn, inputs)

    return lambda *inputs: interpret(jaxpr, inputs, rule)


def _selects(jaxpr: Any) -> bool:
    """Return whether an operation selects between values of different draws."""
    numbers, found = it.count(), []
    nothing: frozenset[int] = frozenset()

    def rule(eqn: Equation, marks: list[frozenset[int]]) -> list[frozenset[int]]:
        """Return the draws on which each output of an equation depends."""
        if kind(eqn) == "call":
            return interpret(next(sub_jaxprs(eqn)), marks, rule, lambda _: nothing)
        if eqn.primitive.name == "select_n":
            cases = marks[1:]
            alone = [
                a - nothing.union(*(b for b in cases if b is not a)) for a in cases
            ]
            found.append(sum(map(bool, alone)) > 1)
        draws = any(inner.primitive.name in DRAWS for inner in within(eqn))
        own = frozenset([next(numbers)]) if draws else nothing
        return [own.union(*marks)] * len(eqn.outvars)

    interpret(jaxpr, [nothing] * len(jaxpr.in_avals), rule, lambda _: nothing)
    return any(found)


def _place(error: KeyReuseError) -> str:
    """Return the user's line of the second use, from JAX's message."""
    frames: list[Any] = []
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        cause = cause.__cause__
    libraries = [str(m.__file__).rpartition("__init__")[0] for m in (jax, eqx)]
    own = [f for f in frames if not f.filename.startswith(tuple(libraries))]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
