"""Arrays on the host as sources, and sources that give a batch stacked."""

import functools as ft
import tracemalloc

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

KEY = jr.key(2)


class Few:
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return np.float32(i)


def images(size=40):
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (size, 3), np.uint8),
        "label": np.arange(size),
    }


def on_disk(path, kind, data):
    """Return the arrays as a memory map, or in a file of Zarr or HDF5."""
    if kind == "memory map":
        for name, array in data.items():
            np.save(path / f"{name}.npy", array)
        return {k: np.load(path / f"{k}.npy", mmap_mode="r") for k in data}
    library = pytest.importorskip(kind)
    if kind == "h5py":
        file = library.File(path / "data.h5", "w")
        return {k: file.create_dataset(k, data=v) for k, v in data.items()}
    group = library.open_group(path / "data.zarr", mode="w")
    for name, array in data.items():
        made = group.create_array(
            name, shape=array.shape, dtype=array.dtype, chunks=(3, *array.shape[1:])
        )
        made[:] = array
    return {k: group[k] for k in data}


def batches_of(source):
    """Return batches from the beginning and later, in both orders."""
    found = []
    for shuffle in (True, False):
        loader = ep.data.Loader(source, batch_size=7, shuffle=shuffle)
        _, cursor = loader.next(loader.init(KEY))
        found += [*loader.epoch(loader.init(KEY)), *loader.epoch(cursor)]
        found.append(loader.next(loader.next(cursor)[1])[0])
    return jax.tree.leaves(found)


@ft.cache
def expected():
    return batches_of(ep.data.ArraySource(images()))


@pytest.mark.parametrize("kind", ["memory map", "zarr", "h5py"])
def test_arrays_on_the_host_are_the_array_source(kind, tmp_path):
    arrays = on_disk(tmp_path, kind, images())
    pairs = zip(batches_of(arrays), expected(), strict=True)
    assert all(a.dtype == b.dtype and (a == b).all() for a, b in pairs)


def test_a_batch_of_arrays_is_no_view_of_them():
    data = {"x": np.zeros((64, 32), np.float32), "y": jnp.zeros(64)}
    loader = ep.data.Loader(data, batch_size=32, shuffle=False)
    found = list(loader.epoch(loader.init(KEY)))
    data["x"][:] = 1
    assert not any(b["x"].any() for b in found) and len(found) == 2


@pytest.mark.parametrize("view", [np.s_[:], np.s_[::2], np.s_[:, :2]])
def test_a_view_of_a_memory_map_is_not_copied_whole(view, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.arange(4096.0 * 4).reshape(4096, 4))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")[view]
    loader = ep.data.Loader(x, batch_size=8)
    reader, ids = loader.source.source, np.arange(8)[::-1]
    tracemalloc.start()
    reader.take(ids)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < x.nbytes / 8
    batch, _ = loader.next(loader.init(KEY))
    rows = {tuple(row) for row in x.tolist()}
    assert all(tuple(row) in rows for row in batch.tolist())


class Stacked(Few):
    """Gives the records of a batch in one pytree."""

    def __init__(self, stack):
        self.stack = stack

    def __getitem__(self, i):
        return {"x": np.full(2, i, np.float32), "i": i}

    def __getitems__(self, indices):
        assert all(type(i) is int for i in indices)
        return self.stack([self[i] for i in indices])


def together(records):
    return {"x": np.stack([r["x"] for r in records]), "i": [r["i"] for r in records]}


@pytest.mark.parametrize("shuffle", [True, False])
def test_records_that_come_stacked(shuffle):
    batches = []
    kinds = [
        list,
        tuple,
        iter,
        lambda rs: together(rs) | {"i": np.asarray([r["i"] for r in rs])},
        lambda rs: jax.tree.map(lambda *xs: jnp.stack(xs), *rs),
    ]
    for stack in kinds:
        loader = ep.data.Loader(Stacked(stack), batch_size=6, shuffle=shuffle)
        found = list(loader.epoch(loader.init(KEY)))
        batches.append(jax.tree.map(lambda x: (x.dtype, x.tolist()), found))
    assert all(found == batches[0] for found in batches)


def test_a_record_of_a_tuple_or_a_list_can_come_stacked():
    """Two records and one of two arrays are told apart by their structure."""
    for kind in (tuple, list):

        class Pairs(Few):
            def __getitem__(self, i):
                return kind([np.float32(i), np.float32(-i)])  # noqa: B023

            def __getitems__(self, indices):
                at = np.asarray(indices, np.float32)
                return kind([at, -at])  # noqa: B023

        loader = ep.data.Loader(Pairs(), batch_size=2, shuffle=False)
        x, y = loader.next(loader.init(KEY))[0]
        assert x.tolist() == [0, 1] and y.tolist() == [0, -1]


def test_records_that_come_stacked_and_do_not_fit():
    def cut(records):
        return jax.tree.map(lambda *xs: np.stack(xs[1:]), *records)

    loader = ep.data.Loader(Stacked(cut), batch_size=4)
    with pytest.raises(
        ValueError, match="3 records, but 4 were requested.*hold them all"
    ):
        loader.next(loader.init(KEY))
    loader = ep.data.Loader(Stacked(together), batch_size=4)
    with pytest.raises(ValueError, match="returned 2 records, but 4 were requested"):
        loader.next(loader.init(KEY))
