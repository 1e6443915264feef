"""The files of a store: keys with bytes, in a folder; and the locks of its writers.

A store uses only the methods of `Folder`: each key is created once or replaced, in
either case atomically, and nothing is appended, renamed or changed in place. So the
files may be in a folder, or in a bucket of an object store (`objects.py`).
"""

import contextlib
import errno
import functools as ft
import math
import os
import re
import socket
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from .._errors import SweepError, message, optional
from .._memory import memory_bytes

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

ROOT = "zarr.json"
"""The key that makes a store valid: created last, and replaced atomically."""

GROWING = ".growing"
"""The key that exists while a store may contain invalid files, which it lists."""

LOCKS = ".locks"
"""The folder in a store for the locks of processes that fill it."""

PARTS = ".parts"
"""The folder in a store for files that are being written."""

LONGEST = 200
"""The maximum bytes of a name: file systems allow 255, including suffixes."""

_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_LOCK = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)

# The errors of file systems without hard links, or without locks.
_UNSUPPORTED = {
    getattr(errno, name, None)
    for name in ("EPERM", "ENOTSUP", "EOPNOTSUPP", "ENOSYS", "EMLINK", "ENOLCK")
}
# The names of files of chunks and metadata, of locks, and of files being written.
_OWN = re.compile(r"zarr\.json|\.growing|(c\.)?\d[\d.]*|all|[0-9a-f]{32}")

_ABSENT = (FileNotFoundError, NotADirectoryError)

T = TypeVar("T")


class Taken(Exception):
    """The error if another process holds the lock; the text names the process."""


class Undecodable(ValueError):
    """The error for a file whose content no sweep has written."""


class Entry(NamedTuple):
    """The size of a file in bytes, and when it was written, in nanoseconds."""

    size: int
    when: int


class Keys:
    """The methods that folders and buckets share."""

    conditional = False
    """True if `swap` is atomic and listings are current, so that no locks are needed.
    """

    put: Callable[[str, bytes], None]
    entry: Callable[[str], Entry | None]

    def __init__(self, root: str):
        self._root = root

    def tag(self, key: str) -> str | None:
        """Return the version of a file for `swap`; `None` if it is missing."""
        return None

    def swap(self, key: str, data: bytes, tag: str | None) -> str | None:
        """Put a file and return its new tag.

        If the files are `conditional` and the tag of this one is not `tag` any more,
        put nothing and return `None`.
        """
        self.put(key, data)
        return ""

    def at_once(self, acts: list[Callable[[], T]]) -> list[T]:
        """Return the results of several requests, which may run side by side."""
        return [act() for act in acts]

    def exists(self, key: str) -> bool:
        """Return whether a file exists."""
        return self.entry(key) is not None

    def path_of(self, key: str = "") -> str:
        """Return the path of the store, or of one of its files."""
        return f"{self._root}/{key}" if key else self._root

    def wait(self, seconds: float) -> None:
        """Let some time pass."""
        time.sleep(seconds)

    def new_id(self) -> str:
        """Return 32 random hexadecimal digits."""
        return uuid.uuid4().hex


