"""A store of values: chunks that are there or not there, whole.

The values of a chunk are written first and its status last, each file under another
name that is then changed. So a file `status/c/...` says that the chunk is finished,
and a kill at any moment leaves chunks that are finished and chunks that are not.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import message, optional, value_error
from .chunks import Chunks
from .folder import as_zarr, quiet
from .layout import RECORD, damaged, read_record

MISSING, OK, FAILED = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Store:
    """An open store; `record` is what it was made for."""

    path: Path
    chunks: Chunks
    record: dict[str, Any]
    arrays: list[Any]
    status: Any

    def is_done(self, number: int) -> bool:
        """Whether all files of a chunk are there."""
        return all(file.is_file() for file in self._files(number))

    def commit(
        self, number: int, values: Sequence[np.ndarray], status: np.ndarray
    ) -> None:
        """Writes the values of a chunk, a row for each point, and then its status."""
        self.discard(number)
        box = self.chunks.box(number)
        shape = tuple(part.stop - part.start for part in box)
        for array, leaf in zip(self.arrays, values, strict=True):
            inner = leaf.shape[1:]
            if 0 not in inner:
                array[box + (slice(None),) * len(inner)] = leaf.reshape(shape + inner)
        self.status[box] = status.reshape(shape)

    def discard(self, number: int) -> None:
        """Removes what there is of a chunk: its status first, then its values."""
        for file in self._files(number):
            file.unlink(missing_ok=True)

    def read(self, number: int, variable: int) -> np.ndarray:
        """The values of a chunk of one variable, a row for each point."""
        array = self.arrays[variable]
        inner = array.shape[len(self.chunks.lengths) :]
        first, last = self.chunks.span(number)
        if 0 in inner:
            return np.zeros((last - first, *inner), array.dtype)
        file = self._file(array, number)
        # In this order: a process that fills the store writes the status last.
        if self._file(self.status, number).exists() and not file.is_file():
            raise _damaged(file, "is no file" if file.exists() else "is not there")
        box = self.chunks.box(number) + (slice(None),) * len(inner)
        with decoding(file):
            return np.asarray(array[box]).reshape(last - first, *inner)

    def read_status(self, number: int) -> np.ndarray:
        """The status of each point of a chunk."""
        with decoding(self._file(self.status, number)):
            return np.asarray(self.status[self.chunks.box(number)]).reshape(-1)

    def statuses(self) -> np.ndarray:
        """The status of every point."""
        try:
            return np.asarray(self.status[...]).reshape(-1)
        except MemoryError:
            raise
        except Exception:  # read again, to say which file it is
            return np.concatenate(
                [self.read_status(i) for i in range(len(self.chunks))]
            )

    def knows(self, number: int) -> bool:
        """Whether the status of a chunk can be read."""
        try:
            self.read_status(number)
        except OSError:
            return False
        return True

    def is_sound(self, number: int) -> bool:
        """Whether all files of a chunk can be read; reads them."""
        try:
            self.read_status(number)
            for variable in range(len(self.arrays)):
                self.read(number, variable)
        except OSError:
            return False
        return True

    def written(self, number: int) -> float:
        """When a chunk was finished."""
        return self._file(self.status, number).stat().st_mtime

    def _files(self, number: int) -> Iterator[Path]:
        """The files of a chunk, that of the status first."""
        for array in (self.status, *self.arrays):
            if 0 not in array.shape:
                yield self._file(array, number)

    def _file(self, array: Any, number: int) -> Path:
        place = self.chunks.place(number)
        place += (0,) * (array.ndim - len(place))
        return self.path / array.path / array.metadata.encode_chunk_key(place)


class Recut(ValueError):
    """A copy of a store has other chunks, and so is no store."""


def open_store(function: str, path: Path) -> Store:
    """The store at `path`; raises a `ValueError` if something else is there.

    What it says of itself is checked; no chunk is read or looked for.
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
    store = Store(path, chunks, record, arrays, status)
    _check_arrays(function, store)
    return store


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


def _check_arrays(function: str, store: Store) -> None:
    """Raises unless the arrays are as the record says."""
    lengths, shape = store.chunks.lengths, store.chunks.shape
    for array in (store.status, *store.arrays):
        inner = tuple(array.shape[len(lengths) :])
        form = f"{array.dtype}{list(array.shape)}"
        numbers = array.dtype.kind in "biufc"
        if array is store.status:
            numbers = array.dtype == np.int8 and not inner
        if array.shape[: len(lengths)] != lengths or not numbers:
            what = f"`lengths` is {list(lengths)} and the array `{array.path}` {form}"
            raise damaged(function, store.path, what)
        if array.chunks != (*shape, *(max(1, n) for n in inner)):
            raise Recut(
                message(
                    function,
                    f"`{store.path}` is a copy of a store that was cut into other "
                    "chunks.",
                    "Copy a store as a folder (`cp -r`) to go on with the copy; xarray "
                    "and `load_result` read this one.",
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
            with quiet():
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
