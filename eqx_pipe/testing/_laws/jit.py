"""The law that compiling changes nothing."""

import equinox as eqx
from equinox.nn import State

from ..._types import Key, PyTree, StageLike
from .compare import Bound, Finding, Tolerance, compare, raised
from .law import Law
from .report import check
from .trial import Trial, evaluate

# One for all calls, so that a stage compiles once and not for each input.
COMPILED = eqx.filter_jit(evaluate)


def find(trial: Trial, tolerance: Tolerance) -> Finding | None:
    """What `check_jit` finds."""
    plain = trial.plain
    try:
        jitted = COMPILED(trial.stage, trial.x, trial.state, trial.key)
    except Exception as error:
        return raised(error, "`equinox.filter_jit`")
    return compare(jitted, plain, tolerance, ("under jit", "plain"))


LAW = Law(
    "jit", "under `equinox.filter_jit` a stage gives what a plain call gives.", find
)


def check_jit(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
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
    check(LAW, stage, x, state, key, rtol, atol)
