"""Dependence between the values of a program: marks propagate from inputs to outputs.

For calls, branches and loops the marks agree with JAX's batching rules, so `vmap`
leaves an output without a mark unbatched.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from .._types import ClosedJaxpr
from .jaxpr import Equation, axis_names, interpret, open_jaxpr, sub_jaxprs, within
from .table import entry, kind, scan_counts, while_counts

# Collectives whose output is the same everywhere along the axis, and primitives whose
# output differs along it even for equal operands.
_ALIKE = ("psum", "psum2", "psum_invariant", "pmax", "pmin", "all_gather")
_UNLIKE = ("axis_index", "ppermute", "all_to_all", "reduce_scatter")


class Flow:
    """The rules. A subclass may refine some equations, or record what it visits."""

    def run(self, jaxpr: Any, marks: Sequence[bool]) -> list[bool]:
        """Return which outputs of a jaxpr are marked, for marks of its inputs."""
        inner, own = open_jaxpr(jaxpr)
        # An open jaxpr (before JAX 0.12, in `linear_solve` of lineax) does not contain
        # its constants, which may depend on anything.
        consts = [False] * len(own) if own else [True] * len(inner.constvars)
        return interpret(jaxpr, marks, self.equation, lambda _: False, consts)

    def equation(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Return which outputs of an equation are marked."""
        return self.through(eqn, marks) if any(marks) else [False] * len(eqn.outvars)

    def silent(self) -> "Flow":
        """Return the same rules without records, for preliminary passes."""
        return self

    def inside(self, eqn: Equation, waits: bool = False) -> "Flow":
        """Return the rules for the jaxprs of an equation.

        `waits` if it is a loop whose condition is marked.
        """
        return self

    def through(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Return which outputs of an equation are marked, from its jaxprs."""
        known = entry(eqn)
        if known is not None and known.flow is not None:
            return known.flow(self, eqn, marks)
        match known.kind if known is not None else None:
            case "call":
                return self.inside(eqn).run(next(sub_jaxprs(eqn)), marks)
            case "branches":
                return self.branches(eqn, marks)
            case "scan":
                return self.scan(eqn, marks)
            case "while":
                return self.while_loop(eqn, marks)
        return self.opaque(eqn)

    def opaque(self, eqn: Equation) -> list[bool]:
        """Mark all outputs; visit the jaxprs inside with all inputs marked."""
        flow = self.inside(eqn)
        for jaxpr in sub_jaxprs(eqn):
            flow.run(jaxpr, [True] * len(open_jaxpr(jaxpr)[0].invars))
        return [True] * len(eqn.outvars)

    def branches(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Mark the outputs of any branch; all, if the index is marked."""
        flow = self.inside(eqn)
        found = [flow.run(branch, marks[1:]) for branch in eqn.params["branches"]]
        return [marks[0] or any(column) for column in zip(*found, strict=True)]

    def scan(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Mark the final carry and the stacked outputs."""
        body, (consts, carried) = eqn.params["jaxpr"], scan_counts(eqn)
        marks = self.carry(body, marks, consts, carried)
        outputs = self.inside(eqn).run(body, marks)
        return [*marks[consts : consts + carried], *outputs[carried:]]

    def while_loop(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Mark the carry: all of it if the condition is marked, which selects it."""
        cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
        of_cond, of_body = while_counts(eqn)
        first, rest = marks[:of_cond], marks[of_cond:]
        rest = self.carry(body, rest, of_body, len(eqn.outvars))
        # As `_while_loop_batching_rule` in jax/_src/lax/control_flow/loops.py: under
        # `vmap` a loop runs in all lanes, and keeps the carries of finished ones.
        waits = self.silent().run(cond, [*first, *rest[of_body:]])[0]
        carry = [waits or mark for mark in rest[of_body:]]
        # Run once more with the final marks, for a subclass that records its visits.
        flow = self.inside(eqn, waits)
        flow.run(cond, [*first, *carry])
        flow.run(body, [*rest[:of_body], *carry])
        return carry

    def carry(
        self, body: Any, marks: Sequence[bool], consts: int, carried: int
    ) -> list[bool]:
        """Return the marks of a loop's inputs after all iterations."""
        marks, flow = list(marks), self.silent()
        while True:  # each pass marks one more carry, or is the last
            before, carry = marks, slice(consts, consts + carried)
            outputs = flow.run(body, marks)[:carried]
            joined = [a or b for a, b in zip(marks[carry], outputs, strict=True)]
            marks = [*marks[:consts], *joined, *marks[consts + carried :]]
            if marks == before:
                return marks


def depends_on(
    branch: ClosedJaxpr, inputs: Sequence[bool], axis_name: Hashable = None
) -> list[bool]:
    """Return for each output of a jaxpr whether it may depend on the marked inputs.

    If these are batched or split over the axis `axis_name`, a sum over the axis by a
    collective does not depend on the example or device, and `axis_index` does.

    Values that do not depend on a batched input must not become batched: a transposed
    weight that is saved for the backward pass would be copied for each example.
    """
    return _Dependence(axis_name).run(branch, inputs)


class _Dependence(Flow):
    def __init__(self, axis_name: Hashable):
        self.axis_name = axis_name

    def equation(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        if self.axis_name is not None:
            # A sum over groups differs from group to group.
            whole = eqn.params.get("axis_index_groups") is None
            if whole and eqn.primitive.name in _ALIKE and self.axis_name in _axes(eqn):
                return [False] * len(eqn.outvars)
            # These have no marked operand, but differ between examples.
            if not any(marks) and any(map(self.asks_for_position, within(eqn))):
                return self.through(eqn, marks)
        return super().equation(eqn, marks)

    def asks_for_position(self, eqn: Equation) -> bool:
        """Return whether an equation reads the example's position, or may do so."""
        if kind(eqn) is None:
            return self.axis_name in axis_names(eqn)
        return eqn.primitive.name in _UNLIKE and self.axis_name in _axes(eqn)


def _axes(eqn: Equation) -> tuple[Any, ...]:
    """Return the named axes of a collective."""
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return axes if isinstance(axes, tuple) else (axes,)
