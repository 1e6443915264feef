"""What the conditional combinators share: predicates, and branches traced apart."""

from collections.abc import Callable
from typing import TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._errors import locate, value_error
from .._stage import Scope, enter
from .._tree import as_arrays, join_path, tree_text
from .._types import AnyStage, MaybeState, Output, PyTree, Segment

Branch: TypeAlias = Callable[[PyTree, MaybeState], Output]
"""A stage as a function that is traced by itself."""


def branch_of(scope: Scope, segment: Segment, stage: AnyStage) -> Branch:
    """A child as a function `(x, state) -> (y, state)` that is traced by itself.

    Values computed inside cannot leave it, so nothing below is recorded.
    """

    def run(x: PyTree, state: MaybeState) -> Output:
        return enter(scope.silent(), segment, stage, x, state=state)

    return run


def run_predicate(
    function: str,
    scope: Scope,
    segment: Segment,
    pred: AnyStage,
    x: PyTree,
    state: MaybeState,
) -> tuple[Bool[Array, ""], MaybeState]:
    """Calls a predicate and checks that it returned one bool."""
    value, state = enter(scope.silent(), segment, pred, x, state=state)
    is_open = as_arrays(value)
    one = eqx.is_array(is_open) and is_open.shape == ()
    if not one or is_open.dtype != jnp.bool_:
        raise value_error(
            function,
            f"`{join_path(scope.path, segment)}` returned {tree_text(value)}, not "
            "a single bool.",
            "Compare, or reduce with `jnp.any` or `jnp.all`, so that it returns "
            "bool[]. For one decision per example wrap the stage in `batched`.",
        )
    return is_open, state


def run_gate(
    scope: Scope, segment: Segment, gate: AnyStage, x: PyTree, state: MaybeState
) -> tuple[Bool[Array, ""], MaybeState]:
    """Calls the gate of a stage, which lies below the group `gates`."""
    try:
        inner = scope.child("gates")
        is_open, state = run_predicate("gated", inner, segment, gate, x, state)
    except Exception as error:
        # `enter` adds the name of the gate; the group that gates stand in is no stage.
        locate(error, "gates")
        raise
    if scope.record is not None:
        scope.record.add(join_path(inner.path, segment), is_open)
    return is_open, state
