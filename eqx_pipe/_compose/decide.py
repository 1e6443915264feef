"""Predicates of the conditional combinators, and their separately traced branches."""

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
"""A stage as a function that is traced separately."""


def branch_of(scope: Scope, segment: Segment, stage: AnyStage) -> Branch:
    """Return a child as a function `(x, state) -> (y, state)` to be traced separately.

    Values computed inside cannot leave the trace, so outputs inside are not recorded.
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
    group: str = "",
) -> tuple[Bool[Array, ""], MaybeState]:
    """Call a predicate and check that it returned one bool.

    `group` is a part of the path between the combinator and `segment` that is not a
    stage: `gates`. Only a predicate in a group is recorded.
    """
    inner = scope.child(group) if group else scope
    try:
        value, state = enter(inner.silent(), segment, pred, x, state=state)
    except Exception as error:
        # `enter` adds the segment of the predicate, but not the group.
        if group:
            locate(error, group)
        raise
    path = join_path(inner.path, segment)
    is_open = as_arrays(value)
    one = eqx.is_array(is_open) and is_open.shape == ()
    if not one or is_open.dtype != jnp.bool_:
        raise value_error(
            function,
            f"`{path}` returned {tree_text(value)}, not a single bool.",
            "Compare, or reduce with `jnp.any` or `jnp.all`, so that it returns "
            "bool[]. For one decision per example wrap the stage in `batched`.",
        )
    if group and scope.record is not None:
        scope.record.add(path, is_open)
    return is_open, state
