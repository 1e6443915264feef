"""The laws that derivatives and rules of a stage's own have the right values.

A rule (`custom_jvp`, `custom_vjp`, `custom_vmap`, a primitive of one's own) is an
equation of the stage's program. It is tried by itself, on what it is given when the
stage is called, so that a kink or a `stop_gradient` elsewhere is no false alarm.
"""

import contextlib
import inspect
import os
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from equinox.nn import State

from ..._jaxprs.jaxpr import (
    Equation,
    equations,
    interpret,
    open_jaxpr,
    rebind,
    sub_jaxprs,
)
from ..._jaxprs.table import entry, kind, scan_counts, while_counts
from ..._types import Key, PyTree, StageLike
from .batches import Lanes, batched_and_looped, subsets
from .compare import Bound
from .law import Undecided, law
from .numeric import Measured, judge, measure
from .report import check
from .slopes import Arrays
from .trial import Trial, evaluate, inexact_arrays
from .wide import widened

_CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vmap_call")
_CUSTOM_DERIVATIVES = inspect.getfile(jax.custom_gradient)
# What JAX and Equinox have of such rules is for their own tests.
_OTHERS = tuple(
    os.path.join(os.path.dirname(module.__file__ or ""), *inside, "")
    for module, inside in ((jax, ()), (eqx, ("internal",)))
)


@law("rules", "a rule of one's own gives the derivatives and batches of its function.")
def rules_law(trial: Trial) -> str | None:
    try:
        program = trial.program[0]
    except Exception:  # other laws say that it cannot be traced
        return None
    if not any(map(_name_of_own, equations(program))):
        return None
    with widened(trial) as given:
        found = _measure_rules(given.stage, given.x, given.state, given.key)
    notes = []
    for name, measured, lanes in found:
        for lane in lanes:
            lane.check(trial.tolerance, f"`{name}`: ")
        with contextlib.suppress(Undecided):
            note = judge(measured, of=f"`{name}`: ")
            notes += [f"`{name}`: {note}"] if note else []
    return "; ".join(notes) or None


