"""What our combinators share: children, how one is called, where a state goes."""

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, overload

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import Array, Integer

from .._errors import (
    MissingKeyError,
    describe_value,
    locate,
    type_error,
    value_error,
)
from .._keys import check_key
from .._tree import join_path
from .._types import Key, MaybeState, Output, PyTree, Segment, StageLike
from .base import is_stateful, state_indices
from .edit import Editable
from .hints import no_attribute, say_if_not_layer, wants_key
from .scope import Scope
from .signature import key_of
from .text import pipeline_text


class Composite(Editable):
    """What our combinators share: they know their children and thread state and keys.

    A combinator declares its fields, and defines `children` and `run`; `run` calls
    children by `enter` only.
    """

    @abc.abstractmethod
    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        """Maps input and state to output and state."""

    def __bool__(self) -> bool:
        return True  # a pipeline without stages is a program too

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(no_attribute(self, name))

    def __repr__(self) -> str:
        return pipeline_text(self)

    def settings(self) -> dict[str, Any]:
        """What besides the children describes this stage; JSON-serialisable."""
        return {}

    def is_stateful(self) -> bool:
        """Whether any child takes and returns an `equinox.nn.State`."""
        return any(is_stateful(child) for child in self.children().values())

    @overload
    def __call__(
        self, x: PyTree, state: None = None, *, key: Key | None = None
    ) -> PyTree: ...

    @overload
    def __call__(
        self, x: PyTree, state: eqx.nn.State, *, key: Key | None = None
    ) -> tuple[PyTree, eqx.nn.State]: ...

    def __call__(
        self, x: PyTree, state: MaybeState = None, *, key: Key | None = None
    ) -> PyTree:
        """Runs the stage.

        **Arguments:**

        - `x`: the input, a pytree.
        - `state`: an `equinox.nn.State`, needed if some stage inside is stateful.
        - `key`: a PRNG key, needed if some stage inside is random. (Keyword only.)

        **Returns:** the output, or `(output, state)` when `state` was given.
        """
        name = type(self).__name__.lower()
        check_key(name, key)
        check_state(name, self, state)
        try:
            y, new_state = self.run(x, state, Scope(key))
        except KeyError as error:
            _check_state_is_ours(name, self, state, error)
            raise
        return y if state is None else (y, new_state)


def check_state(function: str, stage: StageLike, state: object) -> None:
    """Raises unless `state` is a `State`, or is absent and not needed."""
    if state is None and is_stateful(stage):
        path, _ = _innermost(stage, is_stateful)
        who = f"stage `{path}`" if path else "it"
        raise value_error(
            function,
            f"{who} is stateful, and no state was given.",
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


def _check_state_is_ours(
    function: str, stage: StageLike, state: MaybeState, error: KeyError
) -> None:
    """Raises if what failed was that the state was made with another pipeline.

    `State` is a dict by markers, and raises a bare `KeyError` with the marker.
    """
    marker = error.args[0] if len(error.args) == 1 else None

    def holds(stage: PyTree) -> bool:
        return any(index.marker is marker for index in state_indices(stage))

    if state is None or not holds(stage):
        return
    path, holder = _innermost(stage, holds)
    who = f"`{path}` (`{type(holder).__name__}`)" if path else "a stage inside"
    raise value_error(
        function,
        f"the state holds nothing for {who}: it was made with another pipeline, "
        "or before this one was changed.",
        "Give the state that `equinox.nn.make_with_state` made together with this "
        "pipeline.",
    ) from error


def _innermost(
    stage: StageLike, holds: Callable[[PyTree], bool], path: str = ""
) -> tuple[str, StageLike]:
    """The path of the first innermost stage for which `holds`, and that stage."""
    if isinstance(stage, Composite):
        for segment, child in stage.children().items():
            if holds(child):
                return _innermost(child, holds, join_path(path, segment))
    return path, stage


def enter(
    scope: Scope,
    segment: Segment,
    stage: StageLike,
    *args: PyTree,
    state: MaybeState,
    index: Integer[Array, ""] | None = None,
    named: Mapping[str, PyTree] | None = None,
) -> Output:
    """Calls one child with its own key, records its output, locates its errors.

    `index` is that of `Scope.child`, `named` that of `call`.
    """
    inner = scope.child(segment, index)
    if named and isinstance(stage, Composite):
        args, named = (dict(named),), None
    if scope.watch is not None:
        scope.watch(inner.path, stage, args, state, inner.key, named or {})
    try:
        y, new_state = call(stage, args, state, inner, named)
    except Exception as error:
        if inner.key is None and wants_key(error, stage):
            raise MissingKeyError(str(segment)) from error
        locate(error, str(segment))
        raise
    if inner.record is not None:
        inner.record.add(inner.path, y)
    return y, new_state


def call(
    stage: StageLike,
    args: tuple[PyTree, ...],
    state: MaybeState,
    inner: Scope,
    named: Mapping[str, PyTree] | None = None,
) -> Output:
    """Calls a stage by its own convention, with the key of `inner` as it is.

    Inputs that have names are the keyword arguments of a layer or function, and the one
    mapping that a pipeline takes.
    """
    if isinstance(stage, Composite):
        (x,) = args if not named else (dict(named),)
        # Not `stage(x)`, which would begin a new scope: its path, key and record would
        # be lost.
        return stage.run(x, state, inner)
    keyword = {**(named or {}), **key_of(stage, inner.key)}
    if not is_stateful(stage):
        try:
            return stage(*args, **keyword), state
        except TypeError as error:
            say_if_not_layer(stage, error)
            raise
    # Behind keywords no position is free.
    given = {"state": state} if named else {}
    result = stage(*args, *(() if named else (state,)), **keyword, **given)
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
    # By flattening, which JAX does too: Equinox marks a `State` as used up when it is
    # updated.
    leaves, structure = jtu.tree_flatten(state)
    return jtu.tree_unflatten(structure, leaves)
