"""Questions to a jaxpr: what depends on what, and which operations it holds."""

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import Jaxpr, Literal

from .._types import ClosedJaxpr
from .borrow import borrow_p, cut_p
from .primitive import choose_p

_SUMS = ("psum", "psum2", "psum_invariant", "pmax", "pmin")
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


def depends_on(
    branch: ClosedJaxpr, inputs: Sequence[bool], axis_name: Any = None
) -> list[bool]:
    """For each output of a jaxpr, whether it may depend on the marked inputs.

    If these are batched, and the batch has the name `axis_name`, what is summed over
    the batch by a collective does not depend on the example.

    What does not depend on a batched input must not become batched: a transposed weight
    that is saved for the backward pass would be copied per example.
    """
    jaxpr = branch.jaxpr
    marked = {v for v, m in zip(jaxpr.invars, inputs, strict=True) if m}

    def is_marked(atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in marked

    for eqn in jaxpr.eqns:
        operands = [is_marked(v) for v in eqn.invars]
        if any(operands) or _is_position(eqn, axis_name):
            outputs = _through(eqn, operands, axis_name)
            marked.update(v for v, m in zip(eqn.outvars, outputs, strict=True) if m)
    return [is_marked(v) for v in jaxpr.outvars]


def _is_position(eqn: Any, axis_name: Any) -> bool:
    """Whether an equation asks for the example's position, or may do so inside."""
    if axis_name is None:
        return False
    name = eqn.params.get("axis_name")
    asks = eqn.primitive.name == "axis_index" and axis_name in _as_tuple(name)
    return asks or any(
        _is_position(inner, axis_name)
        for jaxpr in _inner_jaxprs(eqn)
        for inner in jaxpr.eqns
    )


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _through(eqn: Any, operands: list[bool], axis_name: Any) -> list[bool]:
    """Looks into what calls or chooses a jaxpr; elsewhere every output depends."""
    everything = [True] * len(eqn.outvars)
    if eqn.primitive in (borrow_p, cut_p):
        return [operands[1]]
    if eqn.primitive.name in _SUMS and axis_name is not None:
        if axis_name in _as_tuple(eqn.params.get("axes", ())):
            return [False] * len(eqn.outvars)
    if eqn.primitive is choose_p:
        depends = [
            depends_on(b, operands[1:], axis_name) for b in eqn.params["branches"]
        ]
        return [
            operands[0] or any(column) if owner is None else column[owner]
            for owner, column in zip(
                eqn.params["owners"], zip(*depends, strict=True), strict=True
            )
        ]
    if eqn.primitive.name == "cond" and not operands[0]:
        depends = [
            depends_on(b, operands[1:], axis_name) for b in eqn.params["branches"]
        ]
        return [any(column) for column in zip(*depends, strict=True)]
    if eqn.primitive.name in _CALLS:
        inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        if isinstance(inner, ClosedJaxpr) and len(inner.in_avals) == len(operands):
            return depends_on(inner, operands, axis_name)
    return everything


def used_inputs(branch: ClosedJaxpr) -> list[bool]:
    """For each input of a jaxpr, whether anything reads it."""
    jaxpr = branch.jaxpr
    read = {v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, Literal)}
    read.update(v for v in jaxpr.outvars if not isinstance(v, Literal))
    return [v in read for v in jaxpr.invars]


_FUSED = frozenset(
    """
    abs acos acosh add add_any and argmax argmin asin asinh atan atan2 atanh
    bitcast_convert_type broadcast_in_dim cbrt ceil clamp concatenate
    convert_element_type copy copy_p cos cosh div eq erf erf_inv erfc exp exp2
    expand_dims expm1 floor ge gt imag integer_pow iota is_finite le lgamma log
    log1p logistic lt max min mul ne neg nextafter not or pad pow real reduce_and
    reduce_max reduce_min reduce_or reduce_precision reduce_prod reduce_sum rem
    reshape rev round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh slice sqrt square squeeze stop_gradient sub
    tan tanh transpose xor
    """.split()
)


def is_elementwise(branch: ClosedJaxpr) -> bool:
    """Whether a jaxpr holds only what compilers fuse into the operations around it."""
    names = (eqn.primitive.name for eqn in equations(branch.jaxpr))
    return all(name in _FUSED or name in _CALLS for name in names)


def may_loop_or_call_back(branch: ClosedJaxpr) -> bool:
    """Whether a jaxpr holds a loop whose length depends on values, or a call to Python.

    Such a branch can tell what it is run on, besides by its output: it takes longer, or
    raises (`equinox.error_if`).
    """
    names = (eqn.primitive.name for eqn in equations(branch.jaxpr))
    return any(name == "while" or "callback" in name for name in names)


def equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """All equations of a jaxpr, however deep."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in _inner_jaxprs(eqn):
            yield from equations(inner)


def _inner_jaxprs(eqn: Any) -> Iterator[Jaxpr]:
    for value in eqn.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            if isinstance(inner, ClosedJaxpr):
                yield inner.jaxpr
            elif isinstance(inner, Jaxpr):
                yield inner
