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

from .._errors import message
from .disk import ROOT, Undecodable, most_bytes
from .format import (
    RECORD,
    SIDES,
    Variable,
    array_of,
    checksum,
    chunks_of,
    coordinate_digest,
    coordinate_dtype,
    coordinate_key,
    decompress,
    is_ok_size,
    read_root,
    unpack,
    variables_of,
)
from .objects import Files
from .partition import FAILED, MISSING, OK, Chunks, Gaps, merged, points_in, runs_of

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


class Version(NamedTuple):
    """One content of a chunk: statuses and errors of rows, digests of their values.

    `digests` has one for each array; none if all rows are missing and the values do not
    matter. A chunk that became longer has more rows than `status`, which are missing.
    """

    status: Int8[np.ndarray, " rows"]
    digests: list[int]
    errors: RowErrors


@dataclasses.dataclass(frozen=True)
class Store:
    """An open store; `record` identifies the sweep that created it.

    `function` is the digest of the function whose values are written. Chunks are not
    cached, so each method sees the files that other processes have written.
    """

    files: Files
    root: Mapping[str, Any]
    record: Mapping[str, Any]
    chunks: Chunks
    variables: Sequence[Variable]
    function: str = ""

    @property
    def path(self) -> str:
        """The path as text for messages."""
        return self.files.path_of()

    @property
    def row_bytes(self) -> int:
        """The size of the values of a row in bytes."""
        return sum(v.dtype.itemsize * math.prod(v.inner) for v in self.variables)

    @property
    def each(self) -> int:
        """The number of points of a row: several in the blocks of a reduction.

        Errors are numbered by points, within the chunk.
        """
        return int(self.root["attributes"].get("block_points", 1))

    def names(self) -> list[str]:
        """Return the names of the variables."""
        return [variable.name for variable in self.variables]

    def listed(self) -> Listed:
        """Return the chunks that exist, without reading files."""
        name = self.record["status"]
        files = self.files.entries(name)
        entries = [files.get(file) for file in self.chunks.names(self._root(name))]
        done = [entry is not None for entry in entries]
        odd = [entry is not None and not is_ok_size(entry.size) for entry in entries]
        when = [0 if entry is None else entry.when for entry in entries]
        return Listed(np.array(done, bool), np.array(odd, bool), np.array(when, int))

    def lacks_values(self, done: Done) -> Done:
        """Return the `done` chunks with missing files of values.

        Statuses were listed first, so chunks finished meanwhile are not reported.
        """
        whole = np.ones_like(done)
        for variable in self.variables:
            if 0 not in variable.inner:
                behind = ".0" * len(variable.inner)
                names = self.files.names(variable.name)
                keys = self.chunks.names(self._root(variable.name))
                whole &= np.array([key + behind in names for key in keys], bool)
        return done & ~whole

    def manifest(self, number: int) -> Version | None:
        """Return the content of a chunk without values, or `None` if it is missing."""
        versions = self.versions_of(number)
        if versions is None:
            return None
        if len(versions) == 1:
            version = versions[0]
        else:
            try:
                version, _ = self.current_of(number, versions)
            except Damaged:
                version = common(versions, self.chunks.points)
        first, last = self.chunks.span(number)
        return version._replace(status=resized(version.status, last - first))

    def read(self, number: int, variable: int, must_exist: bool = False) -> np.ndarray:
        """Return the values of a chunk of one variable, a row for each point.

        Raises if they do not match its status file. The rows of a missing chunk have
        the fill value, but with `must_exist` a missing chunk raises.
        """
        versions, (first, last) = self.versions_of(number), self.chunks.span(number)
        if versions is None:
            if must_exist:
                raise self._damaged(self.status_key(number), "is not there any more")
            return self.variables[variable].empty(last - first)
        try:
            values = self._values(number, variable, versions)
        except Damaged:
            # Another process may have rewritten rows between the two reads.
            versions = self.versions_of(number) or versions
            values = self._values(number, variable, versions)
        return values[: last - first]

    def is_sound(self, number: int) -> bool:
        """Return whether a chunk exists and its files are sound, by reading them."""
        return self.damage(number) is None

    def damage(self, number: int) -> str | None:
        """Return what is wrong with a chunk, or `None` if it is sound."""
        wrong = "it is missing"
        # Another process may have rewritten rows between the two reads, as in `read`.
        for _ in range(2):
            try:
                versions = self.versions_of(number)
                if versions is not None:
                    self.current_of(number, versions)
                    return None
            except Damaged as error:
                wrong = str(error)
        return wrong

    def discard(self, number: int) -> None:
        """Make a chunk missing."""
        self.files.remove(self.status_key(number))

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
            for status, spans in ranges.items():
                spans.append(begin + runs_of(manifest.status == status))
            for text, rows in manifest.errors.items():
                errors.setdefault(text, []).append(begin + rows)
        none = np.zeros((0, 2), np.int64)
        gaps = {kind: np.concatenate([none, *spans]) for kind, spans in ranges.items()}
        texts = {text: np.concatenate(points) for text, points in errors.items()}
        return Account(merged(gaps), texts, done)

    def coordinate(self, name: str) -> np.ndarray:
        """Return the values of a coordinate; texts as objects."""
        recorded = self.record["coordinates"][name]
        dtype, shape = coordinate_dtype(recorded), recorded["shape"]
        if 0 in shape:
            return np.zeros(shape, dtype)

        def decode(key: str) -> np.ndarray:
            raw = decompress(self.files, key, recorded["bytes"])
            if coordinate_digest(name, raw) != recorded["digest"]:
                raise Undecodable("it holds another coordinate")
            return array_of(raw, dtype, shape)

        key = coordinate_key(name, len(shape), self.record["sides"][name])
        return self._read(key, decode, _PUT_BACK)

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

    def versions_of(self, number: int) -> list[Version] | None:
        """Return the possible versions of a chunk, or `None` if it is missing.

        There are several while a process rewrites it, and after a kill at that time.
        """
        key, size = self.status_key(number), self.chunks.points
        try:
            position, cut, versions = parsed(
                self.files.get(key), size, size * self.each
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(key, error) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._damaged(key, f"cannot be read ({error})") from error
        if position != self.chunks.position(number) or cut != self.record["cut"]:
            raise self._damaged(key, "belongs to another chunk")
        if not versions or any(
            len(each.digests) not in (0, len(self.variables)) or len(each.status) > size
            for each in versions
        ):
            raise self._damaged(key, "belongs to another store")
        return versions

    def current_of(
        self, number: int, versions: Sequence[Version]
    ) -> tuple[Version, list[np.ndarray]]:
        """Return the version whose values are in the files, and the values.

        If some arrays are older than others, rows are ok if they are in each array.
        """
        count = range(len(self.variables))
        leaves = [self._values(number, k, versions) for k in count]
        for version in reversed(versions):
            if all(self._is_of(number, k, leaves[k], version) for k in count):
                return version, leaves
        # The newest version that each array may have; others do not count.
        each = []
        for k in count:
            of = (v for v in reversed(versions) if self._is_of(number, k, leaves[k], v))
            each.append(next(of, versions[0]))
        return common(each, self.chunks.points), leaves

    def _values(self, number: int, k: int, versions: Sequence[Version]) -> np.ndarray:
        """Return the values of all rows of a chunk, which are those of a version."""
        variable = self.variables[k]
        if 0 in variable.inner:
            return variable.empty(self.chunks.points)
        shape = self.chunks.points, *variable.inner

        def decode(key: str) -> np.ndarray:
            size = math.prod(shape) * variable.dtype.itemsize
            return array_of(decompress(self.files, key, size), variable.dtype, shape)

        key = self._value_key(variable, number)
        try:
            values = self._read(key, decode)
            if not any(self._is_of(number, k, values, version) for version in versions):
                what = "holds other values than were written there last"
                raise self._damaged(key, what)
        except Damaged:
            if all(version.digests for version in versions):
                raise
            return variable.empty(self.chunks.points)
        return values

    def _is_of(self, number: int, k: int, values: np.ndarray, version: Version) -> bool:
        """Return whether values are those of a version."""
        rows = values[: len(version.status)]
        digests = version.digests
        return bool(digests) and self.digest(number, k, rows) == digests[k]

    def digest(self, number: int, k: int, values: np.ndarray) -> int:
        """Return the digest of the values of a chunk, which includes their identity."""
        place = f"{self.variables[k].name} {self.chunks.position(number)} "
        start = checksum(place.encode())
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

    def status_key(self, number: int) -> str:
        """Return the key of the status file of a chunk."""
        return self._key(self.record["status"], number)

    def _value_key(self, variable: Variable, number: int) -> str:
        return self._key(variable.name, number) + ".0" * len(variable.inner)

    def value_keys(self, number: int) -> dict[str, int]:
        """Return the keys of the values of a chunk, with the numbers of variables."""
        return {
            self._value_key(variable, number): k
            for k, variable in enumerate(self.variables)
            if 0 not in variable.inner
        }

    def _key(self, name: str, number: int) -> str:
        return f"{name}/{self._root(name)}{self.chunks.position(number)}"

    def _root(self, name: str) -> str:
        return SIDES[self.record["sides"][name]]["root"]

    def _damaged(self, key: str, what: str, cure: str = _DELETE) -> Damaged:
        """Return the error for a file whose content has changed."""
        wrong = f"`{self.files.path_of(key)}` {what}."
        return Damaged(self.changed() or message("sweep", wrong, cure))

    def _unreadable(self, key: str, error: OSError) -> OSError:
        """Return the error for a file that the system does not read."""
        wrong = f"`{self.files.path_of(key)}` cannot be read: {error}."
        return OSError(message("sweep", wrong, _TRY_AGAIN))


def parsed(data: bytes, rows: int, points: int) -> tuple[str, str, list[Version]]:
    """Return the position, the cut and the versions of a chunk from its status file."""
    manifest, _ = unpack(data, rows)
    versions = [_version(each, points) for each in manifest["versions"]]
    return manifest["chunk"], manifest["cut"], versions


def _version(fields: Mapping[str, Any], points: int) -> Version:
    """Return a version from JSON; errors are those of at most `points` points."""
    status = np.frombuffer(fields["status"].encode(), np.uint8) - np.uint8(ord("0"))
    if np.any(status > FAILED):
        raise ValueError("an unknown status")
    ranges = [each for spans in fields["errors"].values() for each in spans]
    count = sum(stop - first for first, stop in ranges)
    if not 0 <= count <= min(points, most_bytes() / 8) or any(
        not 0 <= first < stop <= points for first, stop in ranges
    ):
        raise ValueError("errors of other rows")
    errors = {text: points_in(spans) for text, spans in fields["errors"].items()}
    return Version(status.astype(np.int8), [*map(int, fields["digests"])], errors)


def resized(status: Int8[np.ndarray, " rows"], count: int) -> Int8[np.ndarray, " all"]:
    """Return the status of `count` rows, of which others are missing."""
    resized = np.full(count, MISSING, np.int8)
    resized[: len(status)] = status[:count]
    return resized


def common(versions: Sequence[Version], count: int) -> Version:
    """Return what holds in all versions: rows are ok if they are in each of them."""
    first, *others = (resized(version.status, count) for version in versions)
    for status in others:
        first[(first == OK) & (status != OK)] = MISSING
    return Version(first, [], versions[0].errors)


def open_store(function: str, files: Files) -> Store:
    """Return an existing store; raise a `ValueError` if there is none.

    Its metadata are checked, but chunks are not.
    """
    return store_of(files, *read_root(function, files))


def store_of(files: Files, root: Mapping[str, Any], record: Mapping[str, Any]) -> Store:
    """Return the store that metadata describe, even if they are not valid yet."""
    return Store(files, root, record, chunks_of(record), variables_of(record))
