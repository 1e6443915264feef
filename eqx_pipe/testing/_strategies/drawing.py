"""What is drawn of a pipeline, from the outside inwards."""

import dataclasses
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st

from ..._types import PyTree, StageLike
from .validate import Draw


@dataclasses.dataclass
class Drawing:
    """Draws a pipeline of some struct and depth, and those that stand in it."""

    draw: Draw
    make: Callable[["Drawing"], StageLike]
    struct: PyTree
    depth: int
    random: bool
    branches: bool
    leaves: st.SearchStrategy[StageLike] | None
    is_first: bool = True

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def inner(self, part: PyTree = None) -> StageLike:
        """A pipeline one level deeper, for the same struct or for another one."""
        # Only the first child goes all the way down: else sizes grow exponentially.
        depth = self.depth - 1 if self.is_first else max(0, min(1, self.depth - 2))
        self.is_first = False
        struct = self.struct if part is None else part
        return self.make(
            dataclasses.replace(self, struct=struct, depth=depth, is_first=True)
        )

    def few(self) -> list[StageLike]:
        return [self.inner() for _ in range(self.draw(st.integers(1, 2)))]
