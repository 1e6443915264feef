"""The files of a store: keys with bytes, in a folder; and the locks of its writers.

A store needs no more of a disk than the methods of `Folder`: each key is replaced
atomically, and nothing is appended, renamed or changed in place. A bucket of an object
store can do as much.
"""

import contextlib
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ..._errors import optional

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

ROOT = "zarr.json"
"""The key that makes the others a store: written last, and replaced atomically."""

GROWING = ".growing"
"""The key that exists while a store may hold files that are not valid."""

NEW = b"new"
"""The content of that file where there was no store before."""

LOCKS = ".locks"
"""The folder in a store for the locks of processes that fill it."""

PARTS = ".parts"
"""The folder in a store for files that are being written."""

LONGEST = 200
"""The most bytes of a name: file systems allow 255, some of which others need."""


T = TypeVar("T")


class Taken(Exception):
    """Another process holds the lock; the text names it."""


class Folder:
    """The files of a store in a folder of this machine's file systems."""

    def __init__(self, path: Path):
        self.path = path
        self._root = str(path)

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a file, all at once: beside its place, then by a rename."""
        part = f"{PARTS}/{uuid.uuid4().hex}"
        beside = f"{self._root}/{part}"
        try:
            with self._in_folder(part, lambda: open(beside, "xb")) as file:
                file.write(data)
            self._in_folder(key, lambda: os.replace(beside, f"{self._root}/{key}"))
        except BaseException:  # a full disk, or Ctrl-C
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise

    def get(self, key: str) -> bytes:
        """Return the bytes of a file; raise `FileNotFoundError` if there is none."""
        with open(f"{self._root}/{key}", "rb") as file:
            return file.read()

    def remove(self, key: str) -> None:
        """Remove a file, if there is one, and its folder if that is empty then."""
        place = f"{self._root}/{key}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
            with contextlib.suppress(OSError):
                if "/" in key:
                    os.rmdir(os.path.dirname(place))

    def exists(self, key: str) -> bool:
        """Return whether there is a file."""
        return os.path.lexists(f"{self._root}/{key}")

    def names(self, below: str = "") -> set[str]:
        """Return the names in a folder; an empty set if the folder does not exist."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return {*os.listdir(f"{self._root}/{below}")}
        return set()

    def times(self, below: str) -> dict[str, int]:
        """Return when each file in a folder was written, in nanoseconds."""
        found, folder = {}, f"{self._root}/{below}"
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                try:  # which costs less than a context, as there may be many
                    found[entry.name] = entry.stat().st_mtime_ns
                except FileNotFoundError:  # another process has removed it
                    continue
        return found

    def place(self, key: str = "") -> str:
        """Return the path of the store, or of one of its files."""
        return f"{self._root}/{key}" if key else self._root

    def is_vacant(self) -> bool:
        """Return whether a store can be created: nothing, or half of one, is there."""
        try:
            names = {*os.listdir(self._root)}
        except (FileNotFoundError, NotADirectoryError):
            return not self.path.exists()
        if GROWING in names:  # else a store whose `zarr.json` somebody removed
            return ROOT not in names and self.get(GROWING) == NEW
        return names <= {LOCKS, PARTS}

    def give_up(self) -> None:
        """Remove the folder of a store that was not created after all."""
        for name in (LOCKS, PARTS):
            shutil.rmtree(f"{self._root}/{name}", ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(self._root)

    @contextlib.contextmanager
    def lock(
        self, name: str, shared: bool = False, wait: bool = False
    ) -> Iterator[bool]:
        """Hold a lock of the operating system, which a kill releases.

        Any number of processes hold it `shared`, or one alone; else `wait` for it, or
        raise `Taken`.
        Yields whether the file system has locks. Without them commits stay right: two
        writers of one chunk would only compute it twice.
        """
        if fcntl is None:
            yield False
            return
        key, flags = f"{LOCKS}/{name}", os.O_RDWR | os.O_CREAT
        file = self._in_folder(
            key, lambda: os.open(f"{self._root}/{key}", flags, 0o644)
        )
        try:
            how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            yield _locked(file, how if wait else how | fcntl.LOCK_NB)
        finally:
            os.close(file)

    def _in_folder(self, key: str, act: Callable[[], T]) -> T:
        """Return the result of `act` on a file, and create its folder if it is missing.

        The folder of the store itself is never created: a store that was deleted while
        it is filled must not come back in part.
        """
        try:
            return act()
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(f"{self._root}/{os.path.dirname(key)}")
            return act()


def _locked(file: int, how: int) -> bool:
    assert fcntl is not None
    try:
        fcntl.flock(file, how)
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