class Folder(Keys):
    """The files of a store in a folder of this machine's file systems.

    The path of the store may be a link. Within it, nothing is written, locked or
    removed through a link, which could lead to files of somebody else.
    """

    def __init__(self, path: Path):
        super().__init__(str(path))
        self.path = path

    def make(self) -> None:
        """Create the folder of the store if it does not exist."""
        # Resolve links, whose target may not exist yet.
        Path(os.path.realpath(self._root)).mkdir(parents=True, exist_ok=True)

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a file atomically: write another file, then rename it."""
        with self._part(key, data) as part:
            self._in_folder(key, lambda: os.replace(part, self.path_of(key)))

    def put_new(self, key: str, data: bytes) -> bool:
        """Create a file atomically unless it exists; return whether it was created.

        A hard link to a new name is atomic on network file systems, too.
        """
        with self._part(key, data) as part:
            try:
                self._in_folder(key, lambda: os.link(part, self.path_of(key)))
            except FileExistsError:
                # The reply to a successful request may have been lost.
                return os.stat(part).st_nlink == 2
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                flags, path = _LOCK | os.O_EXCL, self.path_of(key)
                try:
                    file = self._in_folder(key, lambda: os.open(path, flags, 0o644))
                except FileExistsError:
                    return False
                os.close(file)
                os.replace(part, path)  # a kill before it leaves an empty file
        return True

    def copy(self, key: str, to: str) -> None:
        """Let another key in the same folder have the bytes of a key, atomically."""
        part = self.path_of(f"{PARTS}/{self.new_id()}")
        with self._naming(key):
            self._check_no_link(f"{PARTS}/")
            try:
                self._in_folder(f"{PARTS}/", lambda: os.link(self.path_of(key), part))
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                self.put(to, self.get(key, math.inf))
                return
            try:
                os.replace(part, self.path_of(to))
            finally:  # it is still there if both were the same file
                with contextlib.suppress(OSError):
                    os.unlink(part)

    @contextlib.contextmanager
    def _part(self, key: str, data: bytes) -> Iterator[str]:
        """Write the content of `key` to another file, and remove it if it is left."""
        part = f"{PARTS}/{self.new_id()}"
        path = self.path_of(part)
        with self._naming(key):
            self._check_no_link(key)
            self._check_no_link(part)
            try:
                with self._in_folder(part, lambda: open(path, "xb")) as file:
                    file.write(data)
                yield path
            finally:  # after a full disk or Ctrl-C, or if there is a link to it
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def get(self, key: str, most: int | float | None = None) -> bytes:
        """Return the bytes of a file; raise `FileNotFoundError` if it is missing.

        Raises `Undecodable` for a folder, a device or a pipe, and for more than `most`
        bytes, by default a quarter of the memory.
        """
        with self._naming(key):
            file = os.open(self.path_of(key), _READ)
            try:
                info = os.fstat(file)
                if not stat.S_ISREG(info.st_mode):
                    raise Undecodable("it is not a regular file")
                if info.st_size > (most_bytes() if most is None else most):
                    raise Undecodable(f"it has {info.st_size:,} bytes")
                with open(file, "rb", closefd=False) as stream:
                    return stream.read()
            finally:
                os.close(file)

    def remove(self, key: str) -> None:
        """Remove a file if it exists, and its folder if it is then empty."""
        path = self.path_of(key)
        with self._naming(key):
            self._check_no_link(key)
            try:
                os.unlink(path)
            except OSError as error:
                # A folder is not a file of the store.
                if not (isinstance(error, _ABSENT) or os.path.isdir(path)):
                    raise
        if "/" in key:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(path))

    def remove_all(self, name: str) -> None:
        """Remove another store in a folder of this one, if the system permits it.

        Files of others stay, and links are not followed.
        """
        top = self.path_of(name)
        for folder, _, files in [] if os.path.islink(top) else os.walk(top, False):
            with contextlib.suppress(OSError):
                for file in filter(_OWN.fullmatch, files):
                    os.unlink(f"{folder}/{file}")
                os.rmdir(folder)

    def below(self, name: str) -> "Folder":
        """Return the files of another store in a folder of this one."""
        return Folder(self.path / name)

    def entry(self, key: str) -> Entry | None:
        """Return the size and time of a file, or `None` if it does not exist."""
        with self._naming(key), contextlib.suppress(*_ABSENT):
            now = os.stat(self.path_of(key))
            return Entry(now.st_size, now.st_mtime_ns)
        return None

    def names(self, below: str = "") -> set[str]:
        """Return the names in a folder; an empty set if the folder does not exist."""
        with self._naming(below), contextlib.suppress(*_ABSENT):
            return {*os.listdir(self.path_of(below))}
        return set()

    def entries(self, below: str) -> dict[str, Entry]:
        """Return the size and time of each file in a folder."""
        files = {}
        with self._naming(below), contextlib.suppress(*_ABSENT):
            with os.scandir(self.path_of(below)) as entries:
                for entry in entries:
                    try:  # faster than a context, as there may be many files
                        now = entry.stat()
                    except FileNotFoundError:  # another process has removed it
                        continue
                    files[entry.name] = Entry(now.st_size, now.st_mtime_ns)
        return files

    @contextlib.contextmanager
    def lock(
        self, name: str, shared: bool = False, wait: bool = False
    ) -> Iterator[bool]:
        """Hold a lock of the operating system, which a kill releases.

        Either one process holds it, or any number hold it `shared`. Otherwise `wait`
        for it, or raise `Taken`. Yields whether the file system supports locks.
        """
        if fcntl is None:
            yield False
            return
        key = f"{LOCKS}/{name}"
        path = self.path_of(key)
        with self._naming(key):
            self._check_no_link(key)
            file = self._in_folder(key, lambda: os.open(path, _LOCK, 0o644))
        try:
            how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            with self._naming(key):
                has_locks = _locked(file, how if wait else how | fcntl.LOCK_NB)
            yield has_locks
        finally:
            os.close(file)

    def _check_no_link(self, key: str) -> None:
        """Raise an `OSError` if the folder of a key within the store is a link."""
        folder = os.path.dirname(key)
        if folder and os.path.islink(self.path_of(folder)):
            text = "a link within a store is not followed, put a folder in its place"
            raise OSError(errno.ELOOP, text, self.path_of(folder))

    @contextlib.contextmanager
    def _naming(self, key: str) -> Iterator[None]:
        """Add the path of a file to an error of the system that names none."""
        try:
            yield
        except OSError as error:
            if error.errno is not None and not isinstance(error.filename, str):
                error.filename = self.path_of(key)
            raise

    def _in_folder(self, key: str, act: Callable[[], T]) -> T:
        """Return the result of `act` on a file; create its folder if it is missing.

        The folder of the store itself is never created, since a store that is deleted
        while it is filled must not reappear in part.
        """
        try:
            return act()
        except FileNotFoundError:
            folder = os.path.dirname(key)
            if not folder:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path_of(folder))
            return act()


def _locked(file: int, how: int) -> bool:
    assert fcntl is not None
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        who = os.pread(file, 1000, 0).decode(errors="replace")
        raise Taken(who or "another process") from None
    except OSError as error:
        if error.errno in _UNSUPPORTED:  # as on some network file systems
            return False
        raise
    os.ftruncate(file, 0)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    who = f"process {os.getpid()} on {socket.gethostname()} (since {since})"
    os.pwrite(file, who.encode(), 0)
    return True


@contextlib.contextmanager
def disk_errors(path: str, what: str, function: str = "sweep") -> Iterator[None]:
    """Raise an error that names a store, with a fix, for an error of the system.

    It is a `SweepError`, or an `OSError` from other functions. An error for a damaged
    file names the fix already.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        where = "bucket" if "://" in path else "folder"
        can = "read" if what == "be read" else "written to"
        cure = "Make room there" if full else f"See that the {where} can be {can}"
        again = "try again."
        if function == "sweep":
            again = "call the same sweep again. Chunks that are finished are kept."
        cure = f"{cure}, then {again}"
        text = message(function, f"the store `{path}` could not {what}: {error}.", cure)
        raise (SweepError if function == "sweep" else OSError)(text) from error


@ft.cache
def most_bytes() -> float:
    """Return the maximum bytes to read at once: a quarter of the memory."""
    return memory_bytes() / 4


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
