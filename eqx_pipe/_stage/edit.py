"""Other pipelines made from one, by the paths of what changes."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import jax.tree_util as jtu

from .._errors import describe_value, type_error, value_error
from .._tree import join_path, path_name
from .._types import AnyStage, PyTree, Segment, StageLike
from .accept import as_stage
from .parent import Parent
from .pattern import nearest_paths

_Self = TypeVar("_Self", bound="Editable")

Items: TypeAlias = Sequence[tuple[str | None, StageLike]]
"""Stages with their names; `None` where they have positions."""


class Editable(Parent):
    """A stage made of stages, of which others can be made by path.

    Paths are those of errors, `outputs` and `describe`: `blocks.3.attn`. In a layer
    that is no pipeline they go on through its fields.
    """

    def admit(self, segment: str, stage: StageLike) -> AnyStage:
        """A stage to be put at a segment; raises unless it can stand there."""
        return as_stage(self._function, segment, stage)

    def with_items(self: _Self, items: Items) -> _Self:
        """A combinator of the same settings with these stages, in this order."""
        raise value_error(
            self._function,
            "its stages have each a part in it, so none can be inserted, removed or "
            "renamed.",
            "Build it anew: `items()` gives the stages with their names.",
        )

    @property
    def _function(self) -> str:
        return type(self).__name__.lower()

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
        new: PyTree = self
        for path, stage in {**_read(self, stages), **named}.items():
            new = _put(self, new, "", path, stage)
        return new

    def insert(
        self: _Self,
        stages: StageLike | Mapping[str, StageLike],
        *,
        before: Segment | None = None,
        after: Segment | None = None,
    ) -> _Self:
        """The same with more stages in a `chain` or `parallel`.

        Stages with names keep their draws, whatever is inserted. Where they have
        positions, those behind what was inserted move, and draw from other keys: give
        names where that matters.

        **Arguments:**

        - `stages`: a stage, or a mapping from names to stages where they have names.
        - `before`: the path of the stage before which they go; of a `chain` inside,
            `"encoder.norm"`. (Keyword only.)
        - `after`: the path of the stage behind which they go. With neither of the two
            they go to the end. (Keyword only.)

        **Returns:** a pipeline; the old one is as it was.

        **Raises:**

        - `ValueError` if there is no such path, the names are taken, names and
            positions are mixed, or it is no `chain` or `parallel`.
        - `TypeError` if something is not a stage.

        !!! example

            >>> import eqx_pipe as ep, jax.numpy as jnp
            >>> pipe = ep.chain(wave=jnp.sin, total=jnp.sum)
            >>> pipe.insert({"twice": lambda x: 2 * x}, after="wave").keys()
            ('wave', 'twice', 'total')
        """
        if before is not None and after is not None:
            raise value_error(
                self._function,
                f"`insert` is given `before={before!r}` and `after={after!r}`.",
                "Give one of them.",
            )
        mapping = isinstance(stages, Mapping)
        new = list(stages.items()) if mapping else [(None, stages)]
        place = before if after is None else after
        if place is None:
            return self.with_items(_joined(self, [*_items(self), *new], new))
        holder, path, segment = _holder(self, str(place))
        at, old = holder.segments().index(segment) + (after is not None), _items(holder)
        items = _joined(holder, [*old[:at], *new, *old[at:]], new)
        return _put_back(self, path, holder.with_items(items))

    def remove(self: _Self, *paths: Segment) -> _Self:
        """The same without some stages of a `chain` or `parallel`.

        As with `insert`, stages with names keep their draws, and those with positions
        move up.

        **Arguments:**

        - `paths`: the paths of what is to go, as they are in this pipeline.

        **Returns:** a pipeline; the old one is as it was.

        **Raises:** `ValueError` if there is no such path, or it lies in no `chain` or
        `parallel`.

        **Laws:** to remove what was inserted gives the pipeline from before.

        !!! example

            >>> import eqx_pipe as ep, jax.numpy as jnp
            >>> ep.chain(jnp.sin, jnp.cos, jnp.sum).remove(0, 1)(jnp.ones(3)).item()
            3.0
        """
        gone: dict[str, set[str]] = {}
        for path in map(str, paths):
            _, place, segment = _holder(self, path)
            gone.setdefault(place, set()).add(segment)
        new = self
        # The innermost first: what is removed further out may hold it.
        for place in sorted(gone, key=len, reverse=True):
            holder, *_ = _holder(new, join_path(place, min(gone[place])))
            both = zip(holder.segments(), _items(holder), strict=False)
            kept = [item for segment, item in both if segment not in gone[place]]
            new = _put_back(new, place, holder.with_items(kept))
        return new

    def rename(
        self: _Self, names: Mapping[str, str] | None = None, /, **named: str
    ) -> _Self:
        """The same with other names for stages of a `chain` or `parallel`.

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
            holder, place, segment = _holder(new, path)
            if any(old is None for old, _ in _items(holder)):
                raise value_error(
                    self._function,
                    f"`{path}` is a position, no name.",
                    "Give the stages names when the pipeline is built.",
                )

            _check_free(holder, [name])
            items = [(name if n == segment else n, s) for n, s in _items(holder)]
            new = _put_back(new, place, holder.with_items(items))
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


