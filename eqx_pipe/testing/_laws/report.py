"""Trying a law on a stage, and saying how it is broken."""

import contextlib
import functools as ft
import sys
from typing import Any

from equinox.nn import State

from ..._stage import Lift
from ..._types import Key, PyTree, StageLike
from .compare import Bound, Finding, Tolerance, tolerance_of
from .law import Law, broken
from .locate import locate
from .shrink import input_text, shrink
from .trial import Trial, trial_of


def check(
    law: Law,
    stage: StageLike,
    x: PyTree,
    state: State | None,
    key: Key | None,
    rtol: Bound,
    atol: Bound,
    **options: Any,
) -> None:
    """Raises an `AssertionError` if a stage breaks a law."""
    __tracebackhide__ = True
    function = f"testing.check_{law.name}"
    tolerance = tolerance_of(function, rtol, atol)
    try_law(law, trial_of(function, stage, x, state, key), tolerance, **options)


def try_law(law: Law, trial: Trial, tolerance: Tolerance, **options: Any) -> None:
    """The same for arguments that have been checked."""
    __tracebackhide__ = True
    find = ft.partial(law.find, tolerance=tolerance, **options)
    finding = find(trial)
    if finding is None:
        return
    path, inner, finding = locate(find, trial, finding)
    if not _hypothesis_shrinks():
        with contextlib.suppress(Exception):
            inner, finding = shrink(find, inner, finding)
    raise broken_by_stage(law, path, inner, finding)


def broken_by_stage(
    law: Law, path: str, trial: Trial, finding: Finding
) -> AssertionError:
    """The error for a law broken by the stage at a path."""
    return broken(
        f"check_{law.name}",
        f"the law `{law.name}` is broken: {law.rule}",
        finding,
        [f"stage: {f'`{path}` ' if path else ''}({stage_text(trial.stage)})"],
        [
            f"smallest input found: {input_text(trial.x)}",
            f"If this is meant, leave the law out: `check_stage(..., "
            f"skip=({law.name!r},))`.",
        ],
    )


def _hypothesis_shrinks() -> bool:
    """Whether hypothesis runs the test, which itself looks for a smaller input."""
    hypothesis = sys.modules.get("hypothesis")
    return hypothesis is not None and hypothesis.currently_in_test_context()


def stage_text(stage: StageLike) -> str:
    """The name of a stage's type, or of the function that it stands for."""
    fn = stage.fn if isinstance(stage, Lift) else stage
    return getattr(fn, "__name__", type(fn).__name__)
