"""A store of values: chunks that are there or not, whole.

A chunk is there if, and only if, its file of the status array is. That file is written
last and is the manifest of its chunk: the comment of its gzip header has the place that
it belongs to, a digest of the values of each array and the errors of rows that failed.
So one file, replaced at once, says all about a chunk.
"""

import base64
import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Int8, Int64

from ..._errors import message
from .chunks import Chunks
from .codec import (
    Undecodable,
    array_of,
    checksum,
    compress,
    decompress,
    pack,
    raw_of,
    unpack,
)
from .disk import ROOT, Files
from .layout import SIDES, Variable, coordinate_digest, coordinate_files, read_root
from .ranges import FAILED, MISSING, OK, Gaps, merged, points_in, ranges_of, runs_of

RowErrors: TypeAlias = Mapping[str, Int64[np.ndarray, " _failed"]]
"""What was raised, and at which rows of a chunk or points of the grid, in order."""

ODD = ".odd"
"""The folder for marks: names of chunks in which rows may be failed or missing."""


_DELETE = (
    "Delete it, if it is there, and call the same sweep with the same store again: "
    "this chunk is then computed once more."
)
_PUT_BACK = "Put it back from a copy of the store, or give another path."


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a status file says about its chunk.

    It has the status of each row, and `rows` of them were written: a chunk may have
    become longer since. `digests` has for each array those that its values may have:
    one, or two while the chunk is mended. `function` is the digest of what computed it.
    """

    status: Int8[np.ndarray, " rows"]
    rows: int
    digests: list[list[int]]
    errors: RowErrors
    function: str


class Account(NamedTuple):
    """What a store has: gaps, points that failed by texts, and the chunks there."""

    gaps: Gaps
    errors: dict[str, Int64[np.ndarray, " _failed"]]
    done: Bool[np.ndarray, " chunks"]


@dataclasses.dataclass(frozen=True)
class Store:
    """An open store: `record` says what it was made for.

    Nothing is remembered of its chunks, so that each method sees what other processes
    have written. `function` is the digest of the function whose values are written.
    """

    files: Files
    root: Mapping[str, Any]
    record: Mapping[str, Any]
    chunks: Chunks
    variables: Sequence[Variable]
    function: str = ""

    @property
    def path(self) -> str:
        """What a user knows it by."""
        return self.files.place()

    def names(self) -> list[str]:
        """Return the names of its variables."""
        return [variable.name for variable in self.variables]

    def done(self) -> Bool[np.ndarray, " chunks"]:
        """Return whether each chunk is there; lists names and reads nothing."""
        return self._listed(self.record["status"])

    def is_done(self, number: int) -> bool:
        """Return whether a chunk is there."""
        return self.files.exists(self._status_key(number))

    def written(self) -> dict[int, int]:
        """Return for each chunk that is there when it was written, in nanoseconds."""
        times = self.files.times(self.record["status"])
        names = self.chunks.names(self._root(self.record["status"]))
        return {n: times[name] for n, name in enumerate(names) if name in times}

    def lost(self) -> list[int]:
        """Return the chunks that are there, but not all of whose values are."""
        # Statuses first: a chunk that is finished between the two is then whole.
        found = self.done()
        whole = np.ones_like(found)
        for variable in self.variables:
            if 0 not in variable.inner:
                whole &= self._listed(variable.name, len(variable.inner))
        return np.flatnonzero(found & ~whole).tolist()

    def odd(self) -> list[int]:
        """Return the chunks that are marked: there rows may be failed or missing."""
        found, size = [], len(self.chunks)
        for name in self.files.names(f"{ODD}/{self.record['cut']}"):
            place = name.split(".")
            if len(place) == len(self.chunks.lengths) and "".join(place).isdecimal():
                found.append(self.chunks.at(list(map(int, place))))
        return sorted(number for number in found if number < size)

    def mark(self, number: int) -> None:
        """Mark a chunk: whoever counts failed and missing rows looks there.

        A mark stays: to remove it could hide what another process marks meanwhile.
        """
        self.files.put(self._mark(number), b"")

    def manifest(self, number: int) -> Manifest | None:
        """Return what the status file of a chunk says, if the chunk is there."""
        key = self._status_key(number)
        try:
            said, raw = unpack(self.files.get(key))
        except FileNotFoundError:
            return None
        except (Undecodable, OSError) as error:
            raise self._damaged(key, f"cannot be read ({error})") from error
        if said["place"] != self._place(number) or said["cut"] != self.record["cut"]:
            raise self._damaged(key, "belongs to another chunk")
        first, last = self.chunks.span(number)
        status = np.frombuffer(raw, np.int8)[: last - first].copy()
        odd = "texts" in said or np.any(status != OK)
        if odd and not self.files.exists(self._mark(number)):
            raise self._damaged(
                self._mark(number), "is not there: failed points were not looked for"
            )
        errors, digests = _unpacked_errors(said), said["digests"]
        return Manifest(status, said["rows"], digests, errors, said["function"])

    def read(self, number: int, variable: int, known: bool = False) -> np.ndarray:
        """Return the values of a chunk of one variable, a row for each point.

        They are those that its status file was written for, or there is an error. The
        rows of a chunk that is not there have the fill value, unless it is `known` to
        have been there.
        """
        manifest, (first, last) = self.manifest(number), self.chunks.span(number)
        if manifest is None:
            if known:
                raise self._damaged(self._status_key(number), "is not there any more")
            array = self.variables[variable]
            return np.full((last - first, *array.inner), array.fill, array.dtype)
        try:
            return self._values(number, variable, manifest)
        except OSError:
            # Another process may have mended the chunk between the two reads.
            return self._values(number, variable, self.manifest(number) or manifest)

    def commit(
        self,
        number: int,
        values: Sequence[np.ndarray],
        status: Int8[np.ndarray, " rows"],
        errors: RowErrors | None = None,
    ) -> None:
        """Write a chunk: its values, the status of each row, and errors by rows."""
        # Removed first: a kill must not leave new values under an old status.
        self.files.remove(self._status_key(number))
        self._write(number, values)
        digests = [[self._digest(number, k, leaf)] for k, leaf in enumerate(values)]
        self._finish(number, status, digests, errors or {})

    def mend(
        self,
        number: int,
        rows: Int64[np.ndarray, " rows"],
        values: Sequence[np.ndarray],
        status: Int8[np.ndarray, " rows"],
        errors: RowErrors | None = None,
    ) -> None:
        """Write some rows of a chunk that is there, and leave the others as they are.

        `errors` count rows of the chunk. A kill leaves the rows as they were.
        """
        was = self.manifest(number)
        if was is None:
            raise self._damaged(self._status_key(number), "is not there any more")
        # Of this manifest and no later one: else rows of two writers would be mixed.
        had = [self._values(number, k, was) for k in range(len(values))]
        merged = [leaf.copy() for leaf in had]
        for into, leaf in zip(merged, values, strict=True):
            into[rows] = leaf
        now = was.status.copy()
        now[rows] = status
        new = [self._digest(number, k, leaf) for k, leaf in enumerate(merged)]
        # Said before: the files will be those of now, or those to come.
        pairs = zip(enumerate(had), new, strict=True)
        both = [[self._digest(number, k, leaf), to_be] for (k, leaf), to_be in pairs]
        self._finish(number, was.status, both, was.errors)
        self._write(number, merged)
        others = {text: np.setdiff1d(at, rows) for text, at in was.errors.items()}
        for text, at in (errors or {}).items():
            others[text] = np.union1d(others.get(text, np.zeros(0, int)), at)
        self._finish(number, now, [[digest] for digest in new], others)

    def put_rows(
        self,
        number: int,
        rows: Int64[np.ndarray, " rows"],
        values: Sequence[np.ndarray],
        status: Int8[np.ndarray, " rows"],
        errors: RowErrors | None = None,
    ) -> None:
        """Write some rows of a chunk: mend it, or commit it with the others missing."""
        if self.is_done(number):
            return self.mend(number, rows, values, status, errors)
        first, last = self.chunks.span(number)
        whole = []
        for variable, leaf in zip(self.variables, values, strict=True):
            shape = (last - first, *variable.inner)
            whole.append(np.full(shape, variable.fill, variable.dtype))
            whole[-1][rows] = leaf
        known = np.full(last - first, MISSING, np.int8)
        known[rows] = status
        self.commit(number, whole, known, errors)

    def discard(self, number: int) -> None:
        """Remove the files of a chunk, that which says that it is there first."""
        self.files.remove(self._status_key(number))
        for variable in self.variables:
            self.files.remove(self._value_key(variable, number))

    def is_sound(self, number: int) -> bool:
        """Return whether all files of a chunk can be read; reads them."""
        try:
            for variable in range(len(self.variables)):
                self.read(number, variable)
        except OSError:
            return False
        return True

    def account(self) -> Account:
        """Return which points have no value and why; reads marked chunks alone."""
        done = self.done()
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
        text = node["data_type"] == "string"
        dtype = np.dtype(object if text else node["data_type"])
        keys, raw = coordinate_files(self.root, name), []
        for key, _ in keys:
            try:
                raw.append(decompress(self.files.get(key)))
            except FileNotFoundError:
                raise self._damaged(key, "is not there", _PUT_BACK) from None
            except (OSError, ValueError, RuntimeError) as error:
                what = f"cannot be read ({error})"
                raise self._damaged(key, what, _PUT_BACK) from error
        # Before texts are decoded: the number of them is not checked by the decoder.
        if coordinate_digest(name, raw) != self.record["coordinates"][name][1]:
            raise self._damaged(keys[0][0], "holds another coordinate", _PUT_BACK)
        pairs = zip(raw, keys, strict=True)
        parts = [array_of(part, dtype, shape) for part, (_, shape) in pairs]
        shape = tuple(node["shape"])
        return np.concatenate([np.zeros((0, *shape[1:]), dtype), *parts])[: shape[0]]

    def has_changed(self) -> str | None:
        """Return what became of the store since it was opened, if anything."""
        try:
            _, record = read_root("sweep", self.files)
        except ValueError:
            there = self.files.exists(ROOT)
            return "was damaged" if there else "was deleted"
        return None if record == self.record else "has grown or was replaced"

    def check_current(self) -> None:
        """Raise an `OSError` if the store has grown or was deleted since."""
        changed = self.has_changed()
        if changed is not None:
            raise _changed(self.path, changed)

    def _values(self, number: int, k: int, manifest: Manifest) -> np.ndarray:
        """Return the values of a chunk, which are those that a manifest names."""
        variable, (first, last) = self.variables[k], self.chunks.span(number)
        if 0 in variable.inner:
            return np.zeros((last - first, *variable.inner), variable.dtype)
        key, shape = self._value_key(variable, number), self.chunks.points
        try:
            raw = decompress(self.files.get(key))
            found = array_of(raw, variable.dtype, (shape, *variable.inner))
        except FileNotFoundError:
            raise self._damaged(key, "is not there") from None
        except (OSError, ValueError, RuntimeError) as error:
            raise self._damaged(key, f"cannot be read ({error})") from error
        if self._digest(number, k, found[: manifest.rows]) not in manifest.digests[k]:
            raise self._damaged(key, "holds other values than were written there last")
        return found[: last - first]

    def _finish(
        self,
        number: int,
        status: Int8[np.ndarray, " rows"],
        digests: list[list[int]],
        errors: RowErrors,
    ) -> None:
        """Put the status file of a chunk, and before it what it leads to."""
        errors = {text: rows for text, rows in errors.items() if len(rows)}
        said = {
            "place": self._place(number),
            "cut": self.record["cut"],
            "rows": len(status),
            "digests": digests,
            "function": self.function,
        }
        if errors or np.any(status != OK):
            self.mark(number)
            said |= _packed_errors(errors)
        full = np.full(self.chunks.points, MISSING, np.int8)
        full[: len(status)] = status
        self.files.put(self._status_key(number), pack(said, full.tobytes()))

    def _write(self, number: int, values: Sequence[np.ndarray]) -> None:
        for variable, leaf in zip(self.variables, values, strict=True):
            if 0 in variable.inner:
                continue
            shape = (self.chunks.points, *variable.inner)
            if len(leaf) < shape[0]:
                whole = np.full(shape, variable.fill, variable.dtype)
                whole[: len(leaf)] = leaf
                leaf = whole
            data = compress(raw_of(leaf))
            self.files.put(self._value_key(variable, number), data)

    def _digest(self, number: int, k: int, values: np.ndarray) -> int:
        """Return the digest of the values of a chunk: also of what they are."""
        start = checksum(f"{self.variables[k].name} {self._place(number)} ".encode())
        return checksum(np.ascontiguousarray(values).tobytes(), start)

    def _place(self, number: int) -> str:
        return "/".join(map(str, self.chunks.place(number)))

    def _status_key(self, number: int) -> str:
        return self._key(self.record["status"], number)

    def _value_key(self, variable: Variable, number: int) -> str:
        return self._key(variable.name, number) + "/0" * len(variable.inner)

    def _key(self, name: str, number: int) -> str:
        return f"{name}/{self._root(name)}{self._place(number)}"

    def _root(self, name: str) -> str:
        return SIDES[self.record["sides"][name]]["root"]

    def _mark(self, number: int) -> str:
        place = self._place(number).replace("/", ".")
        return f"{ODD}/{self.record['cut']}/{place}"

    def _listed(self, name: str, inner: int = 0) -> Bool[np.ndarray, " chunks"]:
        names = self.files.names(name)
        behind = "/0" * inner
        wanted = self.chunks.names(self._root(name))
        found = (place + behind in names for place in wanted)
        return np.fromiter(found, bool, len(self.chunks))

    def _damaged(self, key: str, what: str, cure: str = _DELETE) -> OSError:
        """Return the error for a file that is not what was written."""
        changed = self.has_changed()
        if changed is not None:
            return _changed(self.path, changed)
        return OSError(message("sweep", f"`{self.files.place(key)}` {what}.", cure))


def _packed_errors(errors: RowErrors) -> dict[str, Any]:
    """Return errors by rows as JSON: texts, and ranges with the number of each."""
    ranges = [
        (k, first, stop)
        for k, rows in enumerate(errors.values())
        for first, stop in ranges_of(rows)
    ]
    packed = zlib.compress(np.array(ranges, "<i8").tobytes())
    return {"texts": list(errors), "where": base64.b64encode(packed).decode()}


def _unpacked_errors(said: Mapping[str, Any]) -> RowErrors:
    if not said.get("texts"):
        return {}
    packed = zlib.decompress(base64.b64decode(said["where"]))
    ranges = np.frombuffer(packed, "<i8").reshape(-1, 3)
    return {
        text: points_in(ranges[ranges[:, 0] == k, 1:])
        for k, text in enumerate(said["texts"])
    }


def _changed(path: str, what: str) -> OSError:
    cures = {
        "has grown or was replaced": "Take the result of the larger sweep, or "
        "`SweepResult.load`.",
        "was deleted": "Call the same sweep again, which computes all its points.",
    }
    return OSError(
        message(
            "sweep",
            f"the store `{path}` {what} since it was opened.",
            cures.get(what, "Put its `zarr.json` back from a copy."),
        )
    )


def open_store(function: str, files: Files) -> Store:
    """Return the store that is there; raise a `ValueError` if there is none.

    Its metadata are checked; no chunk is read or looked for.
    """
    return store_of(files, *read_root(function, files))


def store_of(files: Files, root: Mapping[str, Any], record: Mapping[str, Any]) -> Store:
    """Return the store that metadata describe, whether they are valid yet or not."""
    chunks = Chunks(tuple(record["lengths"]), record["split"], record["count"])
    variables = [
        Variable(name, np.dtype(dtype), tuple(inner), tuple(dims))
        for name, dtype, inner, dims in record["variables"]
    ]
    return Store(files, root, record, chunks, variables)
