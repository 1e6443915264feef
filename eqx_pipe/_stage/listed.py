"""Stages made of others of which there may be more, fewer, or others by name."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from .._errors import nearest, quoted, type_error, value_error
from .._types import AnyStage, PyTree, StageLike
from .accept import as_stage
from .parent import Parent

_Self = TypeVar("_Self", bound="Listed")


class Item(NamedTuple):
    """A stage among others: its name, if they have names, and where it stood before."""

    name: str | None
    stage: StageLike
    origin: int | None = None  # of one that is new


Items: TypeAlias = Sequence[Item]

Own: TypeAlias = Mapping[str, PyTree]
"""What a combinator holds for its stages besides them, as its constructor calls it."""


class Listed(Parent):
    """A stage made of others, and how the same is made of other ones.

    Whoever keeps them in an order defines `listed` and `with_items`; the rest follows.
    """

    @property
    def _function(self) -> str:
        return type(self).__name__.lower()

    def holds(self) -> tuple[str, ...]:
        """The names that `Own` may have here."""
        return ()

    def admit(self, segment: str, stage: StageLike) -> AnyStage:
        """A stage to be put at a segment; raises unless it can stand there."""
        return as_stage(self._function, segment, stage)

    def listed(self) -> list[Item]:
        """The stages of which there may be more or fewer: no gates, no merges."""
        raise value_error(
            self._function,
            "its stages have each a part in it, so none can be inserted, removed or "
            "renamed.",
            "Put others in their place by `replace`, or build it anew.",
        )

    def with_items(self: _Self, items: Items, own: Own) -> _Self:
        """A combinator of the same settings with these stages, in this order."""
        raise NotImplementedError

    def with_inserted(
        self: _Self, new: Items, beside: str | None, after: bool, own: Own
    ) -> _Self:
        """The same with more stages: before or after one, or at the end."""
        old = self.listed()
        at = len(old)
        if beside is not None:
            at = self._place(beside) + after
        if len({item.name is None for item in (*old, *new)}) > 1:
            has = "positions" if new[0].name is not None else "names"
            raise value_error(
                self._function,
                f"its stages have {has}, and what is inserted has not.",
                "Insert a mapping from names to stages where they have names, and a "
                "stage by itself where they have positions.",
            )
        check_free(self, [item.name for item in old], new)
        return self.with_items([*old[:at], *new, *old[at:]], own)

    def without(self: _Self, segments: Collection[str], own: Own) -> _Self:
        """The same without some of the stages."""
        gone = {self._place(segment) for segment in segments}
        kept = [item for i, item in enumerate(self.listed()) if i not in gone]
        return self.with_items(kept, own)

    def with_name(self: _Self, segment: str, name: str) -> _Self:
        """The same with another name for one of the stages."""
        old, at = self.listed(), self._place(segment)
        if old[at].name is None:
            raise value_error(
                self._function,
                f"`{segment}` is a position, no name.",
                "Give the stages names when the pipeline is built.",
            )
        renamed = old[at]._replace(name=name)
        check_free(self, [item.name for item in old], [renamed])
        return self.with_items([*old[:at], renamed, *old[at + 1 :]], {})

    def _place(self, segment: str) -> int:
        """Where a segment stands in the list; raises if it is a gate, say."""
        names = [item.name or str(i) for i, item in enumerate(self.listed())]
        if segment not in names:
            raise value_error(
                self._function,
                f"`{segment}` is a part of it that it always has.",
                f"Put another in its place by `replace`. {nearest(None, names)}",
            )
        return names.index(segment)


def check_free(holder: Listed, taken: Collection[str | None], new: Items) -> None:
    """Raises if a name is that of another stage."""
    for item in new:
        if item.name is not None and item.name in taken:
            raise value_error(
                holder._function,
                f"it has a stage of the name `{item.name}` already.",
                "Give another name, or put a stage in its place by `replace`.",
            )


def check_own(holder: Listed, what: str, own: Own) -> None:
    """Raises if something is given that the combinator does not hold."""
    for name in own:
        known = quoted(holder.holds())
        if name not in holder.holds():
            raise type_error(
                holder._function,
                f"`{what}` is given `{name}`, and it has none.",
                f"It has {known}." if known else "Leave it out.",
            )
