"""Trying a law, and saying how it is broken."""

import contextlib
import functools as ft
import sys
from collections.abc import Callable
from typing import Any

from ..._stage import Lift
from ..._types import PyTree
from .compare import Finding, Tolerance, tolerance_of
from .locate import locate
from .shrink import input_text, shrink
from .trial import Trial, trial_of

TrialLaw = Callable[..., Finding | None]
"""A law of stages: from a trial and a tolerance (and options) to what it finds."""


def check(
    name: str,
    law: TrialLaw,
    rule: str,
    stage: Any,
    x: PyTree,
    state: Any,
    key: Any,
    rtol: Any,
    atol: Any,
    **options: Any,
) -> None:
    """Raises an `AssertionError` if a stage breaks a law.

    `name` is the law's, `rule` says in words what it demands.
    """
    __tracebackhide__ = True
    function = f"testing.check_{name}"
    tolerance = tolerance_of(function, rtol, atol)
    trial = trial_of(function, stage, x, state, key)
    try_law(name, law, rule, trial, tolerance, **options)


def try_law(
    name: str,
    law: TrialLaw,
    rule: str,
    trial: Trial,
    tolerance: Tolerance,
    **options: Any,
) -> None:
    """The same for arguments that have been checked."""
    __tracebackhide__ = True
    bound = ft.partial(law, tolerance=tolerance, **options)
    finding = bound(trial)
    if finding is None:
        return
    path, inner, finding = locate(bound, trial, finding)
    if not _hypothesis_shrinks():
        with contextlib.suppress(Exception):
            inner, finding = shrink(bound, inner, finding)
    raise report(name, rule, path, inner, finding)


def report(
    name: str, rule: str, path: str, trial: Trial, finding: Finding
) -> AssertionError:
    """The error for a law broken by the stage at a path."""
    lines = [
        f"`eqx_pipe.testing.check_{name}`: the law `{name}` is broken: {rule}",
        f"  stage: {f'`{path}` ' if path else ''}({stage_text(trial.stage)})",
        *([f"  leaf: `{finding.leaf}`"] if finding.leaf else []),
        f"  difference: {finding.what}",
        f"  smallest input found: {input_text(trial.x)}",
        f"  If this is meant, leave the law out: `check_stage(..., skip=({name!r},))`.",
    ]
    return AssertionError("\n".join(lines))


def _hypothesis_shrinks() -> bool:
    """Whether hypothesis runs the test, which itself looks for a smaller input."""
    hypothesis = sys.modules.get("hypothesis")
    return hypothesis is not None and hypothesis.currently_in_test_context()


def broken(function: str, rule: str, where: str, finding: Finding) -> AssertionError:
    """The error for a broken law of something that is not a stage."""
    lines = [
        f"`eqx_pipe.testing.{function}`: a law is broken: {rule}",
        *([f"  where: {where}"] if where else []),
        *([f"  leaf: `{finding.leaf}`"] if finding.leaf else []),
        f"  difference: {finding.what}",
    ]
    return AssertionError("\n".join(lines))


def stage_text(stage: Any) -> str:
    """The name of a stage's type, or of the function that it stands for."""
    fn = stage.fn if isinstance(stage, Lift) else stage
    return getattr(fn, "__name__", type(fn).__name__)
