"""Questions to a branch: what depends on what, and what it reads."""

from collections.abc import Hashable, Sequence
from typing import Any

from .._jaxprs.flow import Flow
from .._jaxprs.jaxpr import Equation, axis_names, is_literal, open_jaxpr, within
from .._jaxprs.table import kind
from .._types import ClosedJaxpr

_SUMS = ("psum", "psum2", "psum_invariant", "pmax", "pmin")


def depends_on(
    branch: ClosedJaxpr, inputs: Sequence[bool], axis_name: Hashable = None
) -> list[bool]:
    """For each output of a jaxpr, whether it may depend on the marked inputs.

    If these are batched, and the batch has the name `axis_name`, what is summed over
    the batch by a collective does not depend on the example.

    What does not depend on a batched input must not become batched: a transposed weight
    that is saved for the backward pass would be copied per example.
    """
    return _Dependence(axis_name).run(branch, inputs)


class _Dependence(Flow):
    def __init__(self, axis_name: Hashable):
        self.axis_name = axis_name

    def equation(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        if self.axis_name is not None:
            if eqn.primitive.name in _SUMS:
                if self.axis_name in _as_tuple(eqn.params.get("axes", ())):
                    return [False] * len(eqn.outvars)
            # `axis_index` has no operand to be marked, and yet differs from example to
            # example.
            if not any(marks) and any(map(self.asks_for_position, within(eqn))):
                return self.through(eqn, marks)
        return super().equation(eqn, marks)

    def asks_for_position(self, eqn: Equation) -> bool:
        """Whether an equation asks for the example's position, or may do so."""
        if kind(eqn) is None:
            return self.axis_name in axis_names(eqn)
        name = eqn.params.get("axis_name")
        return eqn.primitive.name == "axis_index" and self.axis_name in _as_tuple(name)


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def used_inputs(branch: ClosedJaxpr) -> list[bool]:
    """For each input of a jaxpr, whether anything reads it."""
    jaxpr = open_jaxpr(branch)[0]
    read = {v for eqn in jaxpr.eqns for v in eqn.invars if not is_literal(v)}
    read.update(v for v in jaxpr.outvars if not is_literal(v))
    return [v in read for v in jaxpr.invars]