def _items(holder: Editable) -> list[tuple[str | None, AnyStage]]:
    """The stages of a combinator with their names, without gates and merges."""
    stages = getattr(holder, "stages", ())
    names = getattr(holder, "names", None) or [None] * len(stages)
    return list(zip(names, stages, strict=True)) if isinstance(stages, tuple) else []


def _joined(holder: Editable, items: Items, new: Items) -> Items:
    """`items`, among which `new` are; raises if names are taken, or only some named."""
    if len({name is None for name, _ in items}) > 1:
        has = "positions" if new[0][0] is not None else "names"
        raise value_error(
            type(holder).__name__.lower(),
            f"its stages have {has}, and what is inserted has not.",
            "Insert a mapping from names to stages where they have names, and a stage "
            "by itself where they have positions.",
        )
    _check_free(holder, [name for name, _ in new])
    return items


def _check_free(holder: Editable, names: Sequence[str | None]) -> None:
    taken = {name for name, _ in _items(holder)} - {None}
    for name in names:
        if name in taken:
            raise value_error(
                type(holder).__name__.lower(),
                f"it has a stage of the name `{name}` already.",
                "Give another name, or put a stage in its place by `replace`.",
            )


def _first(parent: Parent, path: str) -> tuple[str, str] | None:
    """The first segment of a path and the rest; names of gates contain a dot."""
    for segment in sorted(parent.segments(), key=len, reverse=True):
        if path == segment or path.startswith(f"{segment}."):
            return segment, path[len(segment) + 1 :]
    return None


def _unknown(root: Parent, place: str, path: str, known: Sequence[str]) -> ValueError:
    where = f" in `{place}`" if place else ""
    paths = [join_path(place, name) for name in known]
    return value_error(
        type(root).__name__.lower(),
        f"there is no `{path}`{where}.",
        nearest_paths(join_path(place, path), paths),
    )


def _put(root: Parent, node: PyTree, place: str, path: str, new: PyTree) -> PyTree:
    """`node`, which stands at `place`, with something else at a path below it."""
    if isinstance(node, Parent):
        found = _first(node, path)
        if found is None:
            raise _unknown(root, place, path, node.segments())
        segment, rest = found
        if rest:
            old = node.child(segment)
            new = _put(root, old, join_path(place, segment), rest, new)
        elif isinstance(node, Editable):
            new = node.admit(segment, new)
        return node.with_child(segment, new)
    parts, structure = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    names = [path_name(key) for key, _ in parts if key]
    segment, _, rest = path.partition(".")
    if segment not in names:
        raise _unknown(root, place, path, names)
    values = [value for _, value in parts]
    at = names.index(segment)
    if rest:
        new = _put(root, values[at], join_path(place, segment), rest, new)
    values[at] = new
    return structure.unflatten(values)


def _holder(root: Editable, path: str) -> tuple[Editable, str, str]:
    """The combinator that holds the stage at a path, its own path, and the segment."""
    node, place = root, ""
    while True:
        found = _first(node, path)
        if found is None:
            raise _unknown(root, place, path, node.segments())
        segment, rest = found
        if not rest:
            return node, place, segment
        inner = node.child(segment)
        place = join_path(place, segment)
        if not isinstance(inner, Editable):
            raise value_error(
                type(root).__name__.lower(),
                f"`{place}` is a `{type(inner).__name__}`, no pipeline.",
                "Stages are inserted, removed and renamed in a `chain` or `parallel`.",
            )
        node, path = inner, rest


def _put_back(root: _Self, place: str, holder: "Editable") -> _Self:
    """`root` with a combinator that was edited where it stood."""
    return cast(_Self, _put(root, root, "", place, holder) if place else holder)
