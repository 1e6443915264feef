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
from ..._refill.costly import is_costly
from .evaluate import scan_counts
from .lapack import most_whole

_PROGRAMS = frozenset(
    ("fft", "random_bits", "random_fold_in", "random_split", "threefry2x32")
)
_SUMS = frozenset(("reduce_max", "reduce_min", "reduce_prod", "reduce_sum"))
_SHORT = 16
_MOVES = frozenset(
    """
    broadcast_in_dim concatenate convert_element_type copy copy_p dynamic_slice
    dynamic_update_slice expand_dims gather iota pad reshape rev select_n slice squeeze
    transpose
    """.split()
)
_REFILL = "eqx_pipe_refill"


@dataclasses.dataclass
class Reading:
    """What one point makes.

    `largest` is the size in bytes of the largest value, `of_a_step` of the largest in
    a loop, whose numbers count for four bytes at least. `summed` is how many numbers
    are summed up over short axes at once. `whole` is for how many points at most no
    linear algebra is split over threads (`lapack.py`), `None` if there is none.

    Of loops: whether there are any, whether one runs `programs` of their own in a step
    (draws random numbers, computes a Fourier transform); the sizes in bytes of the
    largest matrix that all points share and are multiplied by (`weights`), and of the
    largest value that a step computes for all points together (`shared`); whether one
    is refilled, and whether the end of one depends on the point (`waits`); then whether
    such a loop works on single numbers only, and whether it has functions like `sin`,
    which are computed one number at a time.
    """

    largest: int = 1
    of_a_step: int = 1
    summed: int = 0
    whole: int | None = None
    loops: bool = False
    programs: bool = False
    weights: int = 0
    shared: int = 0
    refilled: bool = False
    waits: bool = False
    scalar: bool = True
    costly: bool = False


def read(jaxpr: Any, num_same: int) -> Reading:
    """Reads a jaxpr whose inputs after the first `num_same` differ between points."""
    reading = Reading()
    varies = [i >= num_same for i in range(len(opened(jaxpr)[0].invars))]
    _visit(jaxpr, varies, reading, _Inside())
    return reading


@dataclasses.dataclass(frozen=True)
class _Inside:
    """Which loops are around an equation, as the whole batch sees them."""

    loop: bool = False
    waiting: bool = False
    refill: bool = False


def _visit(
    jaxpr: Any, varies: Sequence[bool], reading: Reading | None, inside: _Inside
) -> list[bool]:
    """Which outputs differ between points; `reading` gets what is seen on the way."""
    jaxpr = opened(jaxpr)[0]
    marked = {v for v, m in zip(jaxpr.invars, varies, strict=True) if m}

    def is_marked(atom: Any) -> bool:
        return not hasattr(atom, "val") and atom in marked

    for eqn in jaxpr.eqns:
        operands = [is_marked(v) for v in eqn.invars]
        if not any(operands):
            if reading is not None and inside.loop:
                reading.shared = max(reading.shared, _computed(eqn))
            continue
        outputs = _through(eqn, operands, reading, inside)
        own = [v for v, m in zip(eqn.outvars, outputs, strict=True) if m]
        marked.update(own)
        if reading is not None:
            _note(eqn, operands, own, reading, inside)
    return [is_marked(v) for v in jaxpr.outvars]


def _note(
    eqn: Any,
    operands: list[bool],
    outputs: list[Any],
    reading: Reading,
    inside: _Inside,
) -> None:
    """Adds what an equation makes."""
    name = eqn.primitive.name
    whole = most_whole(eqn)
    if whole is not None:
        reading.whole = min(whole, whole if reading.whole is None else reading.whole)
    largest = max((_nbytes(v) for v in outputs), default=1)
    reading.largest = max(reading.largest, largest)
    reading.summed = max(reading.summed, _summed(eqn) if all(operands) else 0)
    if inside.loop:
        least = max((_nbytes(v, least=4) for v in outputs), default=1)
        reading.of_a_step = max(reading.of_a_step, least)
        reading.programs |= name in _PROGRAMS
        if name == "dot_general":
            same = [v for v, m in zip(eqn.invars, operands, strict=True) if not m]
            reading.weights = max(reading.weights, *map(_nbytes, same), 0)
    if inside.waiting:
        single = all(not getattr(v.aval, "shape", ()) for v in outputs)
        reading.scalar &= single and name not in ("scan", "while")
        reading.costly |= is_costly(eqn)


