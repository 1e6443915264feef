"""The law that a stage is a function of its arguments, and leaves them alone."""

from typing import Any

import equinox as eqx
import jax
from equinox.nn import State

from ..._types import Key, PyTree, StageLike
from .compare import Bound, Finding, Tolerance, raised, same_bits
from .held import held
from .law import Law
from .report import check
from .trial import Trial, evaluate, snapshot


def find(trial: Trial, tolerance: Tolerance) -> Finding | None:
    """What `check_pure` finds."""
    before = trial.held if trial.held is not None else held(trial.stage)
    given = snapshot(trial.x)  # a copy, so that writing into it harms nobody
    fresh = trial.on(given)
    first = snapshot(fresh.again())
    found = _written(trial.x, given) or _changed(before, trial.stage)
    if found:
        return found
    found = same_bits(
        fresh.again(), first, ("the second time", "the first time")
    ) or same_bits(first, trial.plain, ("the second time", "the first time"))
    if found:
        return found
    if len(trial.examples) > 1:
        labels = ("after calls on other inputs", "before them")
        found = same_bits(fresh.again(), first, labels)
    written = _written(trial.x, given) or _changed(before, trial.stage)
    return found or written or _leak(trial)


def _written(x: PyTree, given: PyTree) -> Finding | None:
    found = same_bits(given, x, ("after the call", "before"))
    if found:
        what = f"a call changed its input: {found.what}"
        return Finding("change", found.leaf, what)
    return None


def _changed(before: dict[str, Any], stage: Any) -> Finding | None:
    after = held(stage)
    for name in (*after, *before):
        if name not in before or name not in after or before[name] != after[name]:
            what = (
                f"a call changed `stage{name}`; return what is to be remembered, or "
                "keep it in an `equinox.nn.State` (or, if it only saves time, by "
                "`functools.cache`)"
            )
            return Finding("change", "", what)
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


LAW = Law(
    "pure", "a stage depends on its arguments alone, and changes none of them.", find
)


def check_pure(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that a stage has no hidden state and writes into nothing.

    Called again, also after calls on other inputs, it gives the same bits; neither the
    stage nor its input is another than before the first call; it keeps hold of no
    tracer. To the stage belong its fields and attributes, the variables that it closes
    over, and the globals that its code names, also by way of functions of its package.
    What `functools.cache`, `functools.cached_property` and `jax.jit` remember does not
    count.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.
    """
    __tracebackhide__ = True
    check(LAW, stage, x, state, key, rtol, atol)
