"""Values in the structure of a pytree: constants, and functions."""

from typing import Any

from .._tree import Same, leaf_text
from .reading import live_key


class Fixed(Same):
    """A value deliberately hidden from a pytree; see `frozen`.

    Equal functions and the same arrays are equal, so a program that holds them is
    compiled once, also by another build of the same pipeline.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        # Programs compare the structures of their arguments at each call.
        same = self.value is other.value
        return same or live_key(self.value) == live_key(other.value)

    def __hash__(self) -> int:
        code = getattr(self.value, "__code__", None)
        return hash(type(self.value) if code is None else code)

    @property
    def value(self) -> Any:
        """The value itself."""
        return self.values[0]

    def __repr__(self) -> str:
        return f"frozen {leaf_text(self.value)}"
