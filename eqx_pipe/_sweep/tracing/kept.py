"""The last things made, by what they were made from."""

import collections
import threading
from typing import Any


class Kept:
    """A mapping of at most `most` entries, which drops the one used longest ago."""

    def __init__(self, most: int):
        self._most = most
        self._entries: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, place: Any) -> Any:
        """What is kept at a place, or `None`."""
        with self._lock:
            entry = self._entries.get(place)
            if entry is not None:
                self._entries.move_to_end(place)
            return entry

    def setdefault(self, place: Any, entry: Any) -> Any:
        """What is kept at a place: `entry`, unless there was something."""
        with self._lock:
            entry = self._entries.get(place, entry)
            self._put(place, entry)
            return entry

    def put(self, place: Any, entry: Any) -> None:
        """Keeps something, in the place of what was there."""
        with self._lock:
            self._put(place, entry)

    def _put(self, place: Any, entry: Any) -> None:
        self._entries[place] = entry
        self._entries.move_to_end(place)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)
