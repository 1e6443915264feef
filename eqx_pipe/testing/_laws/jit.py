"""The law that compiling changes nothing."""

from typing import Any

import equinox as eqx

from ..._types import PyTree
from .compare import Finding, Tolerance, compare, raised
from .report import check
from .trial import Trial, evaluate

RULE = "under `equinox.filter_jit` a stage gives what a plain call gives."


# One for all calls, so that a stage compiles once and not for each input.
COMPILED = eqx.filter_jit(evaluate)


def law(trial: Trial, tolerance: Tolerance) -> Finding | None:
    """What `check_jit` finds."""
    plain = trial.plain
    try:
        jitted = COMPILED(trial.stage, trial.x, trial.state, trial.key)
    except Exception as error:
        return raised(error, "`equinox.filter_jit`")
    return compare(jitted, plain, tolerance, ("under jit", "plain"))


def check_jit(
    stage: Any,
    x: PyTree,
    state: Any = None,
    *,
    key: Any = None,
    rtol: Any = None,
    atol: Any = None,
) -> None:
    """Checks that a stage gives the same under `equinox.filter_jit`.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> ept.check_jit(lambda x: x if x.sum() > 0 else -x, jnp.ones(2))
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_jit`: the law `jit` is broken: ...
    """
    __tracebackhide__ = True
    check("jit", law, RULE, stage, x, state, key, rtol, atol)
