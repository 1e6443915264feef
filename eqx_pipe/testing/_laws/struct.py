"""The law that what is known before a run is what comes out."""

from typing import Any

import equinox as eqx
import jax.tree_util as jtu
from equinox.nn import State

from ..._types import Key, PyTree, StageLike
from .compare import Bound, Finding, Tolerance, compare, raised
from .law import Law
from .report import check
from .trial import Trial, evaluate


def find(trial: Trial, tolerance: Tolerance) -> Finding | None:
    """What `check_struct` finds."""
    real = trial.plain
    try:
        abstract = eqx.filter_eval_shape(
            evaluate, trial.stage, trial.x, trial.state, trial.key
        )
    except Exception as error:
        return raised(error, "abstract evaluation")
    labels = ("abstractly", "when run")
    return compare(_forms(abstract), _forms(real), tolerance, labels)


def _forms(tree: PyTree) -> PyTree:
    def form(leaf: Any) -> Any:
        if isinstance(leaf, bool | int | float | complex):
            return jtu.tree_leaves(eqx.filter_eval_shape(lambda: leaf))[0]
        return leaf

    return jtu.tree_map(form, tree)


LAW = Law(
    "struct",
    "abstract evaluation gives the structure, shapes and dtypes of a real one.",
    find,
)


def check_struct(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that abstract evaluation (`jax.eval_shape`) tells what will come out.

    Structure, shapes and dtypes are compared with those of a plain call. A stage that
    computes in NumPy, which makes `float64` of many things, is a way to break this.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.
    """
    __tracebackhide__ = True
    check(LAW, stage, x, state, key, rtol, atol)
