"""The key, path and record that a composite passes to a child."""

import dataclasses
from collections.abc import Callable

from jaxtyping import Array, Integer

from .._keys import fold
from .._tree import join_path
from .._types import Key, PyTree, Segment


@dataclasses.dataclass(frozen=True)
class Record:
    """The outputs of stages, by path, for requested paths."""

    wants: Callable[[str], bool]
    values: dict[str, PyTree] = dataclasses.field(default_factory=dict)

    def add(self, path: str, value: PyTree) -> None:
        """Store the value at a path, if it is requested."""
        if self.wants(path):
            self.values[path] = value


@dataclasses.dataclass(frozen=True)
class Scope:
    """The values that a composite passes to a child besides its input and state.

    `key` is the composite's own key; a child draws from it folded with the child's name
    or position. `record` collects outputs by path; it is `None` if no outputs are
    requested, or where values cannot leave a traced branch. `watch` is called before
    each direct child, with its path, the child, its inputs, state, key and named
    inputs.
    """

    key: Key | None
    path: str = ""
    record: Record | None = None
    watch: Callable[..., None] | None = None

    def child(
        self, segment: Segment, index: Integer[Array, ""] | None = None
    ) -> "Scope":
        """Return the scope of the child named, or positioned at, `segment`.

        `index` is folded into the key instead of `segment` if one traced call stands
        for many (`repeat`, `batched`).
        """
        key = fold(self.key, segment if index is None else index)
        return Scope(key, join_path(self.path, segment), self.record)

    @property
    def where(self) -> str:
        """ " at `path`" for a message, or nothing at the root."""
        return f" at `{self.path}`" if self.path else ""

    def silent(self) -> "Scope":
        """Return the same scope without a record."""
        return dataclasses.replace(self, record=None)
