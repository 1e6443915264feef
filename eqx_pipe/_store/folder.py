"""The folder of a store: its path, what may lie in it, and who may write to it."""

import contextlib
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._errors import value_error


def as_zarr(path: Path) -> Any:
    """A folder as Zarr and xarray want it.

    They read a path that is a text as a URL: `#`, `?` and `;` end it.
    """
    from zarr.storage import LocalStore

    return LocalStore(path)


def is_vacant(path: Path) -> bool:
    """Whether a store can be made at `path`: nothing there, or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def files_in(function: str, path: Path) -> set[str]:
    """The files of a store, by their paths in it.

    Raises a `ValueError` if there is a link: what is written to it would land
    elsewhere. The path of the store may have links.
    """
    found, start = set(), len(str(path)) + 1
    folders: list[str] = [str(path)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            # Nothing is asked of a file but its kind, which comes with its name.
            for entry in entries:
                if entry.is_symlink():
                    raise _linked(function, path, entry.path)
                if entry.is_dir():
                    folders.append(entry.path)
                else:
                    found.add(entry.path[start:])
    return found


def _linked(function: str, path: Path, link: str) -> ValueError:
    return value_error(
        function,
        f"there is a link in the store `{path}`: `{link}` leads to "
        f"`{os.readlink(link)}`.",
        "A store that is filled has no links, which would lead what is written "
        "elsewhere: put in its place what it leads to (`cp -rL` copies a store "
        "so), or delete it.",
    )


_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def quiet_zarr() -> Iterator[None]:
    """Without Zarr's warnings of what its own version 3 leaves open.

    In one thread at a time: `warnings.catch_warnings` replaces the filters of the whole
    process, so of two threads one would undo what the other had set, and the last to
    leave would put back what the first had found.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(zarr|xarray)\.")
        warnings.filterwarnings("ignore", message=".*Zarr format 3 specification.*")
        # What xarray says of a store whose metadata nobody consolidated.
        warnings.filterwarnings("ignore", message="Failed to open Zarr store")
        yield


LOCKS = ".locks"
"""The folder in a store for the locks of processes that fill it."""

LONGEST = 200
"""Bytes of a name: file systems allow 255, some of which others need."""


def is_name(name: str) -> bool:
    """Whether a name is that of a file everywhere, and that of an array for Zarr.

    Those in front of which there is a dot are hidden, or ours. A backslash is a slash
    to Zarr, and what cannot be printed (a NUL, a new line, half of a surrogate pair)
    is cut, split or refused by one library or another.
    """
    return (
        bool(name)
        and name.isprintable()
        and not name.startswith(".")
        and not {"/", "\\"} & set(name)
        and name != "zarr.json"
        and len(name.encode()) <= LONGEST
    )


def is_netcdf_name(name: str) -> bool:
    """Whether NetCDF can hold a name too: it begins like a word and ends in no space.

    https://docs.unidata.ucar.edu/netcdf-c/current/programming_notes.html
    """
    first = name[:1]
    word = first.isalnum() or first == "_" or not first.isascii()
    return is_name(name) and word and not name.endswith(" ")


try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None


# A lock on a share of a store is held by the operating system for as long as the
# process lives, and so it is released by a kill. Without it nothing would be wrong,
# only done twice: chunks are written whole, and both processes would write the same.


class Taken(Exception):
    """Somebody else has the lock; the text says who."""


_open: set[int] = set()
"""The files of the locks of this process, from before they are locked."""

_CHANGING = threading.RLock()
"""Held while a file is opened or closed: a process is then not forked."""


def _let_go() -> None:
    """In a process that was forked: closes the files of its parent's locks.

    A fork shares them, so a lock would be held until the last of all children ends,
    also if the parent was killed. To close them there releases nothing here.
    """
    for file in _open:
        os.close(file)
    _open.clear()
    _CHANGING.release()


if fcntl is not None:
    os.register_at_fork(
        before=_CHANGING.acquire,
        after_in_parent=_CHANGING.release,
        after_in_child=_let_go,
    )


@contextlib.contextmanager
def lock(path: Path, shared: bool = False) -> Iterator[None]:
    """Holds the lock kept in the file `path`; raises `Taken` if another has it.

    Any number of processes may hold it `shared`, but then nobody alone.
    """
    if fcntl is None:
        yield
        return
    path.parent.mkdir(exist_ok=True)
    with _locked_file(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX) as file:
        # Not in a file that has another name too, which may be no lock.
        if os.fstat(file).st_nlink == 1:
            os.ftruncate(file, 0)
            os.pwrite(file, _who().encode(), 0)
        yield


@contextlib.contextmanager
def _locked_file(path: Path, how: int) -> Iterator[int]:
    assert fcntl is not None
    with _CHANGING:
        # Not through a link: what it leads to would be truncated by `lock`.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        _open.add(file)
    try:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(file, 1000, 0).decode(errors="replace")
            raise Taken(who or "another process") from None
        except OSError:
            # Some network file systems have no locks.
            pass
        yield file
    finally:
        with _CHANGING:
            # In a process that was forked meanwhile it is closed.
            if file in _open:
                _open.remove(file)
                os.close(file)


def _who() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()} (since {since})"
