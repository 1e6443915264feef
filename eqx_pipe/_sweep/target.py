"""A store that the workers of a sweep fill, as long as the sweep runs."""

import contextlib
import dataclasses
import pickle
from collections.abc import Iterator
from typing import NamedTuple

from .._store import PARTS, Files, Filling, disk_errors, open_store


class Target(NamedTuple):
    """A store that workers fill, while the file `token` exists in it."""

    files: Files
    token: str
    function: str
    again: bool

    def is_open(self) -> bool:
        """Return whether this process sees the store, and the sweep is running."""
        with contextlib.suppress(OSError):  # such as a bucket that it may not read
            return self.files.exists(self.token)
        return False

    def filling(self) -> Filling:
        """Return the store to be filled."""
        store = open_store("sweep", self.files)
        store = dataclasses.replace(store, function=self.function)
        # Another worker may compute the same chunk, so read back what is written.
        return Filling(store, again=self.again, has_locks=False)


@contextlib.contextmanager
def open_to_workers(filling: Filling) -> Iterator[Target | None]:
    """Put the token of a sweep, by which workers know that they see its store.

    If a kill leaves it in a folder, the next sweep removes it. A bucket in memory does
    not travel: then workers return the values.
    """
    store, files = filling.store, filling.store.files
    try:
        pickle.dumps(files)
    except Exception:
        yield None
        return
    token = f"{PARTS}/{files.new_id()}"
    with disk_errors(store.path, "take a chunk"):
        files.put(token, b"")
    try:
        yield Target(files, token, store.function, filling.again)
    finally:
        with contextlib.suppress(OSError):
            files.remove(token)
