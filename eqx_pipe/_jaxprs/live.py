"""How many bytes a jaxpr holds at once."""

import math
from typing import Any

from .jaxpr import is_literal, open_jaxpr, sub_jaxprs


def live_bytes(jaxpr: Any) -> int:
    """The most bytes that the values of one run take at the same time.

    Inputs and constants are left out. A value lives from where it is computed to where
    it is last used, and all that an equation has inside lives with it. A compiler,
    which fuses equations, needs less.
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
        held |= {out: _nbytes(out.aval) for out in eqn.outvars}
        now += sum(_nbytes(out.aval) for out in eqn.outvars)
        most = max(most, now + inside)
        for atom in {*(a for a in eqn.invars if not is_literal(a)), *eqn.outvars}:
            if last.get(atom, at) <= at:
                now -= held.pop(atom, 0)
    return most


def _nbytes(aval: Any) -> int:
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or dtype is None:
        return 0
    # The dtype of PRNG keys has no size; a threefry key has two words.
    return math.prod(shape) * getattr(dtype, "itemsize", 8)
