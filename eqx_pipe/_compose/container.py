"""Several stages in one: how they are read, and found again as in a list or a dict."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, TypeVar, overload

from .._check import check_draws_apart, check_name, is_integer
from .._errors import describe_value, message, nearest, type_error, value_error
from .._stage import Composite, Item, Items, Lift, as_stage
from .._types import AnyStage, PyTree, Segment, StageLike

_Own = TypeVar("_Own", bound="Container")  # beartype takes `Self` in decorated classes

Names = tuple[str, ...] | None
"""The names of stages; `None` where they have positions."""


def check_names(function: str, argument: str, names: Iterable[Any]) -> Names:
    """The names of stages; raises unless each can be one, and all draw apart."""
    found = tuple(names)
    for name in found:
        check_name(function, argument, name)
    check_draws_apart(function, found)
    return found


def named_items(items: Items) -> tuple[StageLike | Mapping[str, StageLike], ...]:
    """Stages as the constructors of combinators take them: a mapping if named."""
    by_name = {item.name: item.stage for item in items if item.name is not None}
    return (by_name,) if by_name else tuple(item.stage for item in items)


def reordered(items: Items, old: Sequence[PyTree], new: Sequence[PyTree]) -> list[Any]:
    """Of what goes with each stage, that which goes with these, old and new."""
    rest = iter(new)
    return [next(rest) if i.origin is None else old[i.origin] for i in items]


def check_reserved(function: str, names: Names, reserved: Sequence[str]) -> None:
    """Raises if a stage has a name that paths have another use for."""
    for name in set(reserved) & set(names or ()):
        raise value_error(
            function,
            f"a stage has the name `{name}`, which is that of a part of it.",
            "Rename the stage.",
        )
    check_draws_apart(function, (*(names or ()), *reserved))


def read_list(
    function: str,
    stages: Sequence[object],
    argument: str = "stages",
    cure: str = "Give at least one.",
) -> tuple[AnyStage, ...]:
    """Stages given by position; raises unless there is one."""
    if not stages:
        raise value_error(function, f"no {argument}.", cure)
    return tuple(
        as_stage(function, f"{argument}[{i}]", stage) for i, stage in enumerate(stages)
    )


def read_stages(
    function: str,
    argument: str,
    stages: Sequence[object],
    cure: str = "Give at least one.",
) -> tuple[Names, tuple[AnyStage, ...]]:
    """The names, if there are any, and the stages.

    `stages` is what a constructor got as `*stages`: stages, or one mapping of them.
    """
    named = next((s for s in stages if isinstance(s, Mapping)), None)
    if named is not None and len(stages) > 1:
        raise type_error(
            function,
            f"`{argument}` is a mapping of names {list(named)} together with "
            f"{len(stages) - 1} more positional arguments.",
            "Give all by position, or all in one mapping.",
        )
    if not named:
        given = stages if named is None else ()
        return None, read_list(function, given, argument, cure)
    return check_names(function, argument, named), tuple(
        as_stage(function, f'{argument}["{name}"]', stage)
        for name, stage in named.items()
    )


class Container(Composite):
    """The base of combinators of several stages, which are found again in it.

    The stages are found by position, from the front or the back, by name if they have
    names, and by what paths call them; a slice is the same combinator of those.
    Iteration gives the stages; `in` takes a name, or a stage.
    """

    if TYPE_CHECKING:
        stages: ClassVar[PyTree]
        names: ClassVar[Names]
    else:  # not annotated: dataclasses would put the fields of this name first
        names = None

    def keys(self) -> tuple[Segment, ...]:
        """The names of the stages, or their positions."""
        return tuple(range(len(self))) if self.names is None else self.names

    def children(self) -> Mapping[str, AnyStage]:
        """The stages by the names, or positions, that paths call them by."""
        return dict(zip(map(str, self.keys()), self.stages, strict=True))

    def values(self) -> tuple[AnyStage, ...]:
        """The stages."""
        return tuple(self)

    def items(self) -> tuple[tuple[Segment, AnyStage], ...]:
        """The names, or positions, with the stages."""
        return tuple(zip(self.keys(), self, strict=True))

    def pick(self, position: int) -> AnyStage:
        """The stage at a position that there is."""
        return self.stages[position]

    def listed(self) -> list[Item]:
        names = self.names or (None,) * len(self)
        each = zip(names, self.stages, range(len(self)), strict=True)
        return [Item(*item) for item in each]

    def __len__(self) -> int:
        return len(self.stages)

    def __iter__(self) -> Iterator[AnyStage]:
        return (self.pick(i) for i in range(len(self)))

    def __contains__(self, item: object) -> bool:
        if isinstance(item, str):
            return self._position(item) is not None
        return any(
            # By identity: to compare Modules compares their arrays.
            item is stage or isinstance(stage, Lift) and item is stage.fn
            for stage in self
        )

    @overload
    def __getitem__(self, item: str) -> AnyStage: ...

    @overload
    def __getitem__(self, item: SupportsIndex) -> AnyStage: ...

    @overload
    def __getitem__(self: _Own, item: slice) -> _Own: ...

    def __getitem__(self, item: PyTree) -> PyTree:
        """The stage at a position or of a name; for a slice, the same of those."""
        if isinstance(item, slice):
            return self.with_items(self.listed()[item], {})
        size, position = len(self), None
        if isinstance(item, str):
            error, position = KeyError, self._position(item)
            wrong = f"no stage `{item}`."
        elif is_integer(item):
            error, wrong = IndexError, f"no stage {item} among {size}."
            if -size <= item.__index__() < size:
                position = item.__index__() % size
        else:
            raise type_error(
                self._function,
                f"the index is {describe_value(item)}.",
                "Give an integer, a slice, or a name if the stages have names.",
            )
        if position is None:
            raise error(message(self._function, wrong, self._known(item)))
        return self.pick(position)

    def _position(self, name: str) -> int | None:
        """Where the stage of that name is; paths write positions as names."""
        known = tuple(map(str, self.keys()))
        return known.index(name) if name in known else None

    def _known(self, item: object) -> str:
        """Which stages there are, for a message on an item that is not among them."""
        if not len(self):
            return "There are none."
        if self.names is not None and isinstance(item, str):
            return nearest(item, self.names)
        return f"Give an integer from {-len(self)} to {len(self) - 1}."
