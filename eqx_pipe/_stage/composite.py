"""Stages made of stages: their children, how they are called, edited and shown."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import equinox as eqx
from jaxtyping import Array, Integer

from .._errors import MissingKeyError, describe_value, locate, type_error
from .._keys import check_key
from .._types import AnyStage, Key, MaybeState, Output, PyTree, Segment, StageLike
from .as_stage import as_module, as_stage
from .hints import no_attribute, say_if_not_layer, wants_key
from .paths import parts_of, put
from .picture import Canvas, Wire
from .scope import Scope
from .signature import key_of
from .stage import Stage, is_composite, is_stateful
from .state import check_state, check_state_is_ours
from .text import children_shown, pipeline_text

_Self = TypeVar("_Self", bound="Composite")


class Composite(Stage):
    """The base of our combinators: stages made of other stages.

    A combinator declares its fields, and defines `children` and `run`; `run` calls
    children by `enter` only. Methods are called through the class, as in
    `type(stage).run(stage, ...)`, wherever a call of the pipeline passes: looked up on
    a Module they are Modules of their own, which takes longer than most layers.
    """

    made_of_stages = True
    if TYPE_CHECKING:
        size: ClassVar[int | None]
    else:  # not annotated: only stacked stages have it as a field
        size = None
        """The number of stages that are stacked into the only child, if they are."""

    @abc.abstractmethod
    def children(self) -> Mapping[str, AnyStage]:
        """Return the children by their path below this stage, in order."""

    @abc.abstractmethod
    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        """Map input and state to output and state."""

    def held(self) -> Mapping[str, AnyStage]:
        """Return the children as they stand in the fields of this stage."""
        return self.children()

    def segments(self) -> tuple[str, ...]:
        """Return the names that paths have for the stages right below."""
        return tuple(self.children())

    def child(self, segment: str) -> AnyStage:
        """Return the stage at one of the `segments`."""
        return self.children()[segment]

    def with_child(self: _Self, segment: str, stage: StageLike) -> _Self:
        """Return this stage with another in the place of one; raise unless it fits."""
        new = as_stage(type(self).__name__.lower(), segment, stage)
        parts, structure = parts_of(cast(AnyStage, self))
        return structure.unflatten(
            [new if part.segment == segment else part.value for part in parts]
        )

    def settings(self) -> dict[str, Any]:
        """Return what describes this stage besides its children and arrays.

        These are the static fields that differ from their defaults.
        """
        static = [f for f in dataclasses.fields(self) if f.metadata.get("static")]
        named = {field.name: getattr(self, field.name) for field in static}
        defaults = {field.name: field.default for field in static}
        changed = {n: v for n, v in named.items() if v != defaults[n]}
        changed.pop("names", None)  # which are those of the children
        return changed

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        """Draw the stages inside, here in a row; return the wire that leaves them."""
        return canvas.row(path, children_shown(self), wire)

    def is_stateful(self) -> bool:
        """Return whether any child takes and returns an `equinox.nn.State`."""
        return any(map(is_stateful, type(self).children(self).values()))

    def replace(
        self: _Self,
        stages: Mapping[str, PyTree] | Mapping[int, PyTree] | None = None,
        /,
        **named: StageLike,
    ) -> _Self:
        """Return a pipeline with other stages in the place of some.

        All others keep their paths, and so their random draws; the new ones draw as
        those before them did. A stage of a `repeat` may be replaced by one of equal
        structure. A state remains valid, unless what was stateful is replaced: then
        make the edited pipeline inside of `equinox.nn.make_with_state`.

        **Arguments:**

        - `stages`: from path (`"blocks.3.attn"`, or a position) to the new stage. Paths
            are those of errors and `outputs`. One that leads into a layer names a field
            of it, or an item of a field, and anything may be put there.
        - `named`: the same for stages right below. (Keyword only.)

        **Returns:** a pipeline; the old one is as it was.

        **Raises:**

        - `ValueError` if the path does not exist; names the nearest.
        - `TypeError` if something is not a stage.
        - `StructureError` if one for a `repeat` differs from the others.

        **Laws:** those of a lens: what was put is found, to put what is there changes
        nothing, and the last one put counts.

        !!! example

            >>> import eqx_pipe as ep, jax.numpy as jnp
            >>> pipe = ep.chain(body=ep.chain(jnp.sin, jnp.cos), head=jnp.sum)
            >>> pipe.replace({"body.1": jnp.square}, head=jnp.max)(jnp.zeros(2)).item()
            0.0
        """
        if stages is not None and not isinstance(stages, Mapping):
            raise type_error(
                type(self).__name__.lower(),
                f"`replace` got {describe_value(stages)}.",
                'Give a mapping from paths: `{"blocks.3.attn": ...}`, or keywords.',
            )
        new, given = self, cast(Mapping[Any, Any], stages or {})
        for path, stage in {**given, **named}.items():
            new = put(new, str(path), stage)
        return new

    def __bool__(self) -> bool:
        return True  # a pipeline without stages is a program too

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(no_attribute(self, name))

    def __repr__(self) -> str:
        return pipeline_text(self)

    def __call__(
        self, x: PyTree, state: MaybeState = None, *, key: Key | None = None
    ) -> PyTree:
        """Run the stage.

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
            y, new_state = type(self).run(self, x, state, Scope(key))
        except KeyError as error:
            check_state_is_ours(name, self, state, error)
            raise
        return y if state is None else (y, new_state)


