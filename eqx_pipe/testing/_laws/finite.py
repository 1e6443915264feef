"""The law that finite numbers give no NaN."""

import contextlib
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State

from ..._tree import leaves_with_names
from ..._types import Key, PyTree, StageLike
from .compare import Bound, as_numpy
from .grad import problem_of
from .law import Broken, law
from .report import check
from .trial import Trial
from .wide import widened


@law("finite", "finite numbers give no NaN, neither as output nor as derivative.")
def finite_law(trial: Trial) -> None:
    given = jtu.tree_leaves((trial.stage, trial.x, trial.state))
    arrays = [as_numpy(v) for v in given if eqx.is_inexact_array(v)]
    if not all(np.isfinite(v).all() for v in arrays):
        return
    for name, leaf in leaves_with_names(trial.plain):
        if eqx.is_inexact_array(leaf):
            _no_nan(name, as_numpy(leaf), "of the output")
    _no_overflow_on_the_way(trial)
    problem = problem_of(trial)
    if problem is None or not all(
        np.isfinite(as_numpy(v)).all() for v in problem.outputs
    ):
        return  # an overflow, whose derivative nobody can tell
    forward: Sequence[Any] = ()
    backward: Sequence[Any] = ()
    # One mode may be lacking, and that is no matter of this law.
    with contextlib.suppress(Exception):
        forward = problem.forward()
    with contextlib.suppress(Exception):
        backward = problem.backward()
    # Reverse mode first: it tells the input that is to blame.
    for name, grad in zip(problem.names, backward, strict=False):
        _no_nan(name, as_numpy(grad), "of its gradient")
    for name, tangent in zip(problem.out_names, forward, strict=False):
        _no_nan(name, as_numpy(tangent), "of the derivative in forward mode")


def _no_overflow_on_the_way(trial: Trial) -> None:
    """Whether what is infinite would fit, as it shows in double precision."""
    leaves = leaves_with_names(trial.plain)
    named = [(name, leaf) for name, leaf in leaves if eqx.is_inexact_array(leaf)]
    if not any(np.isinf(as_numpy(v)).any() for _, v in named):
        return
    wide: dict[str, Any] = {}
    with widened(trial) as given, contextlib.suppress(Exception):
        computed = leaves_with_names(given.again())
        wide = {n: as_numpy(v) for n, v in computed if eqx.is_inexact_array(v)}
    for name, leaf in named:
        most = float(jnp.finfo(leaf.dtype).max)
        fits = np.abs(wide.get(name, np.inf)) <= most
        wrong = np.isinf(as_numpy(leaf)) & fits
        if wrong.any():
            what = (
                f"{int(wrong.sum())} of {wrong.size} elements of the output are "
                f"infinite, and {wide[name][wrong][0]:.6g} in double precision: "
                "something overflows on the way"
            )
            raise Broken("overflow", what, name)


def _no_nan(name: str, array: np.ndarray, of: str) -> None:
    wrong = np.isnan(array)
    if wrong.any():
        what = f"{int(wrong.sum())} of {wrong.size} elements {of} are NaN"
        raise Broken("nan", what, name)


def check_finite(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that a stage makes no NaN of finite numbers.

    Neither the output holds one, nor the derivatives by input and parameters where the
    output is finite. An output that is infinite is a breach only if double precision
    gives a number that would fit; an infinite derivative is left to `check_grad`.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> ept.check_finite(jnp.sqrt, jnp.zeros(2))
        >>> ept.check_finite(lambda x: x / jnp.linalg.norm(x), jnp.zeros(2))
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_finite`: the law `finite` is broken: ...
    """
    __tracebackhide__ = True
    check(finite_law, stage, x, state, key, rtol, atol)
