"""Caches of expensive values, by key or by the identity of an object.

Modules are frozen, so programs and copies for a module are kept here and not in it.
They are found by the identity of the module, not by its value: a module with arrays has
no hash, and comparing arrays would wait for the device.
"""

import collections
import threading
import weakref
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

_Value = TypeVar("_Value")


class WeakCache(Generic[_Value]):
    """A dictionary from objects, by identity, to values.

    An entry is removed when its object is collected, so a value must not refer to the
    object, which would then live forever. Copies, unpickled objects, and objects that a
    transformation rebuilds have no entry.
    """

    # Not a `weakref.WeakKeyDictionary`, which hashes and compares its keys.

    def __init__(self):
        self._entries: dict[int, tuple[weakref.ref[object], _Value]] = {}
        # Reentrant, since adding an entry may collect garbage, which calls `_forget`.
        self._lock = threading.RLock()

    def get(self, owner: object) -> _Value | None:
        """Return the value of an object, or `None`."""
        entry = self._entries.get(id(owner))
        # An address may be reused before the entry of its last owner is removed.
        return entry[1] if entry is not None and entry[0]() is owner else None

    def put(self, owner: object, value: _Value) -> _Value:
        """Store a value, and return it."""
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


class LRUCache:
    """A mapping of at most `maxsize` entries; the least recently used is removed first.

    Unlike `functools.lru_cache` it does not need a function that makes entries, and two
    threads may make the same entry.
    """

    def __init__(self, maxsize: int):
        self._maxsize = maxsize
        self._entries = collections.OrderedDict[Hashable, Any]()
        # Reentrant, since `setdefault` calls `put`.
        self._lock = threading.RLock()

    def get(self, key: Hashable) -> Any:
        """Return the entry of a key, or `None`."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def setdefault(self, key: Hashable, entry: object) -> Any:
        """Return the entry of a key, which is `entry` unless there was one before."""
        with self._lock:
            self.put(key, entry := self._entries.get(key, entry))
            return entry

    def discard(self, key: Hashable) -> None:
        """Remove the entry of a key, if there is one."""
        with self._lock:
            self._entries.pop(key, None)

    def put(self, key: Hashable, entry: object) -> None:
        """Store an entry, replacing an existing one."""
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            while len(self._entries) > self._maxsize:
                self._entries.popitem(last=False)


PROGRAMS = LRUCache(256)
"""The compiled programs of this process: of sweeps, loaders and property checks.

A key has the kind of the program first, and everything that is compiled in. Objects
that use a program also hold it, so it lives at least as long as they do.
"""
