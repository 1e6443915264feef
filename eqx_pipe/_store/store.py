"""A store of values: chunks that are there or not there, whole.

The values of a chunk are written first, each file under another name that is then
changed, and a line in the ledger last. So the ledger says that the chunk is finished,
and a kill at any moment leaves chunks that are finished and chunks that are not.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int8, Int64

from .._errors import message, optional, value_error
from .chunks import Chunks
from .errors import Spans, errors_of, mask_of, note_errors
from .folder import as_zarr, quiet_zarr
from .layout import RECORD, SIDES, damaged, generation_of, numbered, read_record
from .ledger import FAILED, LEDGER, MISSING, OK, WHOLE, Ledger, runs_of


@dataclasses.dataclass(frozen=True)
class Store:
    """An open store; `record` is what it was made for.

    It is as it was when its ledger was read, whatever other processes write. The array
    `status` is for others to read, and written by `Published`.
    """

    path: Path
    chunks: Chunks
    record: dict[str, Any]
    arrays: list[Any]
    status: Any
    ledger: Ledger

    def is_done(self, number: int) -> bool:
        """Whether a chunk is there."""
        return self.ledger.is_done(number)

    def commit(
        self,
        number: int,
        values: Sequence[np.ndarray],
        ok: Bool[np.ndarray, " rows"],
        errors: Spans | None = None,
    ) -> None:
        """Writes the values of a chunk, a row for each point, and that it is there.

        `errors` are those of points that failed, counted from the chunk's first.
        """
        # Gone first: a kill in between must not leave new values under an old line.
        self.discard(number)
        self.write(number, values)
        self._note(number, ok, errors)

    def amend(
        self,
        number: int,
        rows: Int64[np.ndarray, " rows"],
        values: Sequence[np.ndarray],
        ok: Bool[np.ndarray, " rows"],
        errors: Spans | None = None,
    ) -> None:
        """Writes some rows of a chunk, and leaves the others as they are.

        A kill in between leaves them missing or failed, with what they are given here.
        """
        status = self.ledger.status(number)
        merged = [np.array(self.read(number, k)) for k in range(len(values))]
        for into, leaf in zip(merged, values, strict=True):
            into[rows] = leaf
        self.write(number, merged)
        # What was raised at other rows is said once more, of this version.
        others = status == FAILED
        others[rows] = False
        found = {text: list(spans) for text, spans in (errors or {}).items()}
        if others.any():
            for text, spans in dict(self.errors()).get(number, {}).items():
                was = runs_of(others & mask_of(spans, len(status))).tolist()
                found[text] = found.get(text, []) + was
        status[rows] = np.where(ok, OK, FAILED)
        self._note(number, status != FAILED, found, status == MISSING)

    def errors(self) -> Iterator[tuple[int, Spans]]:
        """What was raised in each chunk where points failed, counted from its first."""
        return errors_of(self.ledger)

    def _note(
        self,
        number: int,
        ok: Bool[np.ndarray, " rows"],
        errors: Spans | None,
        lacks: Bool[np.ndarray, " rows"] | None = None,
    ) -> None:
        if errors:
            note_errors(self.ledger, number, errors)
        self.ledger.note(number, ok, lacks)

    def write(self, number: int, values: Sequence[np.ndarray]) -> None:
        """Writes the files of a chunk."""
        box = self.chunks.box(number)
        shape = tuple(part.stop - part.start for part in box)
        for array, leaf in zip(self.arrays, values, strict=True):
            inner = leaf.shape[1:]
            if 0 not in inner:
                array[box + (slice(None),) * len(inner)] = leaf.reshape(shape + inner)

    def discard(self, number: int) -> None:
        """Removes what there is of a chunk, after it is said to be gone."""
        if self.is_done(number):
            self.ledger.note(number, None)
        for file in self._files(number):
            file.unlink(missing_ok=True)

    def read(self, number: int, variable: int) -> np.ndarray:
        """The values of a chunk of one variable, a row for each point."""
        array = self.arrays[variable]
        inner = array.shape[len(self.chunks.lengths) :]
        first, last = self.chunks.span(number)
        if 0 in inner or not self.is_done(number):
            # Not what another process may have written since, and has not said here.
            return np.full((last - first, *inner), array.fill_value, array.dtype)
        file = self._file(array, number)
        if not file.is_file() and generation_of(self.path) != self.record["generation"]:
            raise OSError(
                message(
                    "sweep",
                    f"the store `{self.path}` has grown since this result was made, "
                    "and its values have been copied to other files.",
                    "Take the result of the larger sweep, or `SweepResult.load`.",
                )
            )
        if not file.is_file():
            raise _damaged(file, "is no file" if file.exists() else "is not there")
        box = self.chunks.box(number) + (slice(None),) * len(inner)
        with decoding(file):
            found = np.asarray(array[box]).reshape(last - first, *inner)
        if number in self.ledger.lacking:
            found[self.ledger.lacks(number)] = array.fill_value
        return found

    def wanted(self, number: int, repairing: bool) -> Int64[np.ndarray, " rows"]:
        """The rows of a chunk that it lacks; those that have failed too if asked."""
        status = self.ledger.status(number)
        return np.flatnonzero((status == MISSING) | (repairing & (status == FAILED)))

    def statuses(
        self, first: int = 0, last: int | None = None
    ) -> Int8[np.ndarray, " points"]:
        """The status of every point, or of those from one to the one behind."""
        last = self.chunks.size if last is None else last
        found = np.full(last - first, MISSING, np.int8)
        for ranges, status in (
            (self.ledger.runs(), OK),
            (self.ledger.failures(), FAILED),
        ):
            near = (ranges[:, 0] < last) & (ranges[:, 1] > first)
            for a, b in np.clip(ranges[near] - first, 0, None).tolist():
                found[a:b] = status
        if self.ledger.lacking and first < last:
            near = range(self.chunks.holds(first), self.chunks.holds(last - 1) + 1)
            for number in filter(near.__contains__, self.ledger.lacking):
                start = self.chunks.span(number)[0]
                rows = start + np.flatnonzero(self.ledger.lacks(number)) - first
                found[rows[(rows >= 0) & (rows < last - first)]] = MISSING
        return found

    def failed(self) -> Int64[np.ndarray, " failed"]:
        """The points that have failed."""
        spans = [np.arange(a, b) for a, b in self.ledger.failures().tolist()]
        return np.concatenate([np.zeros(0, np.int64), *spans])

    def publish(self, number: int) -> None:
        """Writes what others read of the status, of a coarse chunk."""
        coarse = self.chunks.coarse()
        box = coarse.box(number)
        shape = tuple(part.stop - part.start for part in box)
        self.status[box] = self.statuses(*coarse.span(number)).reshape(shape)

    def is_sound(self, number: int) -> bool:
        """Whether all files of a chunk can be read; reads them."""
        try:
            for variable in range(len(self.arrays)):
                self.read(number, variable)
        except OSError:
            return False
        return True

    def lost(self, files: set[str]) -> list[int]:
        """The chunks that are said to be there, but not all of whose `files` are."""
        there = np.ones(len(self.chunks), bool)
        for array in self.arrays:
            if 0 not in array.shape:
                behind = "/0" * (array.ndim - len(self.chunks.lengths))
                names = self.chunks.names(root_of(array))
                found = (f"{array.path}/{name}{behind}" in files for name in names)
                there &= np.fromiter(found, bool, len(there))
        return np.flatnonzero(self.ledger.done() & ~there).tolist()

    def _files(self, number: int) -> Iterator[Path]:
        """The files of a chunk."""
        for array in self.arrays:
            if 0 not in array.shape:
                yield self._file(array, number)

    def _file(self, array: Any, number: int) -> Path:
        place = self.chunks.place(number)
        place += (0,) * (array.ndim - len(place))
        return self.path / array.path / array.metadata.encode_chunk_key(place)


def side_of(array: Any) -> str:
    """Which names the files of an array have."""
    return array.metadata.chunk_key_encoding.name


def root_of(array: Any) -> str:
    """What the names of the files of an array begin with."""
    return "c/" if side_of(array) == SIDES[0] else ""


class Recut(ValueError):
    """A copy of a store has other chunks, or no ledger, and so is no store."""


def open_store(function: str, path: Path, writer: str = WHOLE) -> Store:
    """The store at `path`; raises a `ValueError` if something else is there.

    What it says of itself is checked; no chunk is read or looked for. `writer` is the
    name of the log for what is written to it.
    """
    group, text = _group(function, path)
    record = read_record(function, path, text)
    chunks = Chunks(tuple(record["lengths"]), record["split"], record["count"])
    import zarr

    # Zarr keeps this setting with the open array, not with the stored one. Without it
    # a chunk of nothing but zeros would not be written, and look as if it were missing.
    with zarr.config.set({"array.write_empty_chunks": True}):
        arrays = [_array(function, path, group, name) for name in record["variables"]]
        status = _array(function, path, group, record["status"])
    _check_arrays(function, path, chunks, arrays, status)
    folder = path / numbered(LEDGER, record["generation"])
    if not folder.is_dir():
        raise _recut(function, path, "lacks its ledger")
    ledger = Ledger(folder, chunks, writer)
    return Store(path, chunks, record, arrays, status, ledger)


def _array(function: str, path: Path, group: Any, name: str) -> Any:
    import zarr

    try:
        array = group[name]
    except Exception as error:  # what Zarr raises differs from version to version
        what = f"its array `{name}` cannot be opened ({type(error).__name__}: {error})"
        raise damaged(function, path, what) from error
    if not isinstance(array, zarr.Array):
        raise damaged(function, path, f"`{name}` is no array")
    return array


def _check_arrays(
    function: str, path: Path, chunks: Chunks, arrays: Sequence[Any], status: Any
) -> None:
    """Raises unless the arrays are as the record says."""
    lengths = chunks.lengths
    for array in (status, *arrays):
        inner = tuple(array.shape[len(lengths) :])
        form = f"{array.dtype}{list(array.shape)}"
        numbers, shape = array.dtype.kind in "biufc", chunks.shape
        if array is status:
            numbers = array.dtype == np.int8 and not inner
            shape = chunks.coarse().shape
        if array.shape[: len(lengths)] != lengths or not numbers:
            what = f"`lengths` is {list(lengths)} and the array `{array.path}` {form}"
            raise damaged(function, path, what)
        if array.chunks != (*shape, *(max(1, n) for n in inner)):
            raise _recut(function, path, "was cut into other chunks")


def _recut(function: str, path: Path, what: str) -> Recut:
    return Recut(
        message(
            function,
            f"`{path}` is a copy of a store that {what}.",
            "Copy a store as a folder (`cp -r`) to go on with the copy; xarray and "
            "`SweepResult.load` read this one.",
        )
    )


def check_zarr(function: str) -> None:
    """Raises an `ImportError` that names the extra unless Zarr and xarray are there."""
    for package in ("xarray", "zarr"):
        optional(function, package)


@contextlib.contextmanager
def decoding(file: Path) -> Iterator[None]:
    """Names the file of a chunk that cannot be read."""
    try:
        yield
    except Exception as error:  # each codec raises what it likes
        raise _damaged(file, f"cannot be read ({error})") from error


def _damaged(file: Path, what: str) -> OSError:
    return OSError(
        message(
            "sweep",
            f"the chunk file `{file}` {what}.",
            "Delete it, if it is there, and call the same sweep with the same store "
            "again: this chunk is then computed once more.",
        )
    )


def _group(function: str, path: Path) -> Any:
    """The Zarr group at `path`, and its record as text."""
    import zarr

    what = "is no Zarr group"
    if (path / "zarr.json").is_file():
        try:
            with quiet_zarr():
                group = zarr.open_group(as_zarr(path), mode="r+", use_consolidated=None)
            text = group.attrs.get(RECORD)
        except Exception as error:  # what Zarr raises differs from version to version
            what = f"cannot be opened by Zarr ({type(error).__name__}: {error})"
        else:
            if isinstance(text, str):
                return group, text
            what = "was not made by a sweep"
    raise value_error(
        function,
        f"`{path}` {what}.",
        "It is left as it is. Give a path where there is nothing yet, or a store "
        "that `sweep(..., store=)` has made.",
    )
