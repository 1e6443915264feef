"""What was found out about an object, kept beside it for as long as it lives.

Modules are frozen, and nothing is written into them. Programs and copies that are made
for one are found here instead, by the object itself: not by its value, as a Module that
holds arrays has no hash, and comparing arrays would wait for the device.
"""

import threading
import weakref
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class WeakCache(Generic[_Value]):
    """A dictionary from objects, by identity, to values.

    An entry goes when its object goes; so a value must not hold the object itself,
    which would then live for ever. Copies, pickled objects, and those that a
    transformation rebuilds are other objects, without an entry.
    """

    # Not a `weakref.WeakKeyDictionary`, which hashes and compares its keys.

    def __init__(self):
        self._entries: dict[int, tuple[weakref.ref[object], _Value]] = {}
        # Entered again by one thread: adding an entry may collect garbage, and that
        # calls `_forget`.
        self._lock = threading.RLock()

    def get(self, owner: object) -> _Value | None:
        """What is known about an object, or `None`."""
        entry = self._entries.get(id(owner))
        # An address is used again, perhaps before the entry of its last owner is gone.
        return entry[1] if entry is not None and entry[0]() is owner else None

    def put(self, owner: object, value: _Value) -> _Value:
        """Keeps a value, and gives it back."""
        address = id(owner)
        ref = weakref.ref(owner, lambda ref: self._forget(address, ref))
        with self._lock:
            self._entries[address] = ref, value
        return value

    def _forget(self, address: int, ref: weakref.ref[object]) -> None:
        with self._lock:
            entry = self._entries.get(address)
            if entry is not None and entry[0] is ref:
                del self._entries[address]

    def __len__(self) -> int:
        return len(self._entries)
