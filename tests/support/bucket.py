"""The files of a store in memory, as a bucket of an object store keeps them."""

import contextlib
from pathlib import Path

from eqx_pipe._sweep.store import Folder


class Bucket(Folder):
    """Keys with bytes: whole or not there, without folders, renames or locks."""

    def __init__(self, keys=()):
        super().__init__(Path("bucket"))
        self.keys = dict(keys)

    def put(self, key, data):
        self.keys[key] = data

    def get(self, key):
        if key not in self.keys:
            raise FileNotFoundError(key)
        return self.keys[key]

    def remove(self, key):
        self.keys.pop(key, None)

    def exists(self, key):
        return key in self.keys

    def names(self, below=""):
        start = f"{below}/" if below else ""
        return {
            key.removeprefix(start).partition("/")[0]
            for key in self.keys
            if key.startswith(start)
        }

    def times(self, below):
        return dict.fromkeys(self.names(below), 1)

    def lock(self, name, shared=False, wait=False):
        return contextlib.nullcontext(False)


class Stepped(Folder):
    """Files of which each change, and each read if asked, calls `step` first."""

    def __init__(self, files, step, reads=False):
        super().__init__(files.path)
        self.files, self.step, self.reads = files, step, reads
        self.exists, self.names, self.times = files.exists, files.names, files.times

    def put(self, key, data):
        self.step()
        self.files.put(key, data)

    def get(self, key):
        if self.reads:
            self.step()
        return self.files.get(key)

    def remove(self, key):
        self.step()
        self.files.remove(key)


def opened_by_zarr(files):
    """Return some files as xarray opens them."""
    from zarr.core.buffer import default_buffer_prototype
    from zarr.storage import LocalStore, MemoryStore

    if not isinstance(files, Bucket):
        return LocalStore(files.path)
    make = default_buffer_prototype().buffer.from_bytes
    return MemoryStore({key: make(data) for key, data in files.keys.items()})
