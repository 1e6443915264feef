"""The files of a store in memory, as a bucket of an object store keeps them."""

import contextlib
from pathlib import Path

from eqx_pipe._store import Folder
from eqx_pipe._store.disk import Entry


class Bucket(Folder):
    """Keys with bytes: whole or not there, without folders, renames or locks."""

    def __init__(self, keys=()):
        super().__init__(Path("bucket"))
        self.keys = dict(keys)

    def put(self, key, data):
        self.keys[key] = data

    def get(self, key, most=None):
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

    def make(self):
        pass

    def put_new(self, key, data):
        return self.keys.setdefault(key, data) is data

    def entries(self, below):
        start = f"{below}/"
        return {
            key.removeprefix(start): Entry(len(data), 1)
            for key, data in self.keys.items()
            if key.startswith(start)
        }

    def lock(self, name, shared=False, wait=False):
        return contextlib.nullcontext(False)


def opened_by_zarr(files):
    """Return some files as xarray opens them."""
    from zarr.core.buffer import default_buffer_prototype
    from zarr.storage import LocalStore, MemoryStore

    if not isinstance(files, Bucket):
        return LocalStore(files.path)
    make = default_buffer_prototype().buffer.from_bytes
    return MemoryStore({key: make(data) for key, data in files.keys.items()})