def check_rules(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks the rules of one's own in a stage: derivatives and batches.

    Each function with a `custom_jvp`, `custom_vjp` or `custom_vmap`, and each primitive
    of one's own, is tried at what it is given inside of the stage. By forward and
    reverse mode, by all inputs and by single ones, its first and second derivatives are
    what differences in double precision say, but for kinks; and `vmap` over any of its
    inputs is a loop. Rules of JAX itself are not tried.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken: also by a rule that is meant not
    to be the derivative, such as that of a straight-through estimator.

    !!! example

        >>> import eqx_pipe.testing as ept, jax, jax.numpy as jnp
        >>> @jax.custom_jvp
        ... def cube(x):
        ...     return x**3
        >>> @cube.defjvp
        ... def wrong(x, t):
        ...     return x[0] ** 3, 2 * x[0] ** 2 * t[0]
        >>> ept.check_rules(cube, jnp.ones(2))
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_rules`: the law `rules` is broken: ...
    """
    __tracebackhide__ = True
    check(rules_law, stage, x, state, key, rtol, atol)


@law(
    "numerical",
    "derivatives are what differences say, and so are second ones.",
    function="check_function",
)
def numerical_law(trial: Trial) -> str | None:
    with widened(trial) as given:
        measured = _measure_stage(given.stage, given.x, given.state, given.key)
        names = inexact_arrays({"stage": given.stage, "x": given.x})[0]
        outs = inexact_arrays(given.plain)[0]
    return judge(measured, names, outs) if names and outs else None


# Compiled once for all inputs of a stage.


@eqx.filter_jit
def _measure_stage(stage: Any, x: PyTree, state: Any, key: Any) -> Measured | None:
    given = {"stage": stage, "x": x}
    moving, fixed = eqx.partition(given, eqx.is_inexact_array)
    leaves, structure = jtu.tree_flatten(moving)

    def call(inputs: Arrays) -> Arrays:
        both = eqx.combine(jtu.tree_unflatten(structure, inputs), fixed)
        return inexact_arrays(evaluate(both["stage"], both["x"], state, key))[1]

    return measure(call, [jnp.asarray(v) for v in leaves], single=False)


@eqx.filter_jit
def _measure_rules(
    stage: Any, x: PyTree, state: Any, key: Any
) -> list[tuple[str, Measured | None, list[Lanes]]]:
    given = (stage, x, state, key)
    program = eqx.filter_make_jaxpr(evaluate)(*given)[0]
    args = jtu.tree_leaves(eqx.filter(given, eqx.is_array))
    found = []
    for name, eqn, inputs in _calls_of_rules(program, args):
        # By what a function closes over its rule says no derivative.
        first = eqn.params.get("num_consts", 0)
        moving = [i for i, v in enumerate(inputs) if eqx.is_inexact_array(v)]
        moving = [i for i in moving if i >= first]

        def outputs(
            some: Arrays, eqn: Any = eqn, inputs: Any = inputs, moving: Any = moving
        ) -> Arrays:
            every = list(inputs)
            for i, v in zip(moving, some, strict=True):
                every[i] = v
            return [v for v in rebind(eqn, every) if eqx.is_inexact_array(v)]

        some = [inputs[i] for i in moving]
        measured = measure(outputs, some) if some and outputs(some) else None
        # JAX batches the function of a rule of derivatives itself.
        lanes = [] if eqn.primitive.name in _CUSTOM[:2] else _over_subsets(eqn, inputs)
        found.append((name, measured, lanes))
    return found


def _calls_of_rules(
    program: Any, args: Sequence[Any]
) -> list[tuple[str, Equation, list[Any]]]:
    """The equations with a rule of one's own, each kind once, and their inputs.

    In a loop these are what its first pass is given.
    """
    found: dict[Any, tuple[str, Equation, list[Any]]] = {}

    def equation(eqn: Equation, inputs: list[Any]) -> list[Any]:
        name = _name_of_own(eqn)
        if name:
            bodies = tuple(str(body) for body in sub_jaxprs(eqn))
            forms = tuple(str(v.aval) for v in eqn.invars)
            found.setdefault((name, bodies, forms), (name, eqn, inputs))
            return rebind(eqn, inputs)
        match kind(eqn):
            case "call":
                return interpret(next(sub_jaxprs(eqn)), inputs, equation)
            case "branches":
                for branch in eqn.params["branches"]:
                    interpret(branch, inputs[1:], equation)
            case "scan" if eqn.params["length"]:
                count = sum(scan_counts(eqn))
                first = [v[0] for v in inputs[count:]]
                interpret(eqn.params["jaxpr"], [*inputs[:count], *first], equation)
            case "while":
                of_cond, _ = while_counts(eqn)
                interpret(eqn.params["body_jaxpr"], inputs[of_cond:], equation)
        return rebind(eqn, inputs)

    interpret(program, args, equation)
    return list(found.values())


def _name_of_own(eqn: Equation) -> str:
    """The name of what has a rule of the user's own; empty for all other equations."""
    if eqn.primitive.name in _CUSTOM:
        body = open_jaxpr(next(sub_jaxprs(eqn)))[0].debug_info.func_src_info
        name, _, place = body.partition(" at ")
        places = [place, *_places_of_rules(eqn)]
        own = not all(place.startswith(_OTHERS) for place in places)
        # `jax.custom_gradient` wraps a function; JAX itself has no use for it.
        own = own or place.startswith(_CUSTOM_DERIVATIVES)
        return (name or eqn.primitive.name) if own else ""
    if entry(eqn) is not None:
        return ""
    own = getattr(eqn.primitive.impl, "__module__", None) or "jax"
    known = ("jax", "jaxlib", "equinox", "eqx_pipe", "functools")
    return "" if own.partition(".")[0] in known else eqn.primitive.name


def _places_of_rules(eqn: Equation) -> Iterator[str]:
    """The files in which the rules of an equation are written."""
    for value in eqn.params.values():
        info = getattr(getattr(value, "debug_info", None), "func_src_info", None)
        code = getattr(getattr(value, "__wrapped__", None), "__code__", None)
        if info:
            yield info.partition(" at ")[2]
        elif code is not None:
            yield code.co_filename


def _over_subsets(eqn: Equation, inputs: list[Any]) -> list[Lanes]:
    """The outputs for batches of some of the inputs, by `vmap` and by a loop."""

    def call(inputs: list[Any]) -> list[Any]:
        return rebind(eqn, inputs)

    def tangents(inputs: list[Any]) -> list[Any]:
        moving = [i for i, v in enumerate(inputs) if eqx.is_inexact_array(v)]

        def some(values: list[Any]) -> list[Any]:
            every = list(inputs)
            for i, v in zip(moving, values, strict=True):
                every[i] = v
            return [y for y in call(every) if eqx.is_inexact_array(y)]

        given = [inputs[i] for i in moving]
        return jax.jvp(some, (given,), (given,))[1]

    found = []
    for chosen in subsets(len(inputs)):
        which = (
            f"over input{'s' if len(chosen) > 1 else ''} {', '.join(map(str, chosen))}"
        )
        found.append(batched_and_looped(call, inputs, chosen, f"`vmap` {which}"))
        with contextlib.suppress(Exception):
            jax.eval_shape(tangents, inputs)
            how = f"`vmap` {which} of the derivative"
            found.append(batched_and_looped(tangents, inputs, chosen, how))
    return found
