"""A lock on a share of a store, so that two processes do not do the same work.

It is held by the operating system for as long as the process lives, and so it is
released by a kill. Without it nothing would be wrong, only done twice: chunks are
written whole, and both processes would write the same.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None


class Taken(Exception):
    """Somebody else has the lock; the text says who."""


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
        os.ftruncate(file, 0)
        os.pwrite(file, _who().encode(), 0)
        yield


@contextlib.contextmanager
def _opened(path: Path, how: int) -> Iterator[int]:
    assert fcntl is not None
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
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
        os.close(file)


def _who() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()} (since {since})"
