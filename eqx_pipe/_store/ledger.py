"""What a store knows of its chunks: a log for each process, of lines that only grow.

A chunk has a version, which starts at 0: odd ones say that it is there, even ones that
it is not. Whoever writes a chunk, or removes it, adds a line with the next version to
the log of its own share, and all logs together say for each chunk its greatest version.
So logs may be read in any order, while others write, and twice. A line ends with a
checksum: what a kill or a full disk left of one counts for nothing.

A line is `VERSION FIRST:STOP FAILED CHECKSUM`: a range of chunks, and which rows of a
chunk have failed, as ranges (`3:5,9:10`) or `-`. Where a store has grown a chunk may be
there in part: then which rows it lacks stands before the checksum, a bit for each,
compressed and in hexadecimal digits.
"""

import os
import re
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int8, Int64

from .chunks import Chunks

MISSING, OK, FAILED = 0, 1, 2
"""The status of a row."""

LEDGER = ".ledger"
"""The folder in a store for its logs."""

WHOLE = "all"
"""The name of the log of a process that fills the whole store."""

_LINE = re.compile(
    rb"(\d{1,9}) (\d{1,15}):(\d{1,15}) (-|\d{1,15}:\d{1,15}(?:,\d{1,15}:\d{1,15})*)"
    rb"(?: ([0-9a-f]+))?"
)
_NO_RANGES = np.zeros((0, 2), np.int64)

_CHECKSUM = 9
"""A space and eight digits."""


