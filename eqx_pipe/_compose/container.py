"""Combinators of several stages, which are indexed as a list or a dict."""

import contextlib
import dataclasses
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .._check import check_name, is_integer
from .._errors import describe_value, message, nearest, quoted, type_error, value_error
from .._keys import check_names_draw_apart
from .._stage import Composite, as_stage, stage_at
from .._types import AnyStage, PyTree, Segment

_Own = TypeVar("_Own", bound="Container")  # beartype takes `Self` in decorated classes

Names = tuple[str, ...] | None
"""The names of stages; `None` where they have positions."""


def read_names(function: str, argument: str, names: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of stages; raise unless each is a name, with its own key."""
    names = tuple(names)
    for name in names:
        check_name(function, argument, name)
    check_names_draw_apart(function, names)
    return names


def check_reserved(function: str, names: Names, parts: Sequence[str]) -> None:
    """Raise if a stage has the name, or the key, of another part of a combinator."""
    for name in set(parts) & set(names or ()):
        wrong = f"the name `{name}` is reserved for a part of `{function}`."
        raise value_error(function, wrong, "Rename the stage.")
    check_names_draw_apart(function, (*(names or ()), *parts))


_ONE = "Give at least one."


def read_list(
    function: str, stages: Sequence[object], argument: str = "stages", cure: str = _ONE
) -> tuple[AnyStage, ...]:
    """Return stages given by position; raise unless there is one."""
    if not stages:
        raise value_error(function, f"`{argument}` is empty.", cure)
    return tuple(
        as_stage(function, f"{argument}[{i}]", s) for i, s in enumerate(stages)
    )


def read_stages(
    function: str, argument: str, stages: Sequence[object], cure: str = _ONE
) -> tuple[Names, tuple[AnyStage, ...]]:
    """Return the names, if there are any, and the stages.

    `stages` are the arguments `*stages` of a constructor: stages, or one mapping.
    """
    named = next((s for s in stages if isinstance(s, Mapping)), None)
    if named is not None and len(stages) > 1:
        wrong = f"`{argument}` mixes a mapping (names {quoted(named)}) with "
        wrong += f"{len(stages) - 1} more by position."
        cure = "Give all by position, or all in one mapping."
        raise type_error(function, wrong, cure)
    if not named:
        listed = stages if named is None else ()
        return None, read_list(function, listed, argument, cure)
    return read_names(function, argument, named), tuple(
        as_stage(function, f'{argument}["{name}"]', stage)
        for name, stage in named.items()
    )


class Container(Composite):
    """The base of combinators of several stages.

    Stages are indexed by position, from the front or the back, by name if they have
    names, and by path (`pipe["blocks.3.attn"]`). Iteration yields the stages; `in`
    takes a name or path. If
    stages run one after the other, or are stacked, a slice is the same combinator of
    some stages, at least `fewest`; the others have no slices.
    """

    fewest: ClassVar[int | None] = None

    if TYPE_CHECKING:
        stages: ClassVar[PyTree]
        names: ClassVar[Names]
    else:  # not annotated: dataclasses would put the fields of this name first
        names = None

    def keys(self) -> tuple[Segment, ...]:
        """Return the names of the stages, or their positions."""
        return tuple(range(len(self))) if self.names is None else self.names

    def children(self) -> Mapping[str, AnyStage]:
        """Return the stages by their path segments: names or positions."""
        return {str(key): stage for key, stage in keyed(self)}

    def values(self) -> tuple[AnyStage, ...]:
        """Return the stages."""
        return tuple(self)

    def items(self) -> tuple[tuple[Segment, AnyStage], ...]:
        """Return the names, or positions, with the stages."""
        return tuple(zip(self.keys(), self, strict=True))

    def pick(self, position: int) -> PyTree:
        """Return the stage at a position from 0, or the mark of a tied one."""
        return self.stages[position]

    def sliced(self: _Own, part: slice) -> _Own:
        """Return the same combinator of some of the stages."""
        changes = {"stages": self.stages[part]}
        if self.names is not None:
            changes["names"] = self.names[part] or None
        return dataclasses.replace(self, **changes)

    def __len__(self) -> int:
        return len(self.stages)

    def __iter__(self) -> Iterator[AnyStage]:
        return (self.pick(i) for i in range(len(self)))

    def __contains__(self, item: object) -> bool:
        with contextlib.suppress(KeyError):
            return isinstance(item, str) and self[item] is not None
        return False

    def __getitem__(self, item: PyTree) -> PyTree:
        """Return a stage by position or path; for a slice, the same combinator."""
        if isinstance(item, slice):
            return self._checked_slice(item)
        if isinstance(item, str):
            return self._by_path(item)
        if not is_integer(item):
            wrong = f"the index is {describe_value(item)}."
            cure = "Give an integer, a slice, or a name if the stages have names."
            raise type_error(_name_of(self), wrong, cure)
        size, position = len(self), operator.index(item)
        if not -size <= position < size:
            stages = f"{size} stage{'s' * (size != 1)}"
            wrong = f"index {item} is out of range for {stages}."
            raise IndexError(message(_name_of(self), wrong, self._range()))
        return self.pick(position % size)

    def _checked_slice(self: _Own, part: slice) -> _Own:
        if self.fewest is None:
            cure = "Build a new one of the stages that you want."
            raise value_error(_name_of(self), "it has no slices.", cure)
        if len(range(len(self))[part]) < self.fewest:
            wrong = f"{part} selects none of its {len(self)} stages."
            cure = f"It needs at least {self.fewest}."
            raise value_error(_name_of(self), wrong, cure)
        return self.sliced(part)

    def _by_path(self, path: str) -> PyTree:
        """Return the stage at a path, in which positions are names, too."""
        names = list(map(str, self.keys()))
        if path in names:
            return self.pick(names.index(path))
        if "." in path:
            try:
                return stage_at(self, path)
            except ValueError as wrong:
                raise KeyError(str(wrong)) from None
        cure = nearest(path, self.names) if self.names else self._range()
        wrong = f"there is no stage `{path}`."
        raise KeyError(message(_name_of(self), wrong, cure))

    def _range(self) -> str:
        """Return the cure for an index that is out of range."""
        if not len(self):
            return "There are none."
        return f"Give an integer from {-len(self)} to {len(self) - 1}."


def keyed(container: Container) -> Iterator[tuple[Segment, AnyStage]]:
    """Return the stages with their names or positions.

    A function, since looking up a method of a Module is slow outside `jit`.
    """
    stages, names = container.stages, container.names
    return zip(range(len(stages)) if names is None else names, stages, strict=True)


def _name_of(container: Container) -> str:
    return type(container).__name__.lower()
