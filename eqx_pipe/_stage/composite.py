"""Stages made of stages: their children, calls and edits."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from .._check import check_is
from .._errors import message, nearest
from .._keys import check_key
from .._types import AnyStage, Key, MaybeState, Output, PyTree, StageLike
from .describe import row_of
from .select import parts_of, put
from .stage import Scope, Stage, as_stage, check_state, check_state_is_ours, is_stateful

_Self = TypeVar("_Self", bound="Composite")


class Composite(Stage):
    """The base of the combinators: stages made of other stages.

    A combinator declares its fields, and defines `children` and `run`; `run` calls
    children only by `scope.enter`. Calls of a pipeline look up methods on the class, as
    in `type(stage).run(stage, ...)`: a method looked up on a Module is a new Module,
    which takes longer than most layers.
    """

    made_of_stages = True
    if TYPE_CHECKING:
        size: ClassVar[int | None]
    else:  # not annotated: only stacked stages have it as a field
        size = None
        """The number of stages that are stacked into the only child, if they are."""

    def children(self) -> Mapping[str, AnyStage]:
        """Return the children by their paths relative to this stage, in order.

        By default the only child is the field `stage`.
        """
        return {"stage": cast(Any, self).stage}

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
        values = [new if part.segment == segment else part.value for part in parts]
        return structure.unflatten(values)

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
            stages. Paths are those of errors and `outputs`. To replace a part of a
            layer, use `equinox.tree_at`.
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
        new, by_path = self, cast(Mapping[Any, Any], stages or {})
        for path, stage in {**by_path, **named}.items():
            new = put(new, new, "", str(path), stage)
        return new

    def __bool__(self) -> bool:
        return True  # an empty pipeline is still a pipeline

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            wrong = f"a `{kind.__name__}` has no attribute `{name}`"
            # While `copy` or `pickle` builds a module, it lacks its fields.
            unmade = name.startswith("_") or name in kind.__dataclass_fields__
            if hasattr(kind, "__getitem__") and not unmade:
                names = list(self.children())
                cure = f'Stages are items: `pipe["{name}"]`.'
                cure = cure if name in names else nearest(name, names)
                wrong = message(kind.__name__.lower(), f"{wrong}.", cure)
            raise AttributeError(wrong)

    def __repr__(self) -> str:
        return repr(row_of(self, {}))

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
