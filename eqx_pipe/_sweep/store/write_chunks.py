"""Write access to a store: chunks, whole or row by row."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int8, Int64

from .chunk_bytes import compress, pack, raw_of
from .chunks import Chunks
from .disk import Folder
from .layout import Variable, read_root
from .ranges import MISSING, OK, ranges_of
from .read_chunks import ODD as ODD
from .read_chunks import Done, RowErrors, StoreReader

_SOUND, _SOUND_BYTES = 128, 256 * 1024 * 1024
"""The number of consecutive chunks, or bytes, that must be sound to resume a sweep."""


@dataclasses.dataclass(frozen=True)
class Store(StoreReader):
    """A store with methods to write chunks.

    `function` is the digest of the function whose values are written.
    """

    function: str = ""

    def mark(self, number: int) -> None:
        """Mark a chunk, so that its failed and missing rows are found.

        Marks are never removed, since this could remove the mark of another process.
        """
        self.files.put(self._mark(number), b"")

    def commit(
        self,
        number: int,
        values: Sequence[np.ndarray],
        status: Int8[np.ndarray, " rows"],
        errors: RowErrors | None = None,
    ) -> None:
        """Write a chunk: its values, the status of each row, and the errors of rows."""
        # Remove the status first: a kill must not leave new values with an old status.
        self.files.remove(self._status_key(number))
        self._write(number, values)
        digests = [[self._digest(number, k, leaf)] for k, leaf in enumerate(values)]
        self._finish(number, status, digests, errors or {})

    def put_rows(
        self,
        number: int,
        rows: Int64[np.ndarray, " rows"],
        values: Sequence[np.ndarray],
        status: Int8[np.ndarray, " rows"],
        errors: RowErrors | None = None,
    ) -> None:
        """Rewrite some rows of a chunk, or write it with the others missing.

        `errors` have rows of the chunk. A kill leaves the rows unchanged.
        """
        first, last = self.chunks.span(number)
        now, had = np.full(last - first, MISSING, np.int8), []
        # Use this manifest only: a later one would mix the rows of two writers.
        was = self.manifest(number)
        if was is None:
            merged = [variable.empty(last - first) for variable in self.variables]
        else:
            now[:] = was.status
            had = [self._values(number, k, was) for k in range(len(values))]
            merged = [leaf.copy() for leaf in had]
        for into, leaf in zip(merged, values, strict=True):
            into[rows] = leaf
        now[rows] = status
        new = [self._digest(number, k, leaf) for k, leaf in enumerate(merged)]
        others: dict[str, Int64[np.ndarray, " _failed"]] = {}
        if was is not None:
            # Write the status first: until the end, files may be old or new.
            old = (self._digest(number, k, leaf) for k, leaf in enumerate(had))
            both = [list(pair) for pair in zip(old, new, strict=True)]
            self._finish(number, was.status, both, was.errors)
            others = {text: np.setdiff1d(at, rows) for text, at in was.errors.items()}
        self._write(number, merged)
        for text, at in (errors or {}).items():
            others[text] = np.union1d(others.get(text, np.zeros(0, np.int64)), at)
        self._finish(number, now, [[digest] for digest in new], others)

    def discard(self, number: int) -> None:
        """Remove the files of a chunk, its status file first."""
        self.files.remove(self._status_key(number))
        for variable in self.variables:
            self.files.remove(self._value_key(variable, number))

    def look_again(self, owned: Sequence[int]) -> Done:
        """Remove damaged `owned` chunks among those written last; return the others.

        A kill does not damage chunks, but a power failure may leave a file without its
        content. Chunks are checked from the newest on, until enough consecutive ones
        are sound; damage in older chunks is found when they are read.
        """
        written, sound = self.written(), 0
        chunk_bytes = self.row_bytes * self.chunks.points
        for number in np.argsort(written)[::-1].tolist():
            if not written[number] or sound >= _SOUND:
                break
            if number not in owned:
                continue
            if self.is_sound(number):
                sound += 1
            else:
                self.discard(number)
                written[number] = sound = 0
            if sound * chunk_bytes > _SOUND_BYTES:
                break
        return written > 0

    def _finish(
        self,
        number: int,
        status: Int8[np.ndarray, " rows"],
        digests: list[list[int]],
        errors: RowErrors,
    ) -> None:
        """Write the mark of a chunk if it needs one, then its status file."""
        manifest = {
            "place": self._place(number),
            "cut": self.record["cut"],
            "rows": len(status),
            "digests": digests,
            "function": self.function,
            "errors": {text: ranges_of(at) for text, at in errors.items() if len(at)},
        }
        if manifest["errors"] or np.any(status != OK):
            self.mark(number)
        full = np.full(self.chunks.points, MISSING, np.int8)
        full[: len(status)] = status
        self.files.put(self._status_key(number), pack(manifest, full.tobytes()))

    def _write(self, number: int, values: Sequence[np.ndarray]) -> None:
        for variable, leaf in zip(self.variables, values, strict=True):
            if 0 in variable.inner:
                continue
            whole = variable.empty(self.chunks.points)
            whole[: len(leaf)] = leaf
            data = compress(raw_of(whole))
            self.files.put(self._value_key(variable, number), data)


def open_store(function: str, files: Folder) -> Store:
    """Return an existing store; raise a `ValueError` if there is none.

    Its metadata are checked, but chunks are not.
    """
    return store_of(files, *read_root(function, files))


def store_of(
    files: Folder, root: Mapping[str, Any], record: Mapping[str, Any]
) -> Store:
    """Return the store that metadata describe, even if they are not valid yet."""
    chunks = Chunks(tuple(record["lengths"]), record["split"], record["count"])
    variables = [
        Variable(name, np.dtype(dtype), tuple(inner), tuple(dims))
        for name, dtype, inner, dims in record["variables"]
    ]
    return Store(files, root, record, chunks, variables)
