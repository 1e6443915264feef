"""How a stage is called: with its key, perhaps a state, and errors that name it."""

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import Array, Integer

from .._errors import MissingKeyError, describe_value, is_located, locate
from .._types import MaybeState, Output, PyTree, Segment, StageLike
from .base import is_stateful
from .composite import Composite
from .diagnose import say_if_no_key, say_if_not_layer, wants_key
from .hints import add_hint
from .keys import key_of
from .scope import Scope


def enter(
    scope: Scope,
    segment: Segment,
    stage: StageLike,
    *args: PyTree,
    state: MaybeState,
    index: Integer[Array, ""] | None = None,
) -> Output:
    """Calls one child with its own key, records its output, locates its errors.

    `index` is that of `Scope.child`.
    """
    inner = scope.child(segment, index)
    try:
        y, new_state = call(stage, args, state, inner)
    except Exception as error:
        if inner.key is None and wants_key(error, stage):
            raise MissingKeyError(str(segment)) from error
        if not is_located(error):
            add_hint(error, args)
        locate(error, str(segment))
        raise
    if inner.record is not None:
        inner.record[inner.path] = y
    return y, new_state


def call(
    stage: StageLike, args: tuple[PyTree, ...], state: MaybeState, inner: Scope
) -> Output:
    """Calls a stage by its own convention, with the key of `inner` as it is."""
    if isinstance(stage, Composite):
        (x,) = args
        return stage.run(x, state, inner)
    keyword = key_of(stage, inner.key)
    if not is_stateful(stage):
        try:
            return stage(*args, **keyword), state
        except TypeError as error:
            say_if_not_layer(stage, error)
            say_if_no_key(stage, keyword, error)
            raise
    result = stage(*args, state, **keyword)
    pair = isinstance(result, tuple) and len(result) == 2
    if not pair or not isinstance(result[1], eqx.nn.State):
        raise TypeError(
            f"`{type(stage).__name__}` is stateful, and returned "
            f"{describe_value(result)}, not a pair of output and state. Return `(y, "
            "state)` from its `__call__(x, state, *, key=None)`."
        )
    return result


def copy_state(state: MaybeState) -> MaybeState:
    """A state of the same values that stays valid when the first is updated."""
    leaves, structure = jtu.tree_flatten(state)
    return jtu.tree_unflatten(structure, leaves)
