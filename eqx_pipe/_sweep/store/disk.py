"""The files of a store: keys with bytes, in a folder; and the locks of its writers.

A store uses only the methods of `Folder`: each key is replaced atomically, and nothing
is appended, renamed or changed in place. An object store could provide the same.
"""

import contextlib
import errno
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ..._errors import SweepError, message, optional

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

ROOT = "zarr.json"
"""The key that makes a store valid: written last, and replaced atomically."""

GROWING = ".growing"
"""The key that exists while a store may contain invalid files."""

NEW = b"new"
"""The content of that file if there was no store before."""

LOCKS = ".locks"
"""The folder in a store for the locks of processes that fill it."""

PARTS = ".parts"
"""The folder in a store for files that are being written."""

LONGEST = 200
"""The maximum bytes of a name: file systems allow 255, including suffixes."""


T = TypeVar("T")


class Taken(Exception):
    """The error if another process holds the lock; the text names the process."""


class Folder:
    """The files of a store in a folder of this machine's file systems."""

    def __init__(self, path: Path):
        self.path = path
        self._root = str(path)

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a file atomically: write another file, then rename it."""
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
        """Return the bytes of a file; raise `FileNotFoundError` if it is missing."""
        with open(f"{self._root}/{key}", "rb") as file:
            return file.read()

    def remove(self, key: str) -> None:
        """Remove a file if it exists, and its folder if it is then empty."""
        place = f"{self._root}/{key}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
            with contextlib.suppress(OSError):
                if "/" in key:
                    os.rmdir(os.path.dirname(place))

    def exists(self, key: str) -> bool:
        """Return whether a file exists."""
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
                try:  # faster than a context, as there may be many files
                    found[entry.name] = entry.stat().st_mtime_ns
                except FileNotFoundError:  # another process has removed it
                    continue
        return found

    def place(self, key: str = "") -> str:
        """Return the path of the store, or of one of its files."""
        return f"{self._root}/{key}" if key else self._root

    def is_vacant(self) -> bool:
        """Return whether a store can be created: there is none, or a partial one."""
        try:
            names = {*os.listdir(self._root)}
        except (FileNotFoundError, NotADirectoryError):
            return not self.path.exists()
        if GROWING in names:  # otherwise `zarr.json` was removed from a store
            with contextlib.suppress(FileNotFoundError):  # just created
                return ROOT not in names and self.get(GROWING) == NEW
        return names <= {LOCKS, PARTS}

    def give_up(self) -> None:
        """Remove the folder of a store whose creation failed."""
        for name in (LOCKS, PARTS):
            shutil.rmtree(f"{self._root}/{name}", ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(self._root)

    @contextlib.contextmanager
    def lock(
        self, name: str, shared: bool = False, wait: bool = False
    ) -> Iterator[bool]:
        """Hold a lock of the operating system, which a kill releases.

        Either one process holds it, or any number hold it `shared`. Otherwise `wait`
        for it, or raise `Taken`. Yields whether the file system supports locks. Without
        them commits stay correct: two writers of a chunk only compute it twice.
        """
        if fcntl is None:
            yield False
            return
        key, flags = f"{LOCKS}/{name}", os.O_RDWR | os.O_CREAT
        with disk_errors(self._root, "be locked"):
            file = self._in_folder(
                key, lambda: os.open(f"{self._root}/{key}", flags, 0o644)
            )
        try:
            how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            yield _locked(file, how if wait else how | fcntl.LOCK_NB)
        finally:
            os.close(file)

    def _in_folder(self, key: str, act: Callable[[], T]) -> T:
        """Return the result of `act` on a file; create its folder if it is missing.

        The folder of the store itself is never created, since a store that is deleted
        while it is filled must not reappear in part.
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


@contextlib.contextmanager
def disk_errors(path: str, what: str) -> Iterator[None]:
    """Raise a `SweepError` with a fix for an error of the disk."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cure = "Make room there" if full else "See that the folder can be written to"
        raise SweepError(
            message(
                "sweep",
                f"the store `{path}` could not {what}: {error}.",
                f"{cure}, then call the same sweep again. Chunks that are finished are "
                "kept.",
            )
        ) from error


def check_zarr(function: str) -> None:
    """Raise an `ImportError` that names the extra unless Zarr and xarray are there."""
    for package in ("xarray", "zarr"):
        optional(function, package)


def is_name(name: str) -> bool:
    """Return whether a name is valid for files on all systems and for Zarr arrays.

    Names that begin with a dot are hidden, or used by the store. Zarr treats a
    backslash as a slash, and some libraries cut, split or reject unprintable characters
    (a NUL, a new line, an unpaired surrogate).
    """
    return (
        bool(name)
        and name.isprintable()
        and not name.startswith(".")
        and not {"/", "\\"} & set(name)
        and name != ROOT
        and len(name.encode()) <= LONGEST
    )
