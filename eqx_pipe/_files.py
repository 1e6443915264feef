"""Paths from users, checked before anything is written, and the size of the memory."""

import contextlib
import math
import os
from pathlib import Path

from ._errors import describe_value, message, type_error, value_error


def as_path(function: str, path: object, argument: str = "path") -> Path:
    """Return the absolute path; raise unless it is a path on this machine."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        wrong = f"`{argument}` is {describe_value(path)}."
        cure = "Give a path as a text or a `pathlib.Path`."
        raise type_error(function, wrong, cure)
    # A URL would become a folder named `s3:` in the current folder.
    if "://" in text or "\0" in text or not text:
        wrong = f"`{argument}` is {describe_value(text)}."
        cure = "Give a path on a disk, also a shared one; finished files can be copied "
        cure += "to other places."
        raise value_error(function, wrong, cure)
    try:
        path = Path(os.path.expanduser(text)).absolute()
        if ".." in path.parts:
            # The system follows `..` only out of a folder that exists.
            up = len(path.parts) - path.parts[::-1].index("..")
            path = Path(os.path.realpath(Path(*path.parts[:up])), *path.parts[up:])
        return path
    except OSError as error:
        wrong = f"`{argument}` is {text!r}, relative to a current folder that does not "
        wrong += f"exist ({error})."
        cure = "Give an absolute path, or change to a folder that exists."
        raise FileNotFoundError(message(function, wrong, cure)) from error


# The limits of a container, for both versions of Linux's control groups. A file with
# "max" sets no limit.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_bytes() -> float:
    """Return the bytes of memory available to this process; infinity if unknown."""
    available = math.inf
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows
        available = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            available = min(available, float(limit.read_text()))
    return available
