"""Running a jaxpr whose closed-over arrays are handed in from outside.

JAX keeps the arrays that an inner `jit` closes over inside of it, where they would be
compiled in. So the equations that hold such jaxprs are made anew, of functions that
take the arrays from outside. So are those that remember the user's mesh, which is not
that of the sweep.
"""

import dataclasses
import itertools as it
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, Sharding

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
    num_constants,
    register,
    scan_counts,
    while_counts,
)

Bodies: TypeAlias = Sequence[Callable[..., list[Any]]]
"""Functions in the place of the jaxprs of an equation."""

# What places an array on the user's mesh has no meaning on one device of the sweep.
_PLACEMENTS = {"sharding_constraint", "mesh_cast", "reshard"}


def evaluate(jaxpr: Any, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Return the outputs of a jaxpr, with `constants` in place of its own arrays.

    They come in the order of a `Fingerprint`: the jaxpr's own, then those inside of its
    equations.
    """
    # Most programs: running them as they are traces faster.
    if not _is_altered(jaxpr):
        return as_function(jaxpr, constants)(*args)
    left = iter(constants)
    consts = [next(left) for _ in open_jaxpr(jaxpr)[1]]

    def rule(eqn: Equation, inputs: list[Any]) -> list[Any]:
        # Lists, since JAX may trace a body more than once.
        inner = [Body(b, [*it.islice(left, num_constants(b))]) for b in bodies(eqn)]
        if _is_on_a_mesh(eqn):
            return _without_mesh(eqn, inner, inputs)
        if not _is_remade(eqn):
            return rebind(eqn, inputs)
        # What is traced here binds its equations in the context of this one.
        with eqn.ctx.manager:
            return remade(eqn, inner, inputs)

    return interpret(jaxpr, args, rule, consts=consts)


@dataclasses.dataclass(frozen=True, eq=False)  # JAX refers to what it traces weakly
class Body:
    """A jaxpr of an equation, and arrays in the place of those that it closes over."""

    jaxpr: Any
    constants: list[Any]

    def __call__(self, *args: Any) -> list[Any]:
        return evaluate(self.jaxpr, self.constants, args)


def remade(eqn: Equation, bodies: Bodies, inputs: list[Any]) -> list[Any]:
    """Return the outputs of an equation with other bodies.

    Those of a branch may have further outputs, which come last.
    """
    known = entry(eqn)
    if known is not None and known.remake is not None:
        return known.remake(eqn, bodies, inputs)
    match known.kind if known is not None else None:
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
    eqn: Equation, body: Callable[..., list[Any]], inputs: list[Any]
) -> list[Any]:
    """Return the outputs of a scan with another body."""
    num_consts, num_carry = scan_counts(eqn)
    consts, rest = inputs[:num_consts], inputs[num_consts:]

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        outputs = body(*consts, *carry, *x)
        return outputs[:num_carry], outputs[num_carry:]

    keywords = {k: eqn.params[k] for k in ("length", "reverse", "unroll")}
    carry, ys = jax.lax.scan(step, rest[:num_carry], rest[num_carry:], **keywords)
    return [*carry, *ys]


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
    eqn: Equation,
    going: Callable[[Sequence[Any]], Any],
    new: list[Any],
    carry: Sequence[Any],
) -> list[Any]:
    """Return a `while_loop`'s carry after a step; lanes that have ended keep theirs.

    Under `vmap` the loop of a function becomes one whose test has a value for each
    lane, which goes on as long as one of them does.
    """
    if not open_jaxpr(bodies(eqn)[0])[0].outvars[0].aval.shape:
        return new
    lanes = going(carry)

    def kept(after: Any, before: Any) -> Any:
        which = lanes.reshape(lanes.shape + (1,) * (after.ndim - lanes.ndim))
        return jnp.where(which, after, before)

    return list(map(kept, new, carry))


def _remat(eqn: Equation, bodies: Bodies, inputs: list[Any]) -> list[Any]:
    # It cannot be made anew of a function, only of a jaxpr that closes over nothing.
    given, (jaxpr,) = hoist([trace(bodies[0], *inputs)], inputs)
    params = {**eqn.params, "jaxpr": open_jaxpr(jaxpr)[0]}
    return rebind(eqn, [*given, *inputs], params, in_context=False)


register("remat2", Entry("call", ("jaxpr",), remake=_remat))


def _without_mesh(eqn: Equation, bodies: Bodies, inputs: list[Any]) -> list[Any]:
    """Return the outputs of an equation that remembers the user's mesh, without it."""
    if eqn.primitive.name in _PLACEMENTS:
        return inputs
    if bodies:
        return remade(eqn, bodies, inputs)
    # Such as `broadcast_in_dim`, which notes where its output is to be.
    params = eqn.params.items()
    placeless = {k: None if isinstance(v, Sharding) else v for k, v in params}
    return rebind(eqn, inputs, placeless, in_context=False)


def _is_altered(jaxpr: Any) -> bool:
    """Return whether some equation of a jaxpr cannot stay as it is."""
    eqns = open_jaxpr(jaxpr)[0].eqns
    return any(_is_on_a_mesh(eqn) or _is_remade(eqn) for eqn in eqns)


def _is_remade(eqn: Equation) -> bool:
    """Return whether an equation is made anew: of outside arrays, or without a mesh."""
    return any(num_constants(b) or _is_altered(b) for b in bodies(eqn))


def _is_on_a_mesh(eqn: Equation) -> bool:
    """Return whether an equation remembers a mesh, in an array's type or in itself."""
    return any(
        any(_has_mesh(v.aval) for v in (*inner.invars, *inner.outvars))
        or any(isinstance(v, NamedSharding) for v in inner.params.values())
        for inner in within(eqn)
    )


def _has_mesh(aval: Any) -> bool:
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return mesh is not None and not mesh.empty
