"""Other pipelines made from one, by the paths of what changes."""

from collections.abc import Mapping
from typing import Any, TypeVar

from .._errors import describe_value, type_error, value_error
from .._tree import join_path
from .._types import PyTree, Segment, StageLike
from .listed import Item, Listed, check_own
from .places import holder_of, put, put_back

_Self = TypeVar("_Self", bound="Editable")


class Editable(Listed):
    """A stage made of stages, of which others can be made by path.

    Paths are those of errors, `outputs` and `describe`: `blocks.3.attn`. In a layer
    that is no pipeline they go on through its fields.
    """

    def replace(
        self: _Self,
        stages: Mapping[str, PyTree] | Mapping[int, PyTree] | None = None,
        /,
        **named: StageLike,
    ) -> _Self:
        """The same with other stages in the place of some.

        All others keep their paths, and so their random draws; the new ones draw as
        those before them did. A stage of a `repeat` may be replaced by one of equal
        structure. A state remains valid, unless what was stateful is replaced: then
        make the edited pipeline inside of `equinox.nn.make_with_state`.

        **Arguments:**

        - `stages`: from path (`"blocks.3.attn"`, or a position) to the new stage. A
            path that leads into a layer names a field of it, or an item of a field, and
            anything may be put there.
        - `named`: the same for stages right below. (Keyword only.)

        **Returns:** a pipeline; the old one is as it was.

        **Raises:**

        - `ValueError` if there is no such path; names the nearest.
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
        new = self
        for path, stage in {**_read(self, stages), **named}.items():
            new = put(new, path, stage)
        return new

    def insert(
        self: _Self,
        stages: StageLike | Mapping[str, StageLike],
        *,
        before: Segment | None = None,
        after: Segment | None = None,
        **own: PyTree,
    ) -> _Self:
        """The same with more stages in a combinator of several.

        Stages with names keep their draws, whatever is inserted. Where they have
        positions, those behind what was inserted move, and draw from other keys: give
        names where that matters. In a `graph` the new ones stand on the edges: those
        `after` a node read it, and are read by all that read it before; those `before`
        a node stand between it and the one that it reads.

        **Arguments:**

        - `stages`: a stage, or a mapping from names to stages where they have names.
        - `before`: the path of the stage before which they go; of a `chain` inside,
            `"encoder.norm"`. (Keyword only.)
        - `after`: the path of the stage behind which they go. With neither of the two
            they go to the end. (Keyword only.)
        - `own`: what the combinator has for each of its stages, for the new ones:
            `weights=[0.1]` in a `weighted`, `gates={"new": gate}` in a `gated`. Where a
            stage decides for all (the `weights` of a `weighted`, the `selector` of a
            `switch`), another that knows of the new ones. (Keyword only.)

        **Returns:** a pipeline; the old one is as it was.

        **Raises:**

        - `ValueError` if there is no such path, the names are taken, names and
            positions are mixed, weights or gates for the new ones are missing, stages
            of a `switch` would move without a new `selector`, or the combinator has no
            list of stages (`cond`, `at`, `batched`).
        - `TypeError` if something is not a stage.

        !!! example

            >>> import eqx_pipe as ep, jax.numpy as jnp
            >>> pipe = ep.chain(wave=jnp.sin, total=jnp.sum)
            >>> pipe.insert({"twice": lambda x: 2 * x}, after="wave").keys()
            ('wave', 'twice', 'total')
            >>> mix = ep.weighted({"a": jnp.sin, "b": jnp.cos}, weights=[0.5, 0.5])
            >>> mix.insert({"c": jnp.tanh}, before="b", weights=[0.2]).weights.tolist()
            [0.5, 0.20000000298023224, 0.5]
        """
        if before is not None and after is not None:
            raise value_error(
                self._function,
                f"`insert` is given `before={before!r}` and `after={after!r}`.",
                "Give one of them.",
            )
        mapping = isinstance(stages, Mapping)
        given = stages.items() if mapping else [(None, stages)]
        new = [Item(name, stage) for name, stage in given]
        beside = before if after is None else after
        holder, place, segment = self, "", None
        if beside is not None:
            holder, place, segment = holder_of(self, str(beside))
        check_own(holder, "insert", own)
        if not new:
            return self
        edited = holder.with_inserted(new, segment, after is not None, own)
        return put_back(self, place, edited)

    def remove(self: _Self, *paths: Segment, **own: PyTree) -> _Self:
        """The same without some stages of a combinator of several.

        As with `insert`, stages with names keep their draws, and those with positions
        move up. What read a node that goes from a `graph` reads what that node read.

        **Arguments:**

        - `paths`: the paths of what is to go, as they are in this pipeline.
        - `own`: as for `insert`, a stage that decides for those that stay, in place of
            one that decided for all: `weights` of a `weighted`, `selector` of a
            `switch`. (Keyword only.)

        **Returns:** a pipeline; the old one is as it was.

        **Raises:** `ValueError` if there is no such path, or it lies in no list of
        stages, or a node of a `graph` read several.

        **Laws:** to remove what was inserted gives the pipeline from before.

        !!! example

            >>> import eqx_pipe as ep, jax.numpy as jnp
            >>> ep.chain(jnp.sin, jnp.cos, jnp.sum).remove(0, 1)(jnp.ones(3)).item()
            3.0
        """
        gone: dict[str, set[str]] = {}
        for path in map(str, paths):
            holder, place, segment = holder_of(self, path)
            check_own(holder, "remove", own)
            gone.setdefault(place, set()).add(segment)
        new = self
        # The innermost first: what is removed further out may hold it.
        for place in sorted(gone, key=len, reverse=True):
            holder, *_ = holder_of(new, join_path(place, min(gone[place])))
            new = put_back(new, place, holder.without(gone[place], own))
        return new

    def rename(
        self: _Self, names: Mapping[str, str] | None = None, /, **named: str
    ) -> _Self:
        """The same with other names for stages of a combinator of several.

        What is renamed draws by its new name; all else stays.

        **Arguments:**

        - `names`: from path to new name, `{"encoder.ln": "norm"}`.
        - `named`: the same for stages right below. (Keyword only.)

        **Returns:** a pipeline; the old one is as it was.

        **Raises:** `ValueError` if there is no such path, a name is taken or cannot be
        one, or the stages have positions.

        **Laws:** to rename back gives the pipeline from before.

        !!! example

            >>> import eqx_pipe as ep, jax.numpy as jnp
            >>> ep.chain(a=jnp.sin, b=jnp.cos).rename(a="wave").keys()
            ('wave', 'b')
        """
        new = self
        for path, name in {**_read(self, names), **named}.items():
            holder, place, segment = holder_of(new, path)
            if name != segment:
                new = put_back(new, place, holder.with_name(segment, name))
        return new


def _read(editable: Editable, given: object) -> dict[str, Any]:
    """What was given by path."""
    if given is not None and not isinstance(given, Mapping):
        raise type_error(
            type(editable).__name__.lower(),
            f"the edit is {describe_value(given)}.",
            'Give a mapping from paths: `{"blocks.3.attn": ...}`, or keywords.',
        )
    return {str(path): value for path, value in (given or {}).items()}
