"""Check and copy the state of a pipeline."""

from collections.abc import Callable
from typing import cast

import equinox as eqx
import jax.tree_util as jtu

from .._errors import describe_value, type_error, value_error
from .._tree import join_path
from .._types import MaybeState, StageLike
from .stage import is_composite, is_stateful, state_indices


def check_state(function: str, stage: StageLike, state: object) -> None:
    """Raise unless `state` is a `State`, or is None and not needed."""
    if state is None and is_stateful(stage):
        path = _path_of_stateful(stage)
        who = f"stage `{path}`" if path else "it"
        raise value_error(
            function,
            f"{who} is stateful, but got no state.",
            "Build the pipeline by `pipe, state = equinox.nn.make_with_state(...)"
            "(...)` and call `y, state = pipe(x, state)`.",
        )
    if state is not None and not isinstance(state, eqx.nn.State):
        raise type_error(
            function,
            f"the second argument, `state`, is {describe_value(state)}.",
            "Give an `equinox.nn.State`. A stage takes one input; several values "
            "go in as one tuple or dict. Keys are passed as `key=`.",
        )


def _path_of_stateful(stage: StageLike, path: str = "") -> str:
    """Return the path of the first stateful stage that is not a combinator."""
    if is_composite(stage):
        for segment, child in stage.children().items():
            if is_stateful(child):
                return _path_of_stateful(child, join_path(path, segment))
    return path


def check_state_is_ours(
    function: str, stage: StageLike, state: MaybeState, error: KeyError
) -> None:
    """Raise if the call failed because the state was made with another pipeline.

    `State` is a dict by state indices, and raises a bare `KeyError` with the index.
    """
    marker = error.args[0] if len(error.args) == 1 else None
    if state is not None and any(i.marker is marker for i in state_indices(stage)):
        raise value_error(
            function,
            "the state has no entry for a stage of this pipeline: it was made for "
            "another pipeline, or before this one changed.",
            "Pass the state that `equinox.nn.make_with_state` returned together with "
            "this pipeline.",
        ) from error


def own_state(
    stage: StageLike, state: MaybeState
) -> tuple[MaybeState, Callable[[MaybeState], MaybeState]]:
    """Return a stage's part of a state, and a function that puts it back."""
    if state is None or not is_stateful(stage):
        return None, lambda own: state
    return state.substate(stage), lambda own: state.update(cast(eqx.nn.State, own))


def copy_state(state: MaybeState) -> MaybeState:
    """Return a copy of a state that stays valid when the original is updated."""
    # By flattening, as JAX does: Equinox marks a `State` as used when it is updated.
    leaves, structure = jtu.tree_flatten(state)
    return jtu.tree_unflatten(structure, leaves)
