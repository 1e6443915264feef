"""The one place where a sweep's result is made."""

import time

from .gather import Outcome
from .plan import Plan
from .results.result import SweepResult
from .tracing.call import fn_name


def result_of(plan: Plan, outcome: Outcome, started: float) -> SweepResult:
    """What a sink has in the end, with what made it."""
    return SweepResult(
        values=outcome.values,
        space=plan.request.space,
        ok=outcome.ok,
        batch_size=plan.batch_size,
        num_devices=len(plan.devices),
        started=started,
        seconds=time.time() - started,
        points=outcome.points,
        function=fn_name(plan.request.fn),
        missing=outcome.missing,
    )
