"""The law that a stage is a function of its arguments, and leaves them alone."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from .compare import Finding, Tolerance, raised, same_bits
from .report import check
from .trial import Trial, evaluate, snapshot

RULE = "a stage depends on its arguments alone, and changes none of them."


def law(trial: Trial, tolerance: Tolerance) -> Finding | None:
    """What `check_pure` finds."""
    before = snapshot((trial.stage, trial.x))
    given = snapshot(trial.x)  # a copy, so that writing into it harms nobody
    fresh = trial.on(given)
    first = snapshot(fresh.again())
    written = _changes(before, (trial.stage, given))
    if written:
        return written
    found = same_bits(
        fresh.again(), first, ("the second time", "the first time")
    ) or same_bits(first, trial.plain, ("the second time", "the first time"))
    if found:
        return found
    if len(trial.examples) > 1:
        ways = ("after calls on other inputs", "before them")
        found = same_bits(fresh.again(), first, ways)
    return found or _changes(before, (trial.stage, given)) or _leak(trial)


def _changes(before: PyTree, after: PyTree) -> Finding | None:
    for name, old, new in zip(("the stage", "its input"), before, after, strict=True):
        found = same_bits(new, old, ("after the call", "before"))
        if found:
            what = f"a call changed {name}: {found.what}"
            return Finding("change", found.leaf, what)
    return None


def _leak(trial: Trial) -> Finding | None:
    """Whether the stage keeps hold of something that only exists while tracing."""
    try:
        with jax.checking_leaks():
            eqx.filter_make_jaxpr(evaluate)(
                trial.stage, trial.x, trial.state, trial.key
            )
    except Exception as error:
        if "Leaked" in str(error):
            return raised(error, "tracing")
    return None


def check_pure(
    stage: Any,
    x: PyTree,
    state: Any = None,
    *,
    key: Any = None,
    rtol: Any = None,
    atol: Any = None,
) -> None:
    """Checks that a stage has no hidden state and writes into nothing.

    Called again, also after calls on other inputs, it gives the same bits; neither the
    stage nor its input is another than before; it keeps hold of no tracer.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.
    """
    __tracebackhide__ = True
    check("pure", law, RULE, stage, x, state, key, rtol, atol)
