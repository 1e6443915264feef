"""The files of a store in memory, as a bucket of an object store keeps them."""

import contextlib

from eqx_pipe._sweep.store import Folder


class Bucket:
    """Keys with bytes: whole or not there, without folders, renames or locks."""

    def __init__(self, keys=()):
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

    def names(self, below):
        start = f"{below}/" if below else ""
        found = {k[len(start) :] for k in self.keys if k.startswith(start)}
        return {name for name in found if not name.startswith(".")}

    def times(self, below):
        return dict.fromkeys(self.names(below), 0)

    def parts(self):
        return set()

    def lock(self, name, shared=False):
        return contextlib.nullcontext(False)

    def place(self, key=""):
        return f"bucket/{key}"


class Stepped:
    """Files of which each change, and each read if asked, calls `step` first."""

    def __init__(self, files, step, reads=False):
        self.files, self.step, self.reads = files, step, reads

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

    def exists(self, key):
        return self.files.exists(key)

    def names(self, below):
        return self.files.names(below)

    def times(self, below):
        return self.files.times(below)

    def parts(self):
        return self.files.parts()

    def lock(self, name, shared=False):
        return self.files.lock(name, shared)

    def place(self, key=""):
        return self.files.place(key)


def opened_by_zarr(files):
    """Return some files as xarray opens them."""
    from zarr.core.buffer import default_buffer_prototype
    from zarr.storage import LocalStore, MemoryStore

    if isinstance(files, Folder):
        return LocalStore(files.path)

    make = default_buffer_prototype().buffer.from_bytes
    return MemoryStore({key: make(data) for key, data in files.keys.items()})