def _through(
    eqn: Any, operands: list[bool], reading: Reading | None, inside: _Inside
) -> list[bool]:
    """Which outputs of an equation differ between points; looks into it, too."""
    name, params = eqn.primitive.name, eqn.params
    everything = [True] * len(eqn.outvars)
    if name == "scan":
        return _scan(eqn, operands, reading, inside)
    if name == "while":
        return _while(eqn, operands, reading, inside)
    if name == _REFILL:
        if reading is not None:
            reading.loops = reading.refilled = True
        # A loop in its body waits for a few lanes, not for the batch.
        inside = dataclasses.replace(inside, loop=True, refill=True)
    if name == "cond":
        found = [
            _visit(branch, operands[1:], reading, inside)
            for branch in params["branches"]
        ]
        chosen = [any(column) for column in zip(*found, strict=True)]
        return everything if operands[0] else chosen
    inner = list(sub_jaxprs(eqn))
    if len(inner) == 1 and len(opened(inner[0])[0].invars) == len(operands):
        found = _visit(inner[0], operands, reading, inside)
        return found if len(found) == len(everything) else everything
    for jaxpr in inner:
        _visit(jaxpr, [True] * len(opened(jaxpr)[0].invars), reading, inside)
    return everything


def _scan(
    eqn: Any, operands: list[bool], reading: Reading | None, inside: _Inside
) -> list[bool]:
    body, (consts, carried) = eqn.params["jaxpr"], scan_counts(eqn.params)
    varies, outputs = _settled(body, operands, consts, carried)
    if any(outputs) and reading is not None:
        reading.loops |= not inside.refill
        _visit(body, varies, reading, dataclasses.replace(inside, loop=True))
    return outputs


def _while(
    eqn: Any, operands: list[bool], reading: Reading | None, inside: _Inside
) -> list[bool]:
    params = eqn.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    carried = len(eqn.outvars)
    body_operands = operands[first:]
    varies, outputs = _settled(params["body_jaxpr"], body_operands, second, carried)
    of_cond = [*operands[:first], *varies[second:]]
    waits = _visit(params["cond_jaxpr"], of_cond, None, inside)[0]
    if waits:  # then every carry is selected
        outputs = [True] * carried
        varies = [*varies[:second], *outputs]
    if reading is not None:
        reading.loops |= not inside.refill
        reading.waits |= waits and not inside.refill
        waiting = inside.waiting or (waits and not inside.refill)
        inside = dataclasses.replace(inside, loop=True, waiting=waiting)
        _visit(params["cond_jaxpr"], of_cond, reading, inside)
        _visit(params["body_jaxpr"], varies, reading, inside)
    return outputs


def _settled(
    body: Any, operands: list[bool], consts: int, carried: int
) -> tuple[list[bool], list[bool]]:
    """Which inputs and outputs of a loop's body differ, when it has gone round."""
    varies = list(operands)
    while True:
        outputs = _visit(body, varies, None, _Inside())
        carry = [
            a or b for a, b in zip(varies[consts:], outputs[:carried], strict=False)
        ]
        if carry == varies[consts : consts + carried]:
            return varies, outputs
        varies[consts : consts + carried] = carry


def _summed(eqn: Any) -> int:
    """How many numbers an equation sums up over short axes."""
    name, operand = eqn.primitive.name, eqn.invars[0].aval
    if name == "dot_general" and eqn.outvars[0].aval.size == 1:
        return operand.size  # of two vectors
    if name not in _SUMS:
        return 0
    length = math.prod(operand.shape[axis] for axis in eqn.params["axes"])
    return operand.size if length <= _SHORT else 0


def _computed(eqn: Any) -> int:
    """The size in bytes of the largest value that is computed, not only moved."""
    inner = [opened(jaxpr)[0] for jaxpr in sub_jaxprs(eqn)]
    if inner:
        within = (_computed(own) for jaxpr in inner for own in jaxpr.eqns)
        return max(within, default=0)
    if eqn.primitive.name in _MOVES:
        return 0
    return max(map(_nbytes, eqn.outvars), default=0)


def _nbytes(variable: Any, least: int = 0) -> int:
    """The size of a value in bytes, with at `least` so many for a number."""
    shape = getattr(variable.aval, "shape", ())
    itemsize = getattr(getattr(variable.aval, "dtype", None), "itemsize", 4)
    return math.prod(shape) * max(itemsize, least)