class Ledger:
    """The logs of a store, as far as they have been read."""

    def __init__(self, folder: Path, chunks: Chunks, writer: str = WHOLE):
        self.folder, self.chunks, self.writer = folder, chunks, writer
        self.versions = np.zeros(len(chunks), np.int32)
        self.failed: dict[int, Int64[np.ndarray, "ranges 2"]] = {}
        """For chunks with failed rows: which, from each to the one behind."""
        self.lacking: dict[int, bytes] = {}
        """For chunks that are there in part: the rows that they lack, as in the log."""
        self.latest: dict[str, list[int]] = {}
        """For each log its chunks, in the order in which they were written."""
        self._offsets: dict[str, int] = {}
        self.refresh()

    def is_done(self, number: int) -> bool:
        """Whether a chunk is there."""
        return bool(self.versions[number] % 2)

    def done(self) -> Bool[np.ndarray, " chunks"]:
        """Whether each chunk is there."""
        return self.versions % 2 == 1

    def is_whole(self) -> bool:
        """Whether there is a value for every row."""
        return bool(self.done().all()) and not (self.failed or self.lacking)

    def files(self) -> list[Path]:
        """The logs."""
        names = sorted(os.listdir(self.folder))
        return [self.folder / name for name in names if not name.startswith(".")]

    def refresh(self) -> None:
        """Reads what has been added to the logs, by whomever."""
        for file in self.files():
            name, offset = file.name, self._offsets.get(file.name, 0)
            if file.stat().st_size <= offset:
                continue
            with open(file, "rb") as log:
                log.seek(offset)
                found = log.read()
            # A line that is not whole may be one that is being written.
            end = found.rfind(b"\n") + 1
            self._offsets[name] = offset + end
            latest = self.latest.setdefault(name, [])
            for line in found[:end].split(b"\n"):
                self._take(line, latest)

    def _take(self, line: bytes, latest: list[int]) -> None:
        """Learns from a line, if it is whole and one of this store's."""
        text, checksum = line[:-_CHECKSUM], line[-_CHECKSUM:]
        match = _LINE.fullmatch(text)
        if match is None or checksum != _checksum(text):
            return
        version, first, stop = map(int, match.groups()[:3])
        if not first < stop <= len(self.versions):
            return
        for number in range(first, stop):
            if version > self.versions[number]:
                self.versions[number] = version
                self.failed.pop(number, None)
                self.lacking.pop(number, None)
                if match[4] != b"-":
                    self.failed[number] = _ranges(match[4])
                if match[5] is not None:
                    self.lacking[number] = match[5]
            latest.append(number)

    def next_version(self, number: int, there: bool = True) -> int:
        """The version of a chunk that is next said to be there, or to be gone."""
        version = int(self.versions[number])
        # The next number of the parity that says it: odd is there, even is gone.
        return version + 1 + (version % 2 == there)

    def note(
        self,
        number: int,
        ok: Bool[np.ndarray, " rows"] | None,
        lacks: Bool[np.ndarray, " rows"] | None = None,
    ) -> None:
        """Adds a line: a chunk is there, with rows that are `ok`; or is gone.

        Rows that it `lacks` are said to be `ok`.
        """
        version = self.next_version(number, ok is not None)
        self._add(version, number, number + 1, ok, lacks)

    def begin(self, statuses: Iterable[tuple[int, Int8[np.ndarray, " rows"]]]) -> None:
        """Says of a new store what chunks it has, with the status of each row."""
        first = stop = 0
        for number, status in statuses:
            if np.all(status == OK):
                if number != stop and first < stop:
                    self._add(1, first, stop)
                first, stop = number if number != stop else first, number + 1
            elif np.any(status != MISSING):
                self._add(1, number, number + 1, status != FAILED, status == MISSING)
        if first < stop:
            self._add(1, first, stop)

    def _add(
        self,
        version: int,
        first: int,
        stop: int,
        ok: Bool[np.ndarray, " rows"] | None = None,
        lacks: Bool[np.ndarray, " rows"] | None = None,
    ) -> None:
        ranges = _NO_RANGES if ok is None else runs_of(~ok)
        failed = ",".join(f"{a}:{b}" for a, b in ranges.tolist()) or "-"
        text = f"{version} {first}:{stop} {failed}".encode()
        if lacks is not None and lacks.any():
            text += b" " + zlib.compress(np.packbits(lacks).tobytes()).hex().encode()
        line = text + _checksum(text)
        # Begun on a line of its own, whatever a kill has left at the end.
        self._append(b"\n" + line + b"\n")
        self._take(line, self.latest.setdefault(self.writer, []))

    def lacks(self, number: int) -> Bool[np.ndarray, " rows"]:
        """Which rows of a chunk that is there it lacks."""
        first, last = self.chunks.span(number)
        text = self.lacking.get(number)
        if text is None:
            return np.zeros(last - first, bool)
        bits = np.frombuffer(zlib.decompress(bytes.fromhex(text.decode())), np.uint8)
        return np.unpackbits(bits, count=last - first).astype(bool)

    def _append(self, data: bytes) -> None:
        file = self.folder / self.writer
        if file.exists() and file.stat().st_nlink > 1:
            # A copy of the store by hard links: the file is that of the other one too.
            own = file.with_name(f".{file.name}")
            shutil.copyfile(file, own)
            os.replace(own, file)
        with open(file, "ab") as log:
            log.write(data)

    def status(self, number: int) -> Int8[np.ndarray, " rows"]:
        """The status of each row of a chunk."""
        first, last = self.chunks.span(number)
        if not self.is_done(number):
            return np.full(last - first, MISSING, np.int8)
        found = np.full(last - first, OK, np.int8)
        for a, b in self.failed.get(number, _NO_RANGES).tolist():
            found[a:b] = FAILED
        found[self.lacks(number)] = MISSING
        return found

    def digest(self) -> str:
        """What tells the states of chunks from others."""
        found = zlib.crc32(self.versions.tobytes())
        for number in sorted(self.failed):
            found = zlib.crc32(self.failed[number].tobytes() + b"%d" % number, found)
        for number in sorted(self.lacking):
            found = zlib.crc32(self.lacking[number] + b"%d" % number, found)
        return f"{int(self.done().sum())} {found:08x}"

    def runs(self) -> Int64[np.ndarray, "ranges 2"]:
        """The rows of the grid in chunks that are there, failed ones too, as ranges."""
        spans = [
            (self.chunks.span(first)[0], self.chunks.span(stop - 1)[1])
            for first, stop in runs_of(self.done()).tolist()
        ]
        return np.array(spans, np.int64).reshape(-1, 2)

    def failures(self) -> Int64[np.ndarray, "ranges 2"]:
        """The rows of the grid that have failed, as ranges."""
        found = [
            self.failed[number] + self.chunks.span(number)[0]
            for number in sorted(self.failed)
        ]
        return np.concatenate([_NO_RANGES, *found])


def _checksum(text: bytes) -> bytes:
    return b" %08x" % zlib.crc32(text)


def runs_of(mask: Bool[np.ndarray, " rows"]) -> Int64[np.ndarray, "ranges 2"]:
    """Where a mask is true, as ranges."""
    padded = np.concatenate([[False], mask, [False]])
    return np.flatnonzero(padded[1:] != padded[:-1]).reshape(-1, 2)


def _ranges(text: bytes) -> Int64[np.ndarray, "ranges 2"]:
    pairs = [tuple(map(int, pair.split(b":"))) for pair in text.split(b",")]
    return np.array(pairs, np.int64)
