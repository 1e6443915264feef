"""Functions that open, measure and run jaxprs, alike on every version of JAX.

JAX 0.12 has one class for jaxprs, open or closed, where 0.10 and 0.11 have two.
"""

import contextlib
import functools as ft
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.core
import jax.tree_util as jtu
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from .._tree import is_ref, nbytes
from .._types import AnyJaxpr, ClosedJaxpr

Equation: TypeAlias = JaxprEqn
"""One equation of a jaxpr: a primitive, its operands, parameters and results."""

# A tuple, made once: a union of types is made at each evaluation.
_JAXPRS = (Jaxpr, ClosedJaxpr)


def open_jaxpr(jaxpr: AnyJaxpr) -> tuple[Any, list[Any]]:
    """Return a closed or open jaxpr as an open one, with the arrays it closes over."""
    return getattr(jaxpr, "jaxpr", jaxpr), list(getattr(jaxpr, "consts", ()))


def is_jaxpr(x: object) -> bool:
    """Return whether `x` is a jaxpr, closed or open."""
    return isinstance(x, _JAXPRS)


def is_literal(atom: object) -> bool:
    """Return whether an operand is a literal value in the jaxpr."""
    return isinstance(atom, Literal)


def sub_jaxprs(eqn: Equation) -> Iterator[AnyJaxpr]:
    """Yield the jaxprs among the parameters of an equation, closed or open."""
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if is_jaxpr(item):
                yield item


def within(eqn: Equation) -> Iterator[Equation]:
    """Yield an equation and all equations inside it, at any depth."""
    yield eqn
    for inner in sub_jaxprs(eqn):
        yield from equations(inner)


def equations(jaxpr: AnyJaxpr) -> Iterator[Equation]:
    """Yield all equations of a jaxpr at any depth, each before those inside it."""
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        yield from within(eqn)


# The names of classes, which JAX does not export.
_NAMED_AXIS, _OWN_REFS = "NamedAxisEffect", "InternalMutableArrayEffect"


def _is(effect: object, *classes: str) -> bool:
    return type(effect).__name__ in classes


def draws_together(jaxpr: AnyJaxpr, least: int = 2) -> bool:
    """Return whether a jaxpr draws from several keys of a kind like `rbg` at once.

    Each draw then depends on the other keys. At once are at least `least` keys.
    """
    draws = (e for e in equations(jaxpr) if e.primitive.name in _DRAWS)
    keys: list[Any] = [e.invars[0].aval for e in draws]
    return any("rbg" in str(k.dtype) and math.prod(k.shape) >= least for k in keys)


_DRAWS = "random_bits", "random_gamma"


def axis_names(holder: Any) -> set[Any]:
    """Return the named axes of `vmap` and `shard_map` that a jaxpr or equation uses."""
    return {effect.name for effect in holder.effects if _is(effect, _NAMED_AXIS)}


def effects(jaxpr: AnyJaxpr, named: bool = True) -> list[Any]:
    """Return the effects of a jaxpr, without those on references of its own.

    The use of a named axis, which JAX counts as an effect, is included if `named`.
    """
    aside = [_OWN_REFS] if named else [_OWN_REFS, _NAMED_AXIS]
    return [effect for effect in jaxpr.effects if not _is(effect, *aside)]


def has_refs(jaxpr: AnyJaxpr) -> bool:
    """Return whether a jaxpr makes references."""
    return any(_is(effect, _OWN_REFS) for effect in jaxpr.effects)


def written(jaxpr: AnyJaxpr) -> set[Any]:
    """Return the variables of the references to which a jaxpr writes."""
    every = (effect for eqn in open_jaxpr(jaxpr)[0].eqns for effect in eqn.effects)
    return {e.input for e in every if _is(e, "WriteEffect", "AccumEffect")}


def refs_of(*jaxprs: AnyJaxpr) -> tuple[list[Any], list[Any]]:
    """Return the references that jaxprs close over, and those to which they write."""
    refs, changed = {}, {}
    for inner, consts in map(open_jaxpr, jaxprs):
        for variable, ref in zip(inner.constvars, consts, strict=True):
            if is_ref(ref):
                refs[id(ref)] = ref
                changed |= {id(ref): ref} if variable in written(inner) else {}
    return list(refs.values()), list(changed.values())


def on_values(
    jaxpr: ClosedJaxpr, refs: Sequence[Any], changed: Sequence[Any] = ()
) -> Callable[..., list[Any]]:
    """Return a jaxpr as a function without effects on the references of `refs_of`.

    It takes their values before its inputs, and returns the new values of those that
    are `changed` after its outputs.
    """

    def run(*args: Any) -> list[Any]:
        inner = {id(r): jax.new_ref(x) for r, x in zip(refs, args, strict=False)}
        consts = [inner.get(id(c), c) for c in jaxpr.consts]
        outputs = as_function(jaxpr, consts)(*args[len(refs) :])
        return [*outputs, *[inner[id(ref)][...] for ref in changed]]

    return run


def used_inputs(branch: ClosedJaxpr) -> list[bool]:
    """Return for each input of a jaxpr whether it is used."""
    jaxpr = open_jaxpr(branch)[0]
    read = {v for eqn in jaxpr.eqns for v in eqn.invars if not is_literal(v)}
    read.update(v for v in jaxpr.outvars if not is_literal(v))
    return [v in read for v in jaxpr.invars]


def trace(function: Callable[..., Any], *examples: Any) -> ClosedJaxpr:
    """Return the jaxpr of a function of arrays, for arguments like the examples."""
    make: Any = jax.make_jaxpr(function)
    return make(*examples)


