"""Evaluation of a jaxpr whose closed-over arrays are passed in as arguments.

JAX keeps the arrays that an inner `jit` closes over inside of it, where they would be
compiled in. So equations with such jaxprs are rebuilt from functions that get the
arrays as arguments. Equations that record the user's mesh are rebuilt too, since the
sweep has another mesh.
"""

import dataclasses
import itertools as it
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, Sharding

from .._types import AnyJaxpr
from .jaxpr import (
    Equation,
    as_function,
    hoist,
    interpret,
    open_jaxpr,
    rebind,
    trace,
    within,
)
from .table import (
    Entry,
    bodies,
    entry,
    kind,
    num_constants,
    register,
    scan_counts,
    while_counts,
)

Bodies: TypeAlias = Sequence[Callable[..., list[Any]]]
"""Functions that replace the jaxprs of an equation."""

# Placements on the user's mesh have no meaning on one device of the sweep.
_PLACEMENTS = {"sharding_constraint", "mesh_cast", "reshard"}


def evaluate(
    jaxpr: AnyJaxpr, constants: Sequence[Any], args: Sequence[Any], inline: bool = False
) -> list[Any]:
    """Return the outputs of a jaxpr, with `constants` in place of its own arrays.

    They are in the order of a `Fingerprint`: the jaxpr's own constants, then those of
    its equations. With `inline`, the bodies of calls take the place of the calls.
    """
    # Most programs need no change, and tracing them as they are is faster.
    if not inline and not _is_altered(jaxpr):
        return as_function(jaxpr, constants)(*args)
    left = iter(constants)
    consts = [next(left) for _ in open_jaxpr(jaxpr)[1]]

    def rule(eqn: Equation, inputs: list[Any]) -> list[Any]:
        # Use lists, since JAX may trace a body more than once.
        inner = [Body(b, [*it.islice(left, num_constants(b))]) for b in bodies(eqn)]
        if inline and kind(eqn) == "call":
            with eqn.ctx.manager:
                return evaluate(inner[0].jaxpr, inner[0].constants, inputs, inline)
        return _evaluate_equation(eqn, inner, inputs)

    return interpret(jaxpr, args, rule, consts=consts)


def _evaluate_equation(eqn: Equation, inner: Bodies, inputs: list[Any]) -> list[Any]:
    """Return the outputs of an equation, rebuilt from the bodies `inner` if needed."""
    if _is_on_a_mesh(eqn):
        return _without_mesh(eqn, inner, inputs)
    if not _is_remade(eqn):
        return rebind(eqn, inputs)
    # Bind the new equations in the context of the original one.
    with eqn.ctx.manager:
        return remade(eqn, inner, inputs)


@dataclasses.dataclass(frozen=True, eq=False)  # JAX refers to functions weakly
class Body:
    """A jaxpr of an equation, and arrays that replace those it closes over."""

    jaxpr: AnyJaxpr
    constants: list[Any]

    def __call__(self, *args: Any) -> list[Any]:
        return evaluate(self.jaxpr, self.constants, args)


def remade(eqn: Equation, bodies: Bodies, inputs: list[Any]) -> list[Any]:
    """Return the outputs of an equation with other bodies.

    The bodies of a branch may have further outputs, which come last.
    """
    remake = entry(eqn).remake
    if remake is not None:
        return remake(eqn, bodies, inputs)
    match kind(eqn):
        case "call":
            return bodies[0](*inputs)
        case "branches":
            return list(jax.lax.switch(inputs[0], bodies, *inputs[1:]))
        case "scan":
            return scan_of(eqn, bodies[0], inputs)
        case "while":
            return _while_loop(eqn, bodies, inputs)
    raise AssertionError(f"`{eqn.primitive}` is made anew: please report this.")


