"""Stages made of stages: their children, calls, edits and pictures."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import equinox as eqx
from jaxtyping import Array, Integer

from .._check import check_is
from .._errors import (
    MissingKeyError,
    describe_value,
    locate,
    message,
    nearest,
    type_error,
)
from .._keys import check_key
from .._tree import join_path
from .._types import AnyStage, Key, MaybeState, Output, PyTree, Segment, StageLike
from .as_stage import as_module, as_stage, key_of, wants_key
from .paths import parts_of, put
from .scope import Scope
from .stage import Stage, check_state, check_state_is_ours, is_composite, is_stateful
from .text import children_shown, row_lines, row_of

if TYPE_CHECKING:
    from .diagram import Canvas, Wire
else:  # it imports this file
    Canvas = Wire = Any

_Self = TypeVar("_Self", bound="Composite")


class Composite(Stage):
    """The base of the combinators: stages made of other stages.

    A combinator declares its fields, and defines `children` and `run`; `run` calls
    children only by `enter`. Calls of a pipeline look up methods on the class, as in
    `type(stage).run(stage, ...)`: a method looked up on a Module is a new Module, which
    takes longer than most layers.
    """

    made_of_stages = True
    if TYPE_CHECKING:
        size: ClassVar[int | None]
    else:  # not annotated: only stacked stages have it as a field
        size = None
        """The number of stages that are stacked into the only child, if they are."""

    @abc.abstractmethod
    def children(self) -> Mapping[str, AnyStage]:
        """Return the children by their paths relative to this stage, in order."""

    @abc.abstractmethod
    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        """Map input and state to output and state."""

    def held(self) -> Mapping[str, AnyStage]:
        """Return the children as they are stored in the fields of this stage."""
        return self.children()

    def segments(self) -> tuple[str, ...]:
        """Return the path segments of the direct children."""
        return tuple(self.children())

    def child(self, segment: str) -> AnyStage:
        """Return the stage at one of the `segments`."""
        return self.children()[segment]

    def with_child(self: _Self, segment: str, stage: StageLike) -> _Self:
        """Return this stage with one child replaced; raise unless it fits."""
        new = as_stage(type(self).__name__.lower(), segment, stage)
        parts, structure = parts_of(cast(AnyStage, self))
        return structure.unflatten(
            [new if part.segment == segment else part.value for part in parts]
        )

    def settings(self) -> dict[str, Any]:
        """Return the settings of this stage, without its children and arrays.

        These are the static fields that differ from their defaults.
        """
        static = [f for f in dataclasses.fields(self) if f.metadata.get("static")]
        named = {field.name: getattr(self, field.name) for field in static}
        defaults = {field.name: field.default for field in static}
        changed = {n: v for n, v in named.items() if v != defaults[n]}
        changed.pop("names", None)  # the names of the children
        return changed

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        """Draw the children, by default in a row; return the wire that leaves them."""
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
        """Return a pipeline with some stages replaced.

        All other stages keep their paths, and so their random draws; new stages have
        the random keys of those they replace. A stage of a `repeat` may be replaced by
        a stage of equal structure. A state remains valid unless a stateful stage is
        replaced: in that case make the edited pipeline inside
        `equinox.nn.make_with_state`.

        **Arguments:**

        - `stages`: a mapping from paths (`"blocks.3.attn"`, or a position) to new
            stages. Paths are those of errors and `outputs`. A path may also lead into a
            layer, to a field or an item of a field, which may be replaced by anything.
        - `named`: new stages for direct children, by name. (Keyword only.)

        **Returns:** a new pipeline; the old one does not change.

        **Raises:**

        - `ValueError` if the path does not exist; the error names the nearest.
        - `TypeError` if something is not a stage.
        - `StructureError` if a new stage of a `repeat` differs from the others.

        **Laws:** the lens laws: the pipeline has the new stage at its path; replacing a
        stage by itself changes nothing; the last of several replacements counts.

        !!! example

            >>> import eqx_pipe as ep, jax.numpy as jnp
            >>> pipe = ep.chain(body=ep.chain(jnp.sin, jnp.cos), head=jnp.sum)
            >>> pipe.replace({"body.1": jnp.square}, head=jnp.max)(jnp.zeros(2)).item()
            0.0
        """
        cure = 'Give a mapping from paths: `{"blocks.3.attn": ...}`, or keywords.'
        name = type(self).__name__.lower()
        check_is(name, "stages", stages, Mapping | None, cure)
        new, given = self, cast(Mapping[Any, Any], stages or {})
        for path, stage in {**given, **named}.items():
            new = put(new, str(path), stage)
        return new

    def __bool__(self) -> bool:
        return True  # an empty pipeline is still a pipeline

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(_no_attribute(self, name))

    def __repr__(self) -> str:
        return "\n".join(row_lines(row_of(self, {})))

    def __call__(
        self, x: PyTree, state: MaybeState = None, *, key: Key | None = None
    ) -> PyTree:
        """Run the stage.

        **Arguments:**

        - `x`: the input, a pytree.
        - `state`: an `equinox.nn.State`, required if a stage inside is stateful.
        - `key`: a PRNG key, required if a stage inside is random. (Keyword only.)

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


