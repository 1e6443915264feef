"""Sweeps that the tests of stores, parts and executors share."""

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from support.sweeps import close as close
from support.sweeps import same as same

import eqx_pipe as ep
from eqx_pipe._store import Folder, format, open_store

SECONDS = "EQX_PIPE_TESTS_SECONDS_A_BATCH"
"""The variable with the seconds that a batch of a slow function takes."""

KEY = jr.key(3)
WEIGHT = jnp.linspace(-1, 1, 6).reshape(2, 3)


def one_device():
    """So that chunks are small: they are filled on all devices at once."""
    return jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])


def plain(p):
    total = sum(jnp.sum(jnp.sin(x)) for x in jtu.tree_leaves(p) if hasattr(x, "dtype"))
    return {"y": jnp.stack([total, total / 3]) @ WEIGHT, "n": {"k": total > 0}}


def noise(p, key):
    total = plain(p)["y"]
    return (total + jr.normal(key, (3,)), jr.fold_in(key, 1), jnp.bfloat16(total[0]))


def bare(p):
    return plain(p)["y"][0].astype(jnp.complex64) * 1j


def typed(p):
    """Return other containers, and leaves of unusual sizes and dtypes."""
    return [jnp.int8(3), (jnp.zeros((0, 2)), None), plain(p)["y"][:, None] > 0]


FUNCTIONS = [plain, noise, bare, typed]


def some_space(i):
    return [
        lambda: ep.Space({"b": ep.Linspace(0, 1, 5), "a": ep.Values([1.0, 2.0, 3.0])}),
        lambda: ep.Space([ep.Linspace(0, 1, 7), ep.Geomspace(1, 9, 7), "x"], "zip"),
        lambda: ep.Space([ep.Linspace(0, 1, 7), ep.Values(np.eye(3))])[18:1:-3],
        lambda: ep.Space(
            {"w": ep.Static(["a", "bb"]), "x": ep.Linspace(0, 1, 3), "m": WEIGHT}
        ),
        lambda: ep.Space(ep.Linspace(0, 2, 1)),
        lambda: ep.Space([ep.Values([1.0, 2.0], dim="d"), ep.Linspace(0, 1, 11)]),
    ][i]()


SPACES = 6


def stored(path):
    """Return the store at a path, as the library itself sees it."""
    return open_store("sweep", Folder(path))


def edit(path, change):
    """Change the record of a store, with the checksum of a record that is whole."""
    root, record = format.read_root("sweep", Folder(path))
    change(record)
    (path / "zarr.json").write_bytes(format.sealed(root, record))


def chunk_file(store, name, number):
    """Return the file of a chunk of a variable, or of the status."""
    key = store._key(name, number)
    inner = [variable.inner for variable in store.variables if variable.name == name]
    return store.files.path / (key + ".0" * len(inner[0] if inner else ()))


def odd(store):
    """Return the numbers of the chunks that have failed or missing rows."""
    return np.flatnonzero(store.listed().odd).tolist()


def discard(store, number):
    """Remove the status file of a chunk, so that it is missing."""
    chunk_file(store, store.record["status"], number).unlink()


def written(path):
    """Return the chunks that are there, and when each was written."""
    return {n: when for n, when in enumerate(stored(path).listed().when) if when}


def same_dataset(a, b):
    """Raise unless two datasets agree in all but when and how they were made."""
    assert a.load().drop_attrs().identical(b.load().drop_attrs())


def close_dataset(a, b):
    """Raise unless two datasets agree: floats to rounding, attributes not at all."""
    floats = [name for name, v in a.variables.items() if v.dtype.kind == "f"]
    same_dataset(a.drop_vars(floats), b.drop_vars(floats))
    for name in floats:
        assert a[name].dims == b[name].dims
        close(a[name].values, b[name].values)
