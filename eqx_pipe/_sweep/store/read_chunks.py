"""Read access to a store, which verifies every file.

A chunk exists if and only if its file of the status array exists. That file is written
last and is the manifest of its chunk: the comment of its gzip header has the position
of the chunk, a digest of the values of each array, and the errors of failed rows. So
one file, replaced atomically, has all metadata of a chunk.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Int8, Int64

from ..._errors import message
from .chunk_bytes import Undecodable, array_of, checksum, decompress, unpack
from .chunks import Chunks
from .disk import ROOT, Folder
from .layout import RECORD, SIDES, Variable, coordinate_digest, read_root
from .ranges import FAILED, MISSING, OK, Gaps, merged, points_in, runs_of

ODD = ".odd"
"""The folder for marks: empty files with the names of chunks with rows not ok."""


_DELETE = (
    "Delete it, if it is there, and call the same sweep with the same store again: "
    "this chunk is then computed once more."
)
_PUT_BACK = "Put it back from a copy of the store, or give another path."

_GROWN = "Call the sweep of the larger space, or take `SweepResult.load`."
_GONE = "Call the same sweep again, which computes what is gone."

RowErrors: TypeAlias = Mapping[str, Int64[np.ndarray, " _failed"]]
"""Error texts, with the rows of a chunk or the points of a grid that raised them."""

Done: TypeAlias = Bool[np.ndarray, " chunks"]
"""True for each existing chunk."""


class Account(NamedTuple):
    """The gaps of a store, its failed points by texts of errors, and its chunks."""

    gaps: Gaps
    errors: RowErrors
    done: Bool[np.ndarray, " chunks"]


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
class StoreReader:
    """An open store; `record` identifies the sweep that created it.

    Chunks are not cached, so each method sees the files that other processes have
    written.
    """

    files: Folder
    root: Mapping[str, Any]
    record: Mapping[str, Any]
    chunks: Chunks
    variables: Sequence[Variable]

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

    def done(self) -> Bool[np.ndarray, " chunks"]:
        """Return whether each chunk exists, by listing names without reading files."""
        name = self.record["status"]
        return self._listed(self.files.names(name), self._root(name))

    def is_done(self, number: int) -> bool:
        """Return whether a chunk exists."""
        return self.files.exists(self._status_key(number))

    def written(self) -> Int64[np.ndarray, " chunks"]:
        """Return the time when each chunk was written, in nanoseconds; 0 if missing."""
        name = self.record["status"]
        times = self.files.times(name)
        found = (times.get(file, 0) for file in self.chunks.names(self._root(name)))
        return np.fromiter(found, np.int64, len(self.chunks))

    def lost(self, done: Done) -> list[int]:
        """Return the `done` chunks with missing files of values.

        Statuses were listed first, so chunks finished meanwhile are not reported.
        """
        whole = np.ones_like(done)
        for variable in self.variables:
            if 0 not in variable.inner:
                behind = ".0" * len(variable.inner)
                names = self.files.names(variable.name)
                whole &= self._listed(names, self._root(variable.name), behind)
        return np.flatnonzero(done & ~whole).tolist()

    def odd(self) -> list[int]:
        """Return the marked chunks, which may have failed or missing rows."""
        names = self.files.names(ODD)
        if not names:
            return []
        return np.flatnonzero(self._listed(names, f"{self.record['cut']}.")).tolist()

    def manifest(self, number: int) -> Manifest | None:
        """Return the manifest of a chunk, or `None` if the chunk is missing."""
        key = self._status_key(number)
        try:
            found, raw = unpack(self.files.get(key))
        except FileNotFoundError:
            return None
        except (Undecodable, OSError) as error:
            raise self._damaged(key, f"cannot be read ({error})") from error
        if found["place"] != self._place(number) or found["cut"] != self.record["cut"]:
            raise self._damaged(key, "belongs to another chunk")
        first, last = self.chunks.span(number)
        status = np.frombuffer(raw, np.int8)[: last - first].copy()
        odd = found["errors"] or np.any(status != OK)
        if odd and not self.files.exists(self._mark(number)):
            raise self._damaged(
                self._mark(number), "is not there: failed points were not looked for"
            )
        errors = {text: points_in(at) for text, at in found["errors"].items()}
        return Manifest(status, found["rows"], found["digests"], errors)

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
        except OSError:
            # Another process may have rewritten rows between the two reads.
            return self._values(number, variable, self.manifest(number) or manifest)

    def is_sound(self, number: int) -> bool:
        """Return whether all files of a chunk are sound, by reading them."""
        try:
            for variable in range(len(self.variables)):
                self.read(number, variable)
        except OSError:
            return False
        return True

    def account(self, done: Done | None = None) -> Account:
        """Return the points without a value, and errors; read marked chunks only."""
        done = self.done() if done is None else done
        ranges: dict[int, list[np.ndarray]] = {MISSING: [], FAILED: []}
        for first, stop in runs_of(~done).tolist():
            begin, end = self.chunks.span(first)[0], self.chunks.span(stop - 1)[1]
            ranges[MISSING].append(np.array([[begin, end]]))
        errors: dict[str, list[np.ndarray]] = {}
        for number in self.odd():
            manifest = self.manifest(number) if done[number] else None
            if manifest is None:
                continue
            begin = self.chunks.span(number)[0]
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
        node = self.root["consolidated_metadata"]["metadata"][name]
        dtype, (length, *inner) = node["data_type"], node["shape"]
        dtype = np.dtype(object if dtype == "string" else dtype)
        parts = [np.zeros((0, *inner), dtype)]
        for key, digest in self.record["coordinates"][name][1]:

            def decode(data: bytes, digest: int = digest) -> np.ndarray:
                raw = decompress(data)
                if coordinate_digest(name, raw) != digest:
                    raise Undecodable("it holds another coordinate")
                return array_of(raw, dtype, inner)

            parts.append(self._read(key, decode, _PUT_BACK))
        return np.concatenate(parts)[:length]

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

    def _values(self, number: int, k: int, manifest: Manifest) -> np.ndarray:
        """Return the values of a chunk, verified by a manifest."""
        variable, (first, last) = self.variables[k], self.chunks.span(number)
        if 0 in variable.inner:
            return variable.empty(last - first)
        key = self._value_key(variable, number)
        found = self._read(
            key, lambda x: array_of(decompress(x), variable.dtype, variable.inner)
        )
        if self._digest(number, k, found[: manifest.rows]) not in manifest.digests[k]:
            raise self._damaged(key, "holds other values than were written there last")
        return found[: last - first]

    def _digest(self, number: int, k: int, values: np.ndarray) -> int:
        """Return the digest of the values of a chunk, which includes their identity."""
        start = checksum(f"{self.variables[k].name} {self._place(number)} ".encode())
        return checksum(np.ascontiguousarray(values).tobytes(), start)

    def _read(
        self, key: str, decode: Callable[[bytes], np.ndarray], cure: str = _DELETE
    ) -> np.ndarray:
        """Return the content of a file; raise an error that names a changed file."""
        try:
            return decode(self.files.get(key))
        except FileNotFoundError:
            raise self._damaged(key, "is not there", cure) from None
        except (OSError, ValueError, RuntimeError) as error:
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

    def _mark(self, number: int) -> str:
        return f"{ODD}/{self.record['cut']}.{self._place(number)}"

    def _listed(self, names: set[str], root: str, behind: str = "") -> Done:
        """Return the chunks whose files are among `names`."""
        found = (place + behind in names for place in self.chunks.names(root))
        return np.fromiter(found, bool, len(self.chunks))

    def _damaged(self, key: str, what: str, cure: str = _DELETE) -> OSError:
        """Return the error for a file whose content has changed."""
        wrong = f"`{self.files.place(key)}` {what}."
        return OSError(self.changed() or message("sweep", wrong, cure))