def _no_attribute(stage: Any, name: str) -> str:
    """Return the message for an attribute that a composite lacks."""
    kind = type(stage)
    # While `copy` or `pickle` builds a module, it lacks the fields that `children`
    # needs.
    if name.startswith("_") or name in kind.__dataclass_fields__:
        return f"`{kind.__name__}` has no attribute `{name}`"
    function = kind.__name__.lower()
    wrong = f"a `{kind.__name__}` has no attribute `{name}`"
    names = list(stage.children())
    if name in names and hasattr(kind, "__getitem__"):
        return message(
            function,
            f"{wrong}, but a stage with this name.",
            f'Write `pipe["{name}"]`.',
        )
    for field, value in vars(stage).items():
        if isinstance(value, eqx.Module) and hasattr(value, name):
            cure = f"Write `pipe.{field}.{name}`."
            return message(function, f"{wrong}, but its `.{field}` has.", cure)
    wrong += ", and no stage with this name."
    return message(function, wrong, nearest(name, names))


def enter(
    scope: Scope,
    segment: Segment,
    stage: StageLike,
    *args: PyTree,
    state: MaybeState,
    index: Integer[Array, ""] | None = None,
    named: Mapping[str, PyTree] | None = None,
) -> Output:
    """Call one child with its own key, record its output, and add its path to errors.

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


def none_error(
    function: str, scope: Scope, origin: Segment, segment: Segment, error: Exception
) -> Exception:
    """Return the error for a stage that failed since the stage `origin` returned None.

    Without it, the error would be located at the stage that got None.
    """
    if isinstance(error, MissingKeyError):
        return error
    first, second = (join_path(scope.path, s) for s in (origin, segment))
    reason = (str(error).splitlines() or [""])[0]
    return type_error(
        function,
        f"`{first}` returned None, which `{second}` rejects ({reason}).",
        f"Return the output of `{first}`; a function without `return` returns None.",
    )


def call(
    stage: StageLike,
    args: tuple[PyTree, ...],
    state: MaybeState,
    inner: Scope,
    named: Mapping[str, PyTree] | None = None,
) -> Output:
    """Call a stage by its own convention, with the key of `inner` unchanged.

    `named` inputs are keyword arguments for a layer or function, and one mapping for a
    pipeline.
    """
    if is_composite(stage):
        (x,) = args if not named else (dict(named),)
        # Not `stage(x)`, which would begin a new scope and lose the path, key and
        # record.
        return cast(Any, type(stage)).run(stage, x, state, inner)
    keyword = {**(named or {}), **key_of(stage, inner.key)}
    if not is_stateful(stage):
        return stage(*args, **keyword), state
    # With keyword inputs, the state has no position.
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
    """Call a stage like an Equinox layer: with its state after its inputs.

    `begin` changes the inputs, and `end` the output.
    """
    inputs, state = list(args), None
    if is_stateful(stage):  # with keyword inputs it has no position
        state = named.pop("state") if "state" in named else inputs.pop()
    inputs, named = begin((inputs, named))
    y, state = call(as_module(stage), tuple(inputs), state, Scope(key), named)
    return end(y) if state is None else (end(y), state)
