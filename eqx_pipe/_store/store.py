"""A store of values: chunks that are there or not there, whole.

The values of a chunk are written first and its status last, each file under another
name that is then changed. So a file `status/c/...` says that the chunk is finished,
and a kill at any moment leaves chunks that are finished and chunks that are not.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import describe_value, message
from .chunks import Chunks
from .layout import FORMAT, RECORD
from .quiet import quiet

LOCKS = ".locks"
"""The folder in a store for the locks of processes that fill it."""

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
        if not file.is_file() and self._file(self.status, number).exists():
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


def open_store(function: str, path: Path) -> Store:
    """The store at `path`; raises a `ValueError` if something else is there."""
    group = _group(path)
    text = None if group is None else group.attrs.get(RECORD)
    if group is None or not isinstance(text, str):
        what = "is no Zarr group" if group is None else "was not made by a sweep"
        raise ValueError(
            message(
                function,
                f"`{path}` {what}.",
                "It is left as it is. Give a path where there is nothing yet, or a "
                "store that `sweep(..., store=)` has made.",
            )
        )
    record = json.loads(text)
    if record.get("format") != FORMAT:
        raise ValueError(
            message(
                function,
                f"the store `{path}` has the format {record.get('format')!r}, this "
                f"version of eqx_pipe knows the format {FORMAT}.",
                "Use the version that made it (its attribute `eqx_pipe`), or give a "
                "path where there is nothing yet.",
            )
        )
    chunks = Chunks(tuple(record["lengths"]), record["split"], record["count"])
    import zarr

    # Zarr keeps this setting with the open array, not with the stored one. Without it
    # a chunk of nothing but zeros would not be written, and look as if it were missing.
    with zarr.config.set({"array.write_empty_chunks": True}):
        arrays: list[Any] = [group[name] for name in record["variables"]]
        status: Any = group[record["status"]]
    shape = chunks.shape
    if any(array.chunks[: len(shape)] != shape for array in (status, *arrays)):
        raise ValueError(
            message(
                function,
                f"`{path}` is a copy of a store that was cut into other chunks.",
                "Copy a store as a folder (`cp -r`) to go on with the copy; xarray and "
                "`load_result` read this one.",
            )
        )
    return Store(path, chunks, record, arrays, status)


def is_vacant(path: Path) -> bool:
    """Whether a store can be made at `path`: nothing there, or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def as_path(function: str, store: Any) -> Path:
    """The argument `store` as a path on this machine's file systems."""
    import os

    if not isinstance(store, str | os.PathLike) or isinstance(store, bytes):
        raise TypeError(
            message(
                function,
                f"`store` is {describe_value(store)}.",
                "Give the path of a folder: `store='runs.zarr'`.",
            )
        )
    if "://" in str(store) or "\0" in str(store) or not str(store):
        raise ValueError(
            message(
                function,
                f"`store` is {describe_value(str(store))}.",
                "Give the path of a folder on a disk, also a shared one; copy the "
                "finished store to where it shall be.",
            )
        )
    return Path(store).expanduser().absolute()


def check_zarr(function: str) -> None:
    """Raises an `ImportError` that names the extra unless Zarr and xarray are there."""
    try:
        import xarray  # noqa: F401
        import zarr  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"`eqx_pipe.{function}` needs xarray and Zarr for `store`. Install them "
            "by `pip install 'eqx_pipe[sweep]'`."
        ) from error


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


def _group(path: Path) -> Any:
    import zarr

    if not (path / "zarr.json").is_file():
        return None
    try:
        with quiet():
            return zarr.open_group(str(path), mode="r+", use_consolidated=None)
    except Exception:  # what Zarr raises differs from version to version
        return None
