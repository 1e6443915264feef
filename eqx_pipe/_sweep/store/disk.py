"""The files of a store: keys with bytes, in a folder; and the locks of its writers.

A store needs no more of a disk than `Files`: each key is replaced at once, and nothing
is appended, renamed or changed in place. A bucket of an object store has as much.
"""

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

from ..._errors import optional

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

ROOT = "zarr.json"
"""The key that makes a store of the others: written last, and replaced at once."""

GROWING = ".growing"
"""The key that says that files may lie in a store that are not valid."""

NEW = b"new"
"""What that file holds where there was no store before."""

LOCKS = ".locks"
"""The folder in a store for the locks of processes that fill it."""

_PARTS = ".parts"
"""The folder in a store for files that are being written."""

LONGEST = 200
"""Bytes of a name: file systems allow 255, some of which others need."""


class Taken(Exception):
    """Another process holds the lock; the text names it."""


@runtime_checkable
class Files(Protocol):
    """The files of a store, by keys such as `value/c/0`."""

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a file, all at once."""
        ...

    def get(self, key: str) -> bytes:
        """Return the bytes of a file; raise `FileNotFoundError` if there is none."""
        ...

    def remove(self, key: str) -> None:
        """Remove a file, if there is one."""
        ...

    def exists(self, key: str) -> bool:
        """Return whether there is a file."""
        ...

    def names(self, below: str) -> set[str]:
        """Return the keys below `below/`, without this prefix."""
        ...

    def times(self, below: str) -> dict[str, int]:
        """Return when each file below `below/` was written, in nanoseconds."""
        ...

    def parts(self) -> set[str]:
        """Return the keys of files that a killed process left half written."""
        ...

    def lock(self, name: str, shared: bool = False) -> AbstractContextManager[bool]:
        """Hold a lock, or raise `Taken`; gives whether there are locks at all."""
        ...

    def place(self, key: str = "") -> str:
        """Return what a user knows the store, or one of its files, by."""
        ...


class Folder:
    """The files of a store in a folder of this machine's file systems."""

    def __init__(self, path: Path):
        self.path = path
        self._root = str(path)

    def put(self, key: str, data: bytes) -> None:
        """Write a file beside its place, and put it there by a rename."""
        beside = f"{self._root}/{_PARTS}/{uuid.uuid4().hex}"
        try:
            with self._opened(beside) as file:
                file.write(data)
            self._moved(beside, f"{self._root}/{key}")
        except BaseException:  # a full disk, or Ctrl-C
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise

    def get(self, key: str) -> bytes:
        """Return the bytes of a file; raise `FileNotFoundError` if there is none."""
        with open(f"{self._root}/{key}", "rb") as file:
            return file.read()

    def remove(self, key: str) -> None:
        """Remove a file, if there is one, and folders that are empty then."""
        place = f"{self._root}/{key}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
        with contextlib.suppress(OSError):  # the first that is not empty
            while (place := os.path.dirname(place)) != self._root:
                os.rmdir(place)

    def exists(self, key: str) -> bool:
        """Return whether there is a file."""
        return os.path.lexists(f"{self._root}/{key}")

    def names(self, below: str = "") -> set[str]:
        """Return the keys below `below/`, without this prefix and hidden names."""
        return {entry.path[start:] for entry, start in self._entries(below)}

    def times(self, below: str) -> dict[str, int]:
        """Return when each file below `below/` was written, in nanoseconds."""
        found = {}
        for entry, start in self._entries(below):
            with contextlib.suppress(FileNotFoundError):
                found[entry.path[start:]] = entry.stat().st_mtime_ns
        return found

    def parts(self) -> set[str]:
        """Return the keys of files that a killed process left half written."""
        return {f"{_PARTS}/{name}" for name in self.names(_PARTS)}

    def place(self, key: str = "") -> str:
        """Return the path of the store, or of one of its files."""
        return f"{self._root}/{key}" if key else self._root

    def is_vacant(self) -> bool:
        """Return whether a store can be created: nothing, or half of one, is there."""
        if not self.path.exists():
            return True
        if not self.path.is_dir() or self.exists(ROOT):
            return False
        if self.exists(GROWING):  # else a store whose `zarr.json` somebody removed
            return self.get(GROWING) == NEW
        return not {*os.listdir(self._root)} - {LOCKS, _PARTS}

    def give_up(self) -> None:
        """Remove the folder of a store that was not created after all."""
        for name in (LOCKS, _PARTS, "."):
            with contextlib.suppress(OSError):
                for file in os.scandir(self.path / name):
                    if name == LOCKS:
                        os.unlink(file.path)
                os.rmdir(self.path / name if name != "." else self.path)

    @contextlib.contextmanager
    def lock(self, name: str, shared: bool = False) -> Iterator[bool]:
        """Hold a lock of the operating system, which a kill releases.

        Any number of processes hold it `shared`, or one alone; else raise `Taken`.
        Gives whether the file system has locks. Without them commits stay right: two
        writers of one chunk would only compute it twice.
        """
        if fcntl is None:
            yield False
            return
        place = f"{self._root}/{LOCKS}/{name}"
        how = os.O_RDWR | os.O_CREAT
        try:
            file = os.open(place, how, 0o644)
        except FileNotFoundError:
            self._make_folder(place)
            file = os.open(place, how, 0o644)
        try:
            yield _locked(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        finally:
            os.close(file)

    def _entries(self, below: str) -> Iterator[tuple["os.DirEntry[str]", int]]:
        root = f"{self._root}/{below}" if below else self._root
        start, folders = len(root) + 1, [root]
        while folders:
            # Another process may remove a folder meanwhile.
            with (
                contextlib.suppress(FileNotFoundError),
                os.scandir(folders.pop()) as entries,
            ):
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    # The kind comes with the name: nothing else is asked of a file.
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        yield entry, start

    def _opened(self, place: str) -> IO[bytes]:
        try:
            return open(place, "xb")
        except FileNotFoundError:
            self._make_folder(place)
            return open(place, "xb")

    def _moved(self, beside: str, place: str) -> None:
        try:
            os.replace(beside, place)
        except FileNotFoundError:
            self._make_folder(place)
            os.replace(beside, place)

    def _make_folder(self, place: str) -> None:
        """Make the folder of a file, but never that of the store itself.

        A store that was deleted while it is filled must not come back in part.
        """
        missing, folder = [], os.path.dirname(place)
        while folder != self._root and not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)


def _locked(file: int, how: int) -> bool:
    assert fcntl is not None
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        who = os.pread(file, 1000, 0).decode(errors="replace")
        raise Taken(who or "another process") from None
    except OSError:  # some network file systems have no locks
        return False
    os.ftruncate(file, 0)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    who = f"process {os.getpid()} on {socket.gethostname()} (since {since})"
    os.pwrite(file, who.encode(), 0)
    return True


def check_zarr(function: str) -> None:
    """Raise an `ImportError` that names the extra unless Zarr and xarray are there."""
    for package in ("xarray", "zarr"):
        optional(function, package)


def is_name(name: str) -> bool:
    """Return whether a name is that of a file everywhere, and of an array for Zarr.

    Names that begin with a dot are hidden, or ours. A backslash is a slash to Zarr, and
    what cannot be printed (a NUL, a new line, half of a surrogate pair) is cut, split
    or refused by one library or another.
    """
    return (
        bool(name)
        and name.isprintable()
        and not name.startswith(".")
        and not {"/", "\\"} & set(name)
        and name != ROOT
        and len(name.encode()) <= LONGEST
    )
