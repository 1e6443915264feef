"""The law that what is known before a run is what comes out."""

from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from ..._types import PyTree
from .compare import Finding, Tolerance, compare, raised
from .report import check
from .trial import Trial, evaluate

RULE = "abstract evaluation gives the structure, shapes and dtypes of a real one."


def law(trial: Trial, tolerance: Tolerance) -> Finding | None:
    """What `check_struct` finds."""
    real = trial.plain
    try:
        abstract = eqx.filter_eval_shape(
            evaluate, trial.stage, trial.x, trial.state, trial.key
        )
    except Exception as error:
        return raised(error, "abstract evaluation")
    ways = ("abstractly", "when run")
    return compare(_forms(abstract), _forms(real), tolerance, ways)


def _forms(tree: PyTree) -> PyTree:
    def form(leaf: Any) -> Any:
        if isinstance(leaf, bool | int | float | complex):
            return jtu.tree_leaves(eqx.filter_eval_shape(lambda: leaf))[0]
        return leaf

    return jtu.tree_map(form, tree)


def check_struct(
    stage: Any,
    x: PyTree,
    state: Any = None,
    *,
    key: Any = None,
    rtol: Any = None,
    atol: Any = None,
) -> None:
    """Checks that abstract evaluation (`jax.eval_shape`) tells what will come out.

    Structure, shapes and dtypes are compared with those of a plain call. A stage that
    computes in NumPy, which makes `float64` of many things, is a way to break this.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.
    """
    __tracebackhide__ = True
    check("struct", law, RULE, stage, x, state, key, rtol, atol)
