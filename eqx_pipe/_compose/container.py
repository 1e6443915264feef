"""What composites of several stages have in common with a list or a dict."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, SupportsIndex, overload

import equinox as eqx

from .._check import is_integer
from .._errors import describe_value, message, nearest, type_error
from .._stage import Composite, Lift
from .._types import AnyStage, PyTree, Segment
from .named import Names


class Container(Composite):
    """The base of combinators of several stages, which are found again in it.

    The stages are found by position, from the front or the back, by name if they have
    names, and by what paths call them. Iteration gives the stages; `in` takes a name,
    or a stage.
    """

    if TYPE_CHECKING:  # which takes an `AbstractVar` for a field of this class
        stages: ClassVar[PyTree]
        names: ClassVar[Names]
    else:
        stages: eqx.AbstractVar[PyTree]
        names: eqx.AbstractVar[Names]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The names of the stages, or their positions."""
        return tuple(range(len(self))) if self.names is None else self.names

    def children(self) -> Mapping[str, AnyStage]:
        """The stages by the names, or positions, that paths call them by."""
        return dict(zip(map(str, self.segments), self.stages, strict=True))

    def keys(self) -> tuple[Segment, ...]:
        """The names of the stages, or their positions."""
        return self.segments

    def values(self) -> tuple[AnyStage, ...]:
        """The stages."""
        return tuple(self)

    def items(self) -> tuple[tuple[Segment, AnyStage], ...]:
        """The names, or positions, with the stages."""
        return tuple(zip(self.segments, self, strict=True))

    def pick(self, position: int) -> AnyStage:
        """The stage at a position that there is."""
        return self.stages[position]

    def __len__(self) -> int:
        return len(self.stages)

    def __iter__(self) -> Iterator[AnyStage]:
        return (self.pick(i) for i in range(len(self)))

    def __contains__(self, item: object) -> bool:
        if isinstance(item, str):
            return self._position(item) is not None
        return any(
            item is stage or isinstance(stage, Lift) and item is stage.fn
            for stage in self
        )

    @overload
    def __getitem__(self, item: str) -> AnyStage: ...

    @overload
    def __getitem__(self, item: SupportsIndex) -> AnyStage: ...

    def __getitem__(self, item: PyTree) -> AnyStage:
        """The stage at a position or of a name."""
        if isinstance(item, str):
            position = self._position(item)
            if position is None:
                raise KeyError(
                    message(self._function, f"no stage `{item}`.", self._known(item))
                )
            return self.pick(position)
        size = len(self)
        if not is_integer(item):
            raise type_error(
                self._function,
                f"the index is {describe_value(item)}.",
                "Give an integer, or a name if the stages have names.",
            )
        if not -size <= item.__index__() < size:
            raise IndexError(
                message(
                    self._function, f"no stage {item} among {size}.", self._known(item)
                )
            )
        return self.pick(item.__index__() % size)

    def _position(self, name: str) -> int | None:
        """Where the stage of that name is; paths write positions as names."""
        known = tuple(map(str, self.segments))
        return known.index(name) if name in known else None

    def _known(self, item: object) -> str:
        """Which stages there are, for a message on an item that is not among them."""
        if not len(self):
            return "There are none."
        if self.names is not None and isinstance(item, str):
            return nearest(item, self.names)
        return f"Give an integer from {-len(self)} to {len(self) - 1}."

    @property
    def _function(self) -> str:
        return type(self).__name__.lower()
