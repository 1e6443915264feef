"""A store of chunks: reading verifies every file, and writing survives every kill.

A chunk exists if and only if its file of the status array exists. That file is written
last and is the manifest of its chunk: the comment of its gzip header has the position
of the chunk, a digest of the values of each array, and the errors of failed rows. So
one file, replaced atomically, has all metadata of a chunk.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Int8, Int64

from ..._errors import message
from .chunks import (
    FAILED,
    MISSING,
    OK,
    Chunks,
    Gaps,
    merged,
    points_in,
    ranges_of,
    runs_of,
)
from .disk import ROOT, Folder, Undecodable, most_bytes
from .format import (
    RECORD,
    SIDES,
    Variable,
    array_of,
    checksum,
    chunks_of,
    compress,
    coordinate_chunk,
    coordinate_digest,
    coordinate_dtype,
    decompress,
    is_ok_size,
    pack,
    raw_of,
    read_root,
    unpack,
    variables_of,
)

_DELETE = (
    "Delete it, if it is there, and call the same sweep with the same store again: "
    "this chunk is then computed once more."
)
_PUT_BACK = (
    "Call the same sweep again, which writes it once more, or put it back from a copy."
)
_TRY_AGAIN = "See that the disk works and that the file can be read, then try again."

_GROWN = "Call the sweep of the larger space, or take `SweepResult.load`."
_GONE = "Call the same sweep again, which computes what is gone."

RowErrors: TypeAlias = Mapping[str, Int64[np.ndarray, " _failed"]]
"""Error texts, with the rows of a chunk or the points of a grid that raised them."""

Done: TypeAlias = Bool[np.ndarray, " chunks"]
"""True for each existing chunk."""


class Damaged(OSError):
    """The error for a file whose content has changed, or that is missing."""


class Listed(NamedTuple):
    """The chunks of a store, from a listing of their status files.

    Chunks are `done` if they exist, and `odd` if they have failed or missing rows.
    `when` has the times in nanoseconds when they were written.
    """

    done: Done
    odd: Done
    when: Int64[np.ndarray, " chunks"]


class Account(NamedTuple):
    """The gaps of a store, its failed points by texts of errors, and its chunks."""

    gaps: Gaps
    errors: RowErrors
    done: Done


class Manifest(NamedTuple):
    """The content of a status file.

    It has the status of each row. `rows` is the number of rows written, since a chunk
    may have become longer. `digests` has the possible digests of the values of each
    array: one, or two while some rows of the chunk are rewritten.
    """

    status: Int8[np.ndarray, " rows"]
    rows: int
    digests: list[list[int]]
    errors: RowErrors


@dataclasses.dataclass(frozen=True)
class Store:
    """An open store; `record` identifies the sweep that created it.

    `function` is the digest of the function whose values are written. Chunks are not
    cached, so each method sees the files that other processes have written.
    """

    files: Folder
    root: Mapping[str, Any]
    record: Mapping[str, Any]
    chunks: Chunks
    variables: Sequence[Variable]
    function: str = ""

    @property
    def path(self) -> str:
        """The path as text for messages."""
        return self.files.place()

    @property
    def row_bytes(self) -> int:
        """The size of the values of a row in bytes."""
        return sum(v.dtype.itemsize * math.prod(v.inner) for v in self.variables)

    def names(self) -> list[str]:
        """Return the names of the variables."""
        return [variable.name for variable in self.variables]

    def listed(self) -> Listed:
        """Return the chunks that exist, without reading files."""
        name = self.record["status"]
        entries = self.files.entries(name)
        found = [entries.get(file) for file in self.chunks.names(self._root(name))]
        count = len(found)
        done = np.fromiter((entry is not None for entry in found), bool, count)
        odd = (entry is not None and not is_ok_size(entry.size) for entry in found)
        when = (0 if entry is None else entry.when for entry in found)
        return Listed(
            done, np.fromiter(odd, bool, count), np.fromiter(when, np.int64, count)
        )

    def is_done(self, number: int) -> bool:
        """Return whether a chunk exists, by reading it: a listing may be outdated."""
        try:
            return self.manifest(number) is not None
        except Damaged:
            return True

    def lacks_values(self, done: Done) -> Done:
        """Return the `done` chunks with missing files of values.

        Statuses were listed first, so chunks finished meanwhile are not reported.
        """
        whole = np.ones_like(done)
        for variable in self.variables:
            if 0 not in variable.inner:
                behind = ".0" * len(variable.inner)
                names = self.files.names(variable.name)
                places = self.chunks.names(self._root(variable.name))
                there = (place + behind in names for place in places)
                whole &= np.fromiter(there, bool, len(done))
        return done & ~whole

    def manifest(self, number: int) -> Manifest | None:
        """Return the manifest of a chunk, or `None` if the chunk is missing."""
        key, size = self._status_key(number), self.chunks.points
        first, last = self.chunks.span(number)
        try:
            found, raw = unpack(self.files.get(key), size)
            place, cut, rows = found["place"], found["cut"], found["rows"]
            status = np.frombuffer(raw, np.int8)[: last - first].copy()
            # The rows of a reduction are blocks, whose points may have failed.
            points = size * int(self.root["attributes"].get("block_points", 1))
            errors = _row_errors(found["errors"], points)
            digests = [list(map(int, some)) for some in found["digests"]]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(key, error) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._damaged(key, f"cannot be read ({error})") from error
        if place != self._place(number) or cut != self.record["cut"]:
            raise self._damaged(key, "belongs to another chunk")
        if len(digests) != len(self.variables) or not 0 <= rows <= size:
            raise self._damaged(key, "belongs to another store")
        return Manifest(status, rows, digests, errors)

    def read(self, number: int, variable: int, known: bool = False) -> np.ndarray:
        """Return the values of a chunk of one variable, a row for each point.

        Raises if they do not match its status file. The rows of a missing chunk have
        the fill value, but a missing chunk that is `known` to have existed raises.
        """
        manifest, (first, last) = self.manifest(number), self.chunks.span(number)
        if manifest is None:
            if known:
                raise self._damaged(self._status_key(number), "is not there any more")
            return self.variables[variable].empty(last - first)
        try:
            return self._values(number, variable, manifest)
        except Damaged:
            # Another process may have rewritten rows between the two reads.
            return self._values(number, variable, self.manifest(number) or manifest)

    def is_sound(self, number: int) -> bool:
        """Return whether a chunk exists and its files are sound, by reading them."""
        try:
            for variable in range(len(self.variables)):
                self.read(number, variable, known=True)
        except Damaged:
            return False
        return True

    def account(
        self, listed: Listed | None = None, without: Collection[int] = ()
    ) -> Account:
        """Return the points without a value, and errors.

        Chunks that are `odd` are read, and chunks in `without` count as missing.
        """
        listed = self.listed() if listed is None else listed
        done = listed.done.copy()
        done[list(without)] = False
        ranges: dict[int, list[np.ndarray]] = {MISSING: [], FAILED: []}
        for first, stop in runs_of(~done).tolist():
            begin, end = self.chunks.span(first)[0], self.chunks.span(stop - 1)[1]
            ranges[MISSING].append(np.array([[begin, end]]))
        errors: dict[str, list[np.ndarray]] = {}
        for number in np.flatnonzero(done & listed.odd).tolist():
            manifest, (begin, end) = self.manifest(number), self.chunks.span(number)
            if manifest is None:  # it has been removed since the listing
                done[number] = False
                ranges[MISSING].append(np.array([[begin, end]]))
                continue
            for status, found in ranges.items():
                found.append(begin + runs_of(manifest.status == status))
            for text, rows in manifest.errors.items():
                errors.setdefault(text, []).append(begin + rows)
        none = np.zeros((0, 2), np.int64)
        gaps = {kind: np.concatenate([none, *spans]) for kind, spans in ranges.items()}
        texts = {text: np.concatenate(points) for text, points in errors.items()}
        return Account(merged(gaps), texts, done)

    def coordinate(self, name: str) -> np.ndarray:
        """Return the values of a coordinate; texts as objects."""
        own = self.record["coordinates"][name]
        dtype, (length, *inner) = coordinate_dtype(own), own["shape"]
        shape, found = coordinate_chunk(own["shape"]), [np.zeros((0, *inner), dtype)]
        for k, (digest, size) in enumerate(own["parts"]):

            def decode(key: str, size: int = size, digest: int = digest) -> np.ndarray:
                raw = decompress(self.files, key, size)
                if coordinate_digest(name, raw) != digest:
                    raise Undecodable("it holds another coordinate")
                return array_of(raw, dtype, shape)

            key = f"{name}/{self._root(name)}{k}" + ".0" * len(inner)
            found.append(self._read(key, decode, _PUT_BACK))
        return np.concatenate(found)[:length]

    def changed(self) -> str | None:
        """Return the change of the store since it was opened and the fix, or `None`."""
        try:
            root, _ = read_root("sweep", self.files)
        except ValueError:
            if self.files.exists(ROOT):
                what, cure = "was damaged", "Put its `zarr.json` back from a copy."
            else:
                what, cure = "was deleted", _GONE
        else:
            if root["attributes"][RECORD] == self.root["attributes"].get(RECORD):
                return None
            what, cure = "has grown or was replaced", _GROWN
        wrong = f"the store `{self.path}` {what} since it was opened."
        return message("sweep", wrong, cure)

    def commit(
        self,
        number: int,
        values: Sequence[np.ndarray],
        status: Int8[np.ndarray, " rows"],
        errors: RowErrors | None = None,
    ) -> None:
        """Write a chunk: its values, the status of each row, and the errors of rows.

        If it exists, its files are missing or damaged, or another process writes them
        at this moment. Then a status file comes first that accepts the values of both,
        so a kill loses nothing that this process would write again.
        """
        digests = [[self._digest(number, k, leaf)] for k, leaf in enumerate(values)]
        try:
            was = self.manifest(number)
        except Damaged:
            self.files.remove(self._status_key(number))
        else:
            if was is not None and was.rows == len(status):
                both = np.where((was.status == OK) & (status == OK), OK, MISSING)
                pairs = zip(was.digests, digests, strict=True)
                either = [list({*old, *new}) for old, new in pairs]
                self._finish(number, both.astype(np.int8), either, {})
            elif was is not None:
                self.files.remove(self._status_key(number))
        self._write(number, values)
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

    def mark_odd(self, number: int) -> None:
        """Rewrite the status file of a chunk as that of a chunk with missing rows."""
        key = self._status_key(number)
        try:
            found, status = unpack(self.files.get(key), self.chunks.points)
        except (FileNotFoundError, Undecodable):
            return
        self.files.put(key, pack(found, status, False))

    def _finish(
        self,
        number: int,
        status: Int8[np.ndarray, " rows"],
        digests: list[list[int]],
        errors: RowErrors,
    ) -> None:
        """Write the status file of a chunk."""
        manifest = {
            "place": self._place(number),
            "cut": self.record["cut"],
            "rows": len(status),
            "digests": digests,
            "function": self.function,
            "errors": {text: ranges_of(at) for text, at in errors.items() if len(at)},
        }
        full = np.full(self.chunks.points, MISSING, np.int8)
        full[: len(status)] = status
        is_ok = not manifest["errors"] and bool(np.all(status == OK))
        self.files.put(self._status_key(number), pack(manifest, full.tobytes(), is_ok))

    def _write(self, number: int, values: Sequence[np.ndarray]) -> None:
        for variable, leaf in zip(self.variables, values, strict=True):
            if 0 in variable.inner:
                continue
            whole = variable.empty(self.chunks.points)
            whole[: len(leaf)] = leaf
            data = compress(raw_of(whole))
            self.files.put(self._value_key(variable, number), data)

    def _values(self, number: int, k: int, manifest: Manifest) -> np.ndarray:
        """Return the values of a chunk, verified by a manifest."""
        variable, (first, last) = self.variables[k], self.chunks.span(number)
        if 0 in variable.inner:
            return variable.empty(last - first)
        shape = self.chunks.points, *variable.inner

        def decode(key: str) -> np.ndarray:
            size = math.prod(shape) * variable.dtype.itemsize
            raw = decompress(self.files, key, size)
            return array_of(raw, variable.dtype, shape)

        key = self._value_key(variable, number)
        found = self._read(key, decode)
        if self._digest(number, k, found[: manifest.rows]) not in manifest.digests[k]:
            raise self._damaged(key, "holds other values than were written there last")
        return found[: last - first]

    def _digest(self, number: int, k: int, values: np.ndarray) -> int:
        """Return the digest of the values of a chunk, which includes their identity."""
        start = checksum(f"{self.variables[k].name} {self._place(number)} ".encode())
        return checksum(np.ascontiguousarray(values).tobytes(), start)

    def _read(
        self, key: str, decode: Callable[[str], np.ndarray], cure: str = _DELETE
    ) -> np.ndarray:
        """Return the content of a file; raise an error that names a changed file."""
        try:
            return decode(key)
        except FileNotFoundError:
            raise self._damaged(key, "is not there", cure) from None
        except OSError as error:
            raise self._unreadable(key, error) from error
        except (ValueError, RuntimeError, MemoryError) as error:
            raise self._damaged(key, f"cannot be read ({error})", cure) from error

    def _place(self, number: int) -> str:
        return ".".join(map(str, self.chunks.place(number)))

    def _status_key(self, number: int) -> str:
        return self._key(self.record["status"], number)

    def _value_key(self, variable: Variable, number: int) -> str:
        return self._key(variable.name, number) + ".0" * len(variable.inner)

    def _key(self, name: str, number: int) -> str:
        return f"{name}/{self._root(name)}{self._place(number)}"

    def _root(self, name: str) -> str:
        return SIDES[self.record["sides"][name]]["root"]

    def _damaged(self, key: str, what: str, cure: str = _DELETE) -> Damaged:
        """Return the error for a file whose content has changed."""
        wrong = f"`{self.files.place(key)}` {what}."
        return Damaged(self.changed() or message("sweep", wrong, cure))

    def _unreadable(self, key: str, error: OSError) -> OSError:
        """Return the error for a file that the system does not read."""
        wrong = f"`{self.files.place(key)}` cannot be read: {error}."
        return OSError(message("sweep", wrong, _TRY_AGAIN))


def _row_errors(found: Mapping[str, list[list[int]]], size: int) -> RowErrors:
    """Return the errors of rows from their ranges, which do not overlap."""
    spans = [span for spans in found.values() for span in spans]
    count = sum(stop - first for first, stop in spans)
    if not 0 <= count <= min(size, most_bytes() / 8) or any(
        not 0 <= first < stop <= size for first, stop in spans
    ):
        raise ValueError("errors of other rows")
    return {text: points_in(spans) for text, spans in found.items()}


def open_store(function: str, files: Folder) -> Store:
    """Return an existing store; raise a `ValueError` if there is none.

    Its metadata are checked, but chunks are not.
    """
    return store_of(files, *read_root(function, files))


def store_of(
    files: Folder, root: Mapping[str, Any], record: Mapping[str, Any]
) -> Store:
    """Return the store that metadata describe, even if they are not valid yet."""
    return Store(files, root, record, chunks_of(record), variables_of(record))
