"""The folder of a store: its path, and what may lie in it."""

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._errors import describe_value, type_error, value_error


def as_path(function: str, store: Any) -> Path:
    """The argument `store` as a path on this machine's file systems."""
    if not isinstance(store, str | os.PathLike) or isinstance(store, bytes):
        raise type_error(
            function,
            f"`store` is {describe_value(store)}.",
            "Give the path of a folder: `store='runs.zarr'`.",
        )
    if "://" in str(store) or "\0" in str(store) or not str(store):
        raise value_error(
            function,
            f"`store` is {describe_value(str(store))}.",
            "Give the path of a folder on a disk, also a shared one; copy the "
            "finished store to where it shall be.",
        )
    return Path(os.path.expanduser(store)).absolute()


def as_zarr(path: Path) -> Any:
    """A folder as Zarr and xarray want it.

    They read a path that is a text as a URL: `#`, `?` and `;` end it.
    """
    from zarr.storage import LocalStore

    return LocalStore(path)


def is_vacant(path: Path) -> bool:
    """Whether a store can be made at `path`: nothing there, or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def check_no_links(function: str, path: Path) -> None:
    """Raises a `ValueError` if there is a link in a store.

    What is written to it would land elsewhere. The path of the store may have links.
    """
    link = next(_links(path), None)
    if link is not None:
        raise value_error(
            function,
            f"there is a link in the store `{path}`: `{link.path}` leads to "
            f"`{os.readlink(link.path)}`.",
            "A store that is filled has no links, which would lead what is written "
            "elsewhere: put in its place what it leads to (`cp -rL` copies a store "
            "so), or delete it.",
        )


def _links(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    # Nothing is asked of a file but its kind, which comes with its name.
    folders: list[Path | str] = [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield entry
                elif entry.is_dir():
                    folders.append(entry.path)


_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
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
