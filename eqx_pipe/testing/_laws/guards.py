"""Which operations of a program matter only if a condition holds.

`vmap` makes a select of a branch whose condition differs from lane to lane, and both
sides are then computed, from the same key too. What is used by one side of a select
alone matters only in the lanes that choose this side.
"""

from typing import Any

from ..._jaxprs.jaxpr import is_literal

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
