"""A cache that several threads share, of things that are expensive to make."""

import collections
import threading
from collections.abc import Hashable
from typing import Any


class LRUCache:
    """A mapping of at most `maxsize` entries: the one used longest ago goes first.

    Unlike `functools.lru_cache` it does not need to know how an entry is made, and two
    threads may make the same one.
    """

    def __init__(self, maxsize: int):
        self._maxsize = maxsize
        self._entries: collections.OrderedDict[Hashable, Any] = (
            collections.OrderedDict()
        )
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """The entry of a key, or `None`."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def setdefault(self, key: Hashable, entry: Any) -> Any:
        """The entry of a key: the given one, unless there was another."""
        with self._lock:
            entry = self._entries.get(key, entry)
            self._put(key, entry)
            return entry

    def put(self, key: Hashable, entry: Any) -> None:
        """Stores an entry, in the place of what was there."""
        with self._lock:
            self._put(key, entry)

    def _put(self, key: Hashable, entry: Any) -> None:
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self._entries) > self._maxsize:
            self._entries.popitem(last=False)
