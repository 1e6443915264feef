"""What the batch size depends on, as read in a function's jaxpr.

Only values that depend on the point count: others exist once, however many points are
vectorised, as a matrix that a network multiplies by, or a loop that starts from
constants.
"""

import dataclasses
import math
from typing import Any

from ..._jaxprs.flow import Flow
from ..._jaxprs.jaxpr import Equation, open_jaxpr
from ..._jaxprs.table import kind
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
    """What is in a jaxpr whose first `num_same` inputs are the same for all points."""
    analysis = Analysis()
    varies = [i >= num_same for i in range(len(open_jaxpr(jaxpr)[0].invars))]
    _Analyzer(analysis).run(jaxpr, varies)
    return analysis


@dataclasses.dataclass(frozen=True)
class _Analyzer(Flow):
    """Notes what depends on the point; in a loop, which may be a refilled one."""

    analysis: Analysis
    in_loop: bool = False
    in_refill: bool = False

    def silent(self) -> Flow:
        return Flow()

    def equation(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        outputs = super().equation(eqn, marks)
        if any(marks):
            pairs = zip(eqn.outvars, outputs, strict=True)
            self.note(eqn, [v for v, varies in pairs if varies])
        return outputs

    def note(self, eqn: Equation, outputs: list[Any]) -> None:
        """Adds what an equation makes."""
        analysis = self.analysis
        limits = [linalg_limit(eqn), analysis.linalg_limit]
        analysis.linalg_limit = min((n for n in limits if n is not None), default=None)
        largest = max(map(_nbytes, outputs), default=1)
        analysis.largest = max(analysis.largest, largest)
        if self.in_loop:
            analysis.of_a_step = max(analysis.of_a_step, largest)

    def inside(self, eqn: Equation, waits: bool = False) -> Flow:
        if kind(eqn) not in ("scan", "while"):
            return self
        refilled = eqn.primitive.name == _REFILL
        self.analysis.refilled |= refilled
        # A loop in a refilled one waits for a few lanes, not for the batch.
        self.analysis.loops |= refilled or not self.in_refill
        self.analysis.waits |= waits and not self.in_refill
        return _Analyzer(self.analysis, True, refilled or self.in_refill)


def _nbytes(variable: Any) -> int:
    """The size of a value in bytes; a number counts for 4, as XLA computes halves."""
    shape = getattr(variable.aval, "shape", ())
    itemsize = getattr(getattr(variable.aval, "dtype", None), "itemsize", 4)
    return math.prod(shape) * max(itemsize, 4)
