"""Caches of what is expensive to make: by what it is made of, or beside an object.

Modules are frozen, and nothing is written into them. Programs and copies that are made
for one are found here instead, by the object itself: not by its value, as a Module that
holds arrays has no hash, and comparing arrays would wait for the device.
"""

import collections
import threading
import weakref
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

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
        """Return what is known about an object, or `None`."""
        entry = self._entries.get(id(owner))
        # An address is used again, perhaps before the entry of its last owner is gone.
        return entry[1] if entry is not None and entry[0]() is owner else None

    def put(self, owner: object, value: _Value) -> _Value:
        """Keep a value, and return it."""
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


class LRUCache:
    """A mapping of at most `maxsize` entries: the one used longest ago goes first.

    Unlike `functools.lru_cache` it does not need to know how an entry is made, and two
    threads may make the same one.
    """

    def __init__(self, maxsize: int):
        self._maxsize = maxsize
        self._entries = collections.OrderedDict[Hashable, Any]()
        # Entered twice by one thread: `setdefault` calls `put`.
        self._lock = threading.RLock()

    def get(self, key: Hashable) -> Any:
        """Return the entry of a key, or `None`."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def setdefault(self, key: Hashable, entry: Any) -> Any:
        """Return the entry of a key: the given one, unless there was another."""
        with self._lock:
            self.put(key, entry := self._entries.get(key, entry))
            return entry

    def put(self, key: Hashable, entry: Any) -> None:
        """Store an entry in place of what was there."""
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            while len(self._entries) > self._maxsize:
                self._entries.popitem(last=False)
