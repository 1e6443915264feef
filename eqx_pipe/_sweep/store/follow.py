"""A store that is read again and again while other processes fill it."""

import dataclasses
from typing import Any

import numpy as np

from .lazy import StoredArray
from .objects import Files
from .store import Damaged, Listed, Store, Version, open_store


@dataclasses.dataclass(frozen=True)
class _ListedStore(Store):
    """A store with the chunks of one listing, which keeps the manifests it has read."""

    known: Any = None
    manifests: dict[tuple[int, int], list[Version]] = dataclasses.field(
        default_factory=dict
    )

    def listed(self) -> Listed:
        return self.known

    def read(self, number: int, variable: int, known: bool = False) -> np.ndarray:
        try:
            return super().read(number, variable, known)
        except Damaged:  # perhaps another process has written it since the listing
            self.manifests.pop(self._version(number), None)
            return super().read(number, variable, known)

    def _versions(self, number: int) -> list[Version] | None:
        key = self._version(number)
        if key not in self.manifests:
            found = super()._versions(number)
            if found is None:
                return None
            self.manifests[key] = found
        return self.manifests[key]

    def _version(self, number: int) -> tuple[int, int]:
        return number, int(self.known.when[number])


class Follower:
    """A store whose chunks are each read once, and again after they have changed.

    `store` is the store as it was listed last.
    """

    def __init__(self, function: str, files: Files):
        self._function, self.files = function, files
        self._arrays: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.store: _ListedStore | None = None

    def update(self) -> tuple[Any, ...]:
        """List the chunks again; return what differs when the store has changed."""
        now, old = open_store(self._function, self.files), self.store
        fields = {x.name: getattr(now, x.name) for x in dataclasses.fields(now)}
        grown = old is None or old.record != now.record
        if grown:
            self._arrays = {}
        kept = {} if old is None or grown else old.manifests
        self.store = _ListedStore(**fields, known=now.listed(), manifests=kept)
        known = self.store.known
        return len(known.done), int(known.done.sum()), known.when.tobytes()

    def values(self, name: str, leaf: StoredArray, columns: Any = ...) -> np.ndarray:
        """Return the values of an output at all points, of some columns if it has them.

        The chunks that are missing have the fill value. `name` is that of the values,
        of which few are kept. A bucket sends several chunks at once.
        """
        assert self.store is not None
        known, chunks = self.store.known, self.store.chunks
        values, seen = self._arrays.pop(name, (None, None))
        if values is None or seen is None:
            values = self.store.variables[leaf._variable].empty(len(leaf))
            values = values.astype(leaf.dtype)[:, columns] if leaf.ndim > 1 else values
            seen = np.zeros(len(known.when), np.int64)
        new = np.flatnonzero(known.done & (known.when != seen))
        for number, part in leaf._chunks(new.tolist()):
            rows = slice(*chunks.span(number))
            values[rows] = part[:, columns] if part.ndim > 1 else part
        seen[new] = known.when[new]
        self._arrays[name] = values, seen  # now the newest of them
        while len(self._arrays) > 2:
            del self._arrays[next(iter(self._arrays))]
        return values
