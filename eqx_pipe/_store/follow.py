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

    listing: Any = None
    manifests: dict[tuple[int, int], list[Version]] = dataclasses.field(
        default_factory=dict
    )

    def listed(self) -> Listed:
        return self.listing

    def read(self, number: int, variable: int, must_exist: bool = False) -> np.ndarray:
        try:
            return super().read(number, variable, must_exist)
        except Damaged:  # perhaps another process has written it since the listing
            self.manifests.pop(self._version(number), None)
            return super().read(number, variable, must_exist)

    def versions_of(self, number: int) -> list[Version] | None:
        key = self._version(number)
        if key not in self.manifests:
            versions = super().versions_of(number)
            if versions is None:
                return None
            self.manifests[key] = versions
        return self.manifests[key]

    def _version(self, number: int) -> tuple[int, int]:
        return number, int(self.listing.when[number])


class Follower:
    """A store whose chunks are each read once, and again after they have changed.

    `store` is the store as it was listed last.
    """

    def __init__(self, function: str, files: Files):
        self._function, self.files = function, files
        self._arrays: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.store = self._opened({})

    def update(self) -> None:
        """List the chunks again."""
        now = self._opened(self.store.manifests)
        if now.record != self.store.record:  # it has grown, or was created again
            self._arrays, now = {}, dataclasses.replace(now, manifests={})
        self.store = now

    def _opened(self, manifests: dict[tuple[int, int], list[Version]]) -> _ListedStore:
        store = open_store(self._function, self.files)
        fields = {x.name: getattr(store, x.name) for x in dataclasses.fields(store)}
        return _ListedStore(**fields, listing=store.listed(), manifests=manifests)

    def values(self, name: str, leaf: StoredArray, columns: Any = ...) -> np.ndarray:
        """Return the values of an output at all points, of some columns if it has them.

        The chunks that are missing have the fill value. `name` is that of the values,
        of which few are kept. A bucket sends several chunks at once.
        """
        listing, chunks = self.store.listing, self.store.chunks
        if name in self._arrays:
            values, seen = self._arrays.pop(name)
        else:
            values = self.store.variables[leaf._variable].empty(len(leaf))
            values = values.astype(leaf.dtype)[:, columns] if leaf.ndim > 1 else values
            seen = np.zeros(len(listing.when), np.int64)
        new = np.flatnonzero(listing.done & (listing.when != seen))
        for number, part in leaf._chunks(new.tolist()):
            rows = slice(*chunks.span(number))
            values[rows] = part[:, columns] if part.ndim > 1 else part
        seen[new] = listing.when[new]
        self._arrays[name] = values, seen  # now the newest of them
        while len(self._arrays) > 2:
            del self._arrays[next(iter(self._arrays))]
        return values