def scan_of(
    eqn: Equation, body: Callable[..., list[Any]], inputs: list[Any], more: Any = ()
) -> list[Any]:
    """Return the outputs of a scan with another body.

    It may carry `more` values, which the body takes and returns after all others.
    """
    num_consts, num_carry = scan_counts(eqn)
    consts, rest = inputs[:num_consts], inputs[num_consts:]

    def step(carry: tuple[Any, Any], x: list[Any]) -> Any:
        outputs = body(*consts, *carry[0], *x, *carry[1])
        end = len(outputs) - len(more)
        return (outputs[:num_carry], outputs[end:]), outputs[num_carry:end]

    first = rest[:num_carry], [*more]
    keywords = {k: eqn.params[k] for k in ("length", "reverse", "unroll")}
    (carry, last), ys = jax.lax.scan(step, first, rest[num_carry:], **keywords)
    return [*carry, *ys, *last]


def _while_loop(eqn: Equation, bodies: Bodies, inputs: list[Any]) -> list[Any]:
    cond, body = bodies
    of_cond, of_body = while_counts(eqn)
    init = inputs[of_cond + of_body :]

    def going(carry: Sequence[Any]) -> Any:
        return cond(*inputs[:of_cond], *carry)[0]

    def step(carry: list[Any]) -> list[Any]:
        new = body(*inputs[of_cond : of_cond + of_body], *carry)
        return stepped(eqn, going, new, carry)

    return jax.lax.while_loop(lambda carry: jnp.any(going(carry)), step, init)


def stepped(
    eqn: Equation, going: Callable[[Any], Any], new: list[Any], carry: Sequence[Any]
) -> list[Any]:
    """Return a `while_loop`'s carry after a step; finished lanes keep theirs.

    Under `vmap` the condition has a value for each lane, and the loop continues as long
    as any of them is true.
    """
    if not open_jaxpr(bodies(eqn)[0])[0].outvars[0].aval.shape:
        return new
    lanes = going(carry)

    def kept(after: Any, before: Any) -> Any:
        which = lanes.reshape(lanes.shape + (1,) * (after.ndim - lanes.ndim))
        return jnp.where(which, after, before)

    return list(map(kept, new, carry))


def _remat(eqn: Equation, bodies: Bodies, inputs: list[Any]) -> list[Any]:
    # It can only be rebuilt from a jaxpr without constants, not from a function.
    constants, (jaxpr,) = hoist([trace(bodies[0], *inputs)], inputs)
    params = {**eqn.params, "jaxpr": open_jaxpr(jaxpr)[0]}
    return rebind(eqn, [*constants, *inputs], params, in_context=False)


register("remat2", Entry("call", ("jaxpr",), remake=_remat))


def _without_mesh(eqn: Equation, bodies: Bodies, inputs: list[Any]) -> list[Any]:
    """Return the outputs of an equation that records the user's mesh, without it."""
    if eqn.primitive.name in _PLACEMENTS:
        return inputs
    if bodies:
        return remade(eqn, bodies, inputs)
    # Such as `broadcast_in_dim`, which records the sharding of its output.
    params = eqn.params.items()
    placeless = {k: None if isinstance(v, Sharding) else v for k, v in params}
    return rebind(eqn, inputs, placeless, in_context=False)


def _is_altered(jaxpr: AnyJaxpr) -> bool:
    """Return whether an equation of a jaxpr must be changed."""
    eqns = open_jaxpr(jaxpr)[0].eqns
    return any(_is_on_a_mesh(eqn) or _is_remade(eqn) for eqn in eqns)


def _is_remade(eqn: Equation) -> bool:
    """Return whether an equation must be rebuilt, for its constants or its mesh."""
    return any(num_constants(b) or _is_altered(b) for b in bodies(eqn))


def _is_on_a_mesh(eqn: Equation) -> bool:
    """Return whether an equation records a mesh, in an array's type or a parameter."""
    return any(
        any(_has_mesh(v.aval) for v in (*inner.invars, *inner.outvars))
        or any(isinstance(v, NamedSharding) for v in inner.params.values())
        for inner in within(eqn)
    )


def _has_mesh(aval: Any) -> bool:
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return mesh is not None and not mesh.empty
