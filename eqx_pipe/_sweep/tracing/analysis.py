"""What the batch size depends on, as read in a function's jaxpr.

Only values that depend on the point count: others exist once, however many points are
vectorised, as a matrix that a network multiplies by, or a loop that starts from
constants.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ..._jaxprs.jaxpr import open_jaxpr as opened
from ..._jaxprs.jaxpr import sub_jaxprs
from .evaluate import scan_counts
from .lapack import linalg_limit

_REFILL = "eqx_pipe_refill"


@dataclasses.dataclass
class Analysis:
    """What one point computes.

    `largest` is the size in bytes of the largest value, `of_a_step` that of the largest
    value in a loop. `loops` says whether there is a loop, `refilled` whether one is
    refilled, and `waits` whether the end of one depends on the point, so that a batch
    waits for its slowest lane. `linalg_limit` is for how many points at most no linear
    algebra is split over threads (`lapack.py`), `None` if there is none.
    """

    largest: int = 1
    of_a_step: int = 1
    loops: bool = False
    waits: bool = False
    refilled: bool = False
    linalg_limit: int | None = None


def analyze(jaxpr: Any, num_same: int) -> Analysis:
    """Reads a jaxpr whose inputs after the first `num_same` differ between points."""
    analysis = Analysis()
    varies = [i >= num_same for i in range(len(opened(jaxpr)[0].invars))]
    _visit(jaxpr, varies, analysis, _Inside())
    return analysis


@dataclasses.dataclass(frozen=True)
class _Inside:
    """Whether an equation is in a loop, and whether that is a refilled one."""

    loop: bool = False
    refill: bool = False


def _visit(
    jaxpr: Any, varies: Sequence[bool], analysis: Analysis, inside: _Inside
) -> list[bool]:
    """Which outputs differ between points; notes what is seen on the way."""
    jaxpr = opened(jaxpr)[0]
    marked = {v for v, m in zip(jaxpr.invars, varies, strict=True) if m}

    def is_marked(atom: Any) -> bool:
        return not hasattr(atom, "val") and atom in marked

    for eqn in jaxpr.eqns:
        operands = [is_marked(v) for v in eqn.invars]
        if not any(operands):
            continue
        outputs = _through(eqn, operands, analysis, inside)
        own = [v for v, m in zip(eqn.outvars, outputs, strict=True) if m]
        marked.update(own)
        _note(eqn, own, analysis, inside)
    return [is_marked(v) for v in jaxpr.outvars]


def _note(eqn: Any, outputs: list[Any], analysis: Analysis, inside: _Inside) -> None:
    """Adds what an equation makes."""
    limits = [linalg_limit(eqn), analysis.linalg_limit]
    analysis.linalg_limit = min((n for n in limits if n is not None), default=None)
    largest = max((_nbytes(v) for v in outputs), default=1)
    analysis.largest = max(analysis.largest, largest)
    if inside.loop:
        analysis.of_a_step = max(analysis.of_a_step, largest)


def _through(
    eqn: Any, operands: list[bool], analysis: Analysis, inside: _Inside
) -> list[bool]:
    """Which outputs of an equation differ between points; looks into it, too."""
    name, params = eqn.primitive.name, eqn.params
    everything = [True] * len(eqn.outvars)
    if name == "scan":
        return _scan(eqn, operands, analysis, inside)
    if name == "while":
        return _while(eqn, operands, analysis, inside)
    if name == _REFILL:
        analysis.loops = analysis.refilled = True
        # A loop in its body waits for a few lanes, not for the batch.
        inside = dataclasses.replace(inside, loop=True, refill=True)
    if name == "cond":
        found = [
            _visit(branch, operands[1:], analysis, inside)
            for branch in params["branches"]
        ]
        chosen = [any(column) for column in zip(*found, strict=True)]
        return everything if operands[0] else chosen
    inner = list(sub_jaxprs(eqn))
    if len(inner) == 1 and len(opened(inner[0])[0].invars) == len(operands):
        found = _visit(inner[0], operands, analysis, inside)
        return found if len(found) == len(everything) else everything
    for jaxpr in inner:
        _visit(jaxpr, [True] * len(opened(jaxpr)[0].invars), analysis, inside)
    return everything


def _scan(
    eqn: Any, operands: list[bool], analysis: Analysis, inside: _Inside
) -> list[bool]:
    body, (consts, carried) = eqn.params["jaxpr"], scan_counts(eqn.params)
    varies, outputs = _fixed_point(body, operands, consts, carried)
    if any(outputs):
        analysis.loops |= not inside.refill
        _visit(body, varies, analysis, dataclasses.replace(inside, loop=True))
    return outputs


def _while(
    eqn: Any, operands: list[bool], analysis: Analysis, inside: _Inside
) -> list[bool]:
    params = eqn.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    carried = len(eqn.outvars)
    body_operands = operands[first:]
    varies, outputs = _fixed_point(params["body_jaxpr"], body_operands, second, carried)
    of_cond = [*operands[:first], *varies[second:]]
    waits = _visit(params["cond_jaxpr"], of_cond, Analysis(), inside)[0]
    if waits:  # then every carry is selected
        outputs = [True] * carried
        varies = [*varies[:second], *outputs]
    analysis.loops |= not inside.refill
    analysis.waits |= waits and not inside.refill
    inside = dataclasses.replace(inside, loop=True)
    _visit(params["cond_jaxpr"], of_cond, analysis, inside)
    _visit(params["body_jaxpr"], varies, analysis, inside)
    return outputs


def _fixed_point(
    body: Any, operands: list[bool], consts: int, carried: int
) -> tuple[list[bool], list[bool]]:
    """Which inputs and outputs of a loop's body differ, when it has gone round."""
    varies = list(operands)
    while True:
        outputs = _visit(body, varies, Analysis(), _Inside())
        carry = [
            a or b for a, b in zip(varies[consts:], outputs[:carried], strict=False)
        ]
        if carry == varies[consts : consts + carried]:
            return varies, outputs
        varies[consts : consts + carried] = carry


def _nbytes(variable: Any) -> int:
    """The size of a value in bytes; a number counts for 4, as XLA computes halves."""
    shape = getattr(variable.aval, "shape", ())
    itemsize = getattr(getattr(variable.aval, "dtype", None), "itemsize", 4)
    return math.prod(shape) * max(itemsize, 4)
