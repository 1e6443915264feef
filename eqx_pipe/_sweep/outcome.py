"""All that was computed for a request, and the result that is made of it."""

import dataclasses
import time
from collections.abc import Mapping

import numpy as np

from .._types import PyTree
from .compute.failure import Errors
from .options import fn_name
from .request import Request
from .results.cells import CellPoints, CellValues
from .results.raised import Raised
from .results.result import Steps, SweepResult
from .store import MISSING, NO_GAPS, Gaps, count_in


@dataclasses.dataclass(frozen=True)
class Outcome:
    """All that a sink has in the end: the fields of a `SweepResult` that it knows."""

    values: PyTree
    gaps: Gaps = dataclasses.field(default_factory=lambda: NO_GAPS)
    points: int | None = None
    ended: int | None = None
    errors: Errors = dataclasses.field(default_factory=dict)


def result_of(
    request: Request,
    outcome: Outcome,
    *,
    batch_size: int,
    num_devices: int,
    attrs: Mapping[str, str],
    started: float,
) -> SweepResult:
    """Return the result of a request, with what made it."""
    values, steps = outcome.values, None
    if request.counting:
        values, *counts = values
        steps = Steps(*counts)
    cells = None
    if isinstance(values, CellValues):
        values, counted = values.values, values.cells
        both = counted.points, counted.failed
        cells = CellPoints(*(np.asarray(leaf[...]) for leaf in both))
    result = SweepResult(
        values=values,
        space=request.space,
        gaps=outcome.gaps,
        ended=outcome.ended,
        batch_size=batch_size,
        num_devices=num_devices,
        started=started,
        seconds=time.time() - started,
        points=outcome.points,
        function=fn_name(request.fn),
        made=tuple(attrs.items()),
        steps=steps,
        raised=Raised.of(outcome.errors),
        cells=cells,
        output_coords=request.output_coords,
    )
    return result


def carry(interrupt: KeyboardInterrupt, result: SweepResult, request: Request) -> None:
    """Attach the partial result to the `KeyboardInterrupt`."""
    interrupt.result = result  # pyright: ignore[reportAttributeAccessIssue]
    if request.store is not None:
        return  # whose sink has said so
    done = result.points
    if done is None:
        done = len(result) - count_in(result.gaps, MISSING)
    interrupt.add_note(
        f"{done:,} of {len(result):,} points are finished: they are the `.result` of "
        "this KeyboardInterrupt (`sys.last_value.result` in a notebook)."
    )
