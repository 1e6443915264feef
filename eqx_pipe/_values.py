"""By what a Python value is known, where JAX does not look into it."""

from typing import Any


class Same:
    """Equal only to a wrapper of the very same objects, which it keeps alive."""

    def __init__(self, *values: Any):
        # Kept, since the address of an object that is gone may be given to another.
        self.values = values

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or type(other) is not type(self):
            return False
        return list(map(id, self.values)) == list(map(id, other.values))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.values)))


def as_hashable(value: Any) -> Any:
    """A hashable stand-in: equal only for values that make the same program."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return (type(value), repr(value))  # 0.0 and -0.0 differ, NaNs are equal
    if type(value) is tuple:
        return (tuple, tuple(map(as_hashable, value)))
    return Same(value)


def static_text(value: Any) -> str:
    """A value as a short text that is the same in every process."""
    if isinstance(value, str):
        return value
    name = getattr(value, "__name__", None)
    if isinstance(name, str):
        return name
    text = repr(value)
    if " at 0x" in text or "\n" in text or len(text) > 60:
        return type(value).__name__
    return text


class Opaque:
    """Python values that JAX does not look into, not even if they are pytrees."""

    def __init__(self, values: tuple[Any, ...]):
        self.values = values
        self._key = tuple(map(as_hashable, values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"[{', '.join(map(static_text, self.values))}]"
