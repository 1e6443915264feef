"""The law that a stage survives being taken apart and being saved."""

import io
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State

from ..._tree import is_key_array
from ..._types import Key, PyTree, StageLike
from .compare import Bound, Finding, Tolerance, raised, same_bits
from .law import Law
from .report import check
from .trial import Trial, evaluate


def find(trial: Trial, tolerance: Tolerance) -> Finding | None:
    """What `check_serialise` finds."""
    plain = trial.plain
    try:
        leaves, structure = jtu.tree_flatten((trial.stage, trial.state))
        again = jtu.tree_unflatten(structure, leaves)
    except Exception as error:
        return raised(error, "flattening and unflattening")
    found = same_bits(again, (trial.stage, trial.state), ("flattened", "before"))
    if found:
        return found
    try:
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, (trial.stage, trial.state))
        file.seek(0)
        blank = jtu.tree_map(_blank, (trial.stage, trial.state))
        loaded = eqx.tree_deserialise_leaves(file, blank)
    except Exception as error:
        return raised(error, "`equinox.tree_serialise_leaves`, or loading again,")
    return _compare(trial, loaded, plain, "after saving and loading")


def _compare(
    trial: Trial, loaded: tuple[Any, Any], plain: PyTree, how: str
) -> Finding | None:
    labels = (how, "before")
    found = same_bits(loaded, (trial.stage, trial.state), labels)
    if found:
        return found
    try:
        output = evaluate(loaded[0], trial.x, loaded[1], trial.key)
    except Exception as error:
        return raised(error, f"{how}, a call")
    return same_bits(output, plain, labels)


def _blank(leaf: Any) -> Any:
    """Another value of the same form, so that nothing seems loaded that was not."""
    if is_key_array(leaf):
        return leaf
    if isinstance(leaf, np.ndarray):
        return np.zeros_like(leaf)
    if eqx.is_array(leaf):
        return jnp.zeros_like(leaf)
    return type(leaf)() if isinstance(leaf, bool | int | float | complex) else leaf


LAW = Law("serialise", "a stage flattened, or saved and loaded, is the stage.", find)


def check_serialise(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that a stage survives flattening, and `equinox.tree_serialise_leaves`.

    It is loaded into a stage of the same form with zeros for numbers, and must then
    have the same leaves and give the same bits.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.
    """
    __tracebackhide__ = True
    check(LAW, stage, x, state, key, rtol, atol)