def enter(
    scope: Scope,
    segment: Segment,
    stage: StageLike,
    *args: PyTree,
    state: MaybeState,
    index: Integer[Array, ""] | None = None,
    named: Mapping[str, PyTree] | None = None,
) -> Output:
    """Call one child with its own key, record its output, locate its errors.

    For `index` see `Scope.child`, for `named` see `call`.
    """
    inner = scope.child(segment, index)
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
    """Call a stage by its own convention, with the key of `inner` as it is.

    Inputs that have names are the keyword arguments of a layer or function, and the one
    mapping that a pipeline takes.
    """
    if is_composite(stage):
        (x,) = args if not named else (dict(named),)
        # Not `stage(x)`, which would begin a new scope: its path, key and record would
        # be lost.
        return cast(Any, type(stage)).run(stage, x, state, inner)
    keyword = {**(named or {}), **key_of(stage, inner.key)}
    if not is_stateful(stage):
        try:
            return stage(*args, **keyword), state
        except TypeError as error:
            say_if_not_layer(stage, error)
            raise
    # After keywords no position is free.
    given = {"state": state} if named else {}
    result = stage(*args, *(() if named else (state,)), **keyword, **given)
    pair = isinstance(result, tuple) and len(result) == 2
    if not pair or not isinstance(result[1], eqx.nn.State):
        raise TypeError(
            f"`{type(stage).__name__}` is stateful, but returned "
            f"{describe_value(result)}, not a pair of output and state. Return `(y, "
            "state)` from its `__call__(x, state, *, key=None)`."
        )
    return result


def call_layer(
    stage: StageLike,
    args: tuple[PyTree, ...],
    named: dict[str, PyTree],
    key: Key | None,
    begin: Callable[[PyTree], PyTree] = lambda inputs: inputs,
    end: Callable[[PyTree], PyTree] = lambda y: y,
) -> PyTree:
    """Call a stage as a layer of Equinox is called: with its state after its inputs.

    `begin` changes the inputs, and `end` the output.
    """
    inputs, state = list(args), None
    if is_stateful(stage):  # after keywords it has no position
        state = named.pop("state") if "state" in named else inputs.pop()
    inputs, named = begin((inputs, named))
    y, state = call(as_module(stage), tuple(inputs), state, Scope(key), named)
    return end(y) if state is None else (end(y), state)
