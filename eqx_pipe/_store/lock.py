"""A lock on a share of a store, so that two processes do not do the same work.

It is held by the operating system for as long as the process lives, and so it is
released by a kill. Without it nothing would be wrong, only done twice: chunks are
written whole, and both processes would write the same.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None


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
    with _opened(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX) as file:
        # Not in a file that has another name too, which may be no lock.
        if os.fstat(file).st_nlink == 1:
            os.ftruncate(file, 0)
            os.pwrite(file, _who().encode(), 0)
        yield


@contextlib.contextmanager
def _opened(path: Path, how: int) -> Iterator[int]:
    assert fcntl is not None
    with _CHANGING:
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
