"""What our combinators share: children, and the way a state goes through them."""

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, overload

import equinox as eqx

from .._check import check_key
from .._errors import describe_value, type_error, value_error
from .._tree import join_path
from .._types import AnyStage, Key, MaybeState, Output, PyTree, StageLike
from .base import Stage, is_stateful, state_indices
from .hints import no_attribute
from .scope import Scope


class Composite(Stage):
    """What our combinators share: they know their children and thread state and keys.

    A combinator declares its fields, and defines `children` and `run`; `run` calls
    children by `enter` only.
    """

    @abc.abstractmethod
    def children(self) -> Mapping[str, AnyStage]:
        """The children by their path below this stage, in order."""

    @abc.abstractmethod
    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        """Maps input and state to output and state."""

    def __bool__(self) -> bool:
        return True  # a pipeline without stages is a program too

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(no_attribute(self, name))

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