def by_jaxpr(
    evaluate: Callable[[ClosedJaxpr, list[Any]], list[Any]],
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Return the output of a function, whose arrays `evaluate` has from its jaxpr.

    Arguments and outputs that are not arrays stay as they are.
    """
    arrays, static = eqx.partition((args, kwargs), eqx.is_array)
    leaves, structure = jtu.tree_flatten(arrays)
    outputs: Any = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal outputs
        given = jtu.tree_unflatten(structure, leaves)
        args, kwargs = eqx.combine(given, static)
        out, others = eqx.partition(fn(*args, **kwargs), eqx.is_array)
        out, tree = jtu.tree_flatten(out)
        outputs = tree, others
        return out

    out = evaluate(trace(flat, *leaves), leaves)
    tree, others = outputs
    return eqx.combine(jtu.tree_unflatten(tree, out), others)


def as_function(
    jaxpr: ClosedJaxpr | Jaxpr, consts: Sequence[Any] | None = None
) -> Callable[..., list[Any]]:
    """Return a jaxpr as a function from arrays to a list of arrays.

    `consts` are arrays that replace those it closes over.
    """
    # Not `jax.extend.core.jaxpr_as_fun`, which disables `jax_debug_nans` and does not
    # take other constants.
    inner, closed_over = open_jaxpr(jaxpr)
    consts = closed_over if consts is None else consts
    return ft.partial(jax.core.eval_jaxpr, inner, consts)


def hoist(
    jaxprs: Sequence[ClosedJaxpr],
    examples: Sequence[Any],
    example_of: Callable[[Any], Any] = lambda x: x,
) -> tuple[list[Any], list[ClosedJaxpr]]:
    """Return the constants of jaxprs, and jaxprs that take them before their inputs.

    They are traced for inputs like the examples, and for `example_of` each constant.
    """
    # Branches often share parameters, which are passed in once. Compare by identity:
    # arrays have no hash, and tracers cannot be compared.
    constants = list({id(c): c for j in jaxprs for c in j.consts}.values())
    position = {id(c): k for k, c in enumerate(constants)}

    def run(jaxpr: ClosedJaxpr, *args: Any) -> list[Any]:
        consts = [args[position[id(c)]] for c in jaxpr.consts]
        return as_function(jaxpr, consts)(*args[len(constants) :])

    inputs = [*map(example_of, constants), *examples]
    return constants, [trace(ft.partial(run, jaxpr), *inputs) for jaxpr in jaxprs]


def rebind(
    eqn: Equation,
    inputs: Sequence[Any],
    params: dict[str, Any] | None = None,
    in_context: bool = True,
) -> list[Any]:
    """Return the outputs of an equation for other inputs, or other parameters.

    It keeps the context in which it was traced (`jax.threefry_partitionable`,
    `compute_on`, the user's mesh).
    """
    primitive: Any = eqn.primitive
    # The parameters of `custom_jvp` and the like contain functions to rebuild.
    keywords = primitive.get_bind_params(eqn.params if params is None else params)
    with eqn.ctx.manager if in_context else contextlib.nullcontext():
        outputs = primitive.bind(*inputs, **keywords)
    return list(outputs) if primitive.multiple_results else [outputs]


def interpret(
    jaxpr: AnyJaxpr,
    inputs: Sequence[Any],
    rule: Callable[[Any, list[Any]], Sequence[Any]],
    constant: Callable[[Any], Any] = lambda x: x,
    consts: Sequence[Any] | None = None,
) -> list[Any]:
    """Return the outputs of a jaxpr whose equations are evaluated by `rule`.

    `rule(eqn, inputs)` returns the outputs of an equation. Values may be of any kind:
    arrays, marks, or annotated arrays. `constant` converts an array of the jaxpr to
    such a value, and `consts` are values that replace those it closes over.
    """
    inner, closed_over = open_jaxpr(jaxpr)
    consts = [constant(x) for x in closed_over] if consts is None else consts
    values: dict[Any, Any] = dict(zip(inner.constvars, consts, strict=True))
    values |= zip(inner.invars, inputs, strict=True)
    for eqn in inner.eqns:
        outputs = rule(eqn, read(eqn.invars, values, constant))
        values |= zip(eqn.outvars, outputs, strict=True)
    return read(inner.outvars, values, constant)


def read(
    atoms: Sequence[Any], values: dict, constant: Callable[[Any], Any] = lambda x: x
) -> list[Any]:
    """Return the values of operands; `constant` converts literals."""
    return [constant(a.val) if is_literal(a) else values[a] for a in atoms]


def live_bytes(jaxpr: AnyJaxpr) -> int:
    """Return the maximum bytes that the values of one run need at the same time.

    Inputs and constants are omitted. A value lives from its computation to its last
    use, together with all values inside of an equation. A compiler, which fuses
    equations, needs less.
    """
    inner = open_jaxpr(jaxpr)[0]
    last: dict[Any, int] = {}
    for at, eqn in enumerate(inner.eqns):
        last |= {atom: at for atom in eqn.invars if not is_literal(atom)}
    last |= {atom: len(inner.eqns) for atom in inner.outvars if not is_literal(atom)}
    held: dict[Any, int] = {}
    now = most = 0
    for at, eqn in enumerate(inner.eqns):
        inside = max(map(live_bytes, sub_jaxprs(eqn)), default=0)
        held |= {out: nbytes(out.aval) for out in eqn.outvars}
        now += sum(nbytes(out.aval) for out in eqn.outvars)
        most = max(most, now + inside)
        for atom in {*(a for a in eqn.invars if not is_literal(a)), *eqn.outvars}:
            if last.get(atom, at) <= at:
                now -= held.pop(atom, 0)
    return most
