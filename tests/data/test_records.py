"""Host sources: what may be one, and records that do not fit."""

import itertools as it
import os
import pathlib

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

KEY = jr.key(2)


def arrays(size=20):
    return np.arange(2 * size, dtype=np.float32).reshape(size, 2)


def rows(loader):
    batches = list(loader.epoch(loader.init(KEY)))
    return np.concatenate([np.asarray(b) for b in batches])


def test_python_numbers_and_wide_integers():
    loader = ep.data.Loader(
        [(i, 0.5 * i) for i in range(4)], batch_size=4, shuffle=False
    )
    (batch,) = loader.epoch(loader.init(KEY))
    assert batch[0].dtype == jnp.int32 and batch[1].tolist() == [0, 0.5, 1, 1.5]
    too_large = np.asarray([1, 2, 2**40, 3])
    loader = ep.data.Loader(too_large, batch_size=2, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    assert next(iterator).tolist() == [1, 2]
    with pytest.raises(ValueError, match="do not fit into int32.*jax_enable_x64"):
        next(iterator)


def test_records_of_different_form():
    source = [{"x": np.zeros(3)}, {"x": np.zeros(4)}]
    loader = ep.data.Loader(source, batch_size=2, shuffle=False)
    with pytest.raises(ep.StructureError, match=r"record 1 .*`.x`: float64\[4\].*Pad"):
        loader.next(loader.init(KEY))
    loader = ep.data.Loader([{"x": 1}, {"y": 1}], batch_size=2, shuffle=False)
    with pytest.raises(ep.StructureError, match="record 1 .*another form"):
        loader.next(loader.init(KEY))
    loader = ep.data.Loader([{"x": 1}, None], batch_size=2, shuffle=False)
    with pytest.raises(ep.StructureError, match="record 1 .*another form"):
        loader.next(loader.init(KEY))
    loader = ep.data.Loader([1, 2.5], batch_size=2, shuffle=False)
    with pytest.raises(ep.StructureError, match="record 1 .*float64"):
        loader.next(loader.init(KEY))


def test_records_that_are_no_arrays():
    with pytest.raises(TypeError, match="`.name`.*encode them as integers"):
        ep.data.Loader([{"name": "a"}], batch_size=1)
    with pytest.raises(TypeError, match="encode them"):
        ep.data.Loader(["a", "b"], batch_size=1)
    with pytest.raises(TypeError, match="None.*not an array of numbers"):
        ep.data.Loader([None], batch_size=1)


def test_the_dtype_is_that_of_record_0_in_every_batch():
    records = [np.int64(0)] * 4 + [np.float64(4.75)] * 4
    loader = ep.data.Loader(records, batch_size=4, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    next(iterator)
    with pytest.raises(ep.StructureError, match=r"record 4 .*float64\[\].*int32"):
        next(iterator)
    same = [np.int64(1), np.int32(2), 3]
    loader = ep.data.Loader(same, batch_size=3, shuffle=False)
    assert loader.next(loader.init(KEY))[0].tolist() == [1, 2, 3]


def test_floats_that_overflow():
    loader = ep.data.Loader([1.0, np.inf, 1e300], batch_size=3, shuffle=False)
    with pytest.raises(ValueError, match="do not fit into float32"):
        loader.next(loader.init(KEY))


class Few:
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return np.float32(i)


@pytest.mark.parametrize(
    ("found", "what", "wrong"),
    [
        (lambda n: [np.float32(0)] * (n - 1), ValueError, "3 records, and 4 were"),
        (lambda n: {"x": np.zeros(n)}, TypeError, "returned a dict"),
    ],
)
def test_a_source_that_gives_another_number_of_records(found, what, wrong):
    class Many(Few):
        def __getitems__(self, indices):
            return found(len(indices))

    loader = ep.data.Loader(Many(), batch_size=4)
    with pytest.raises(what, match=f"{wrong}.*one record for each"):
        loader.next(loader.init(KEY))


def test_a_table_of_columns_is_told_how_to_be_a_source():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": np.zeros(3, np.float32)})
    with pytest.raises(KeyError) as error:
        ep.data.Loader(table, batch_size=2)
    assert any("ArraySource({name:" in note for note in error.value.__notes__)
    source = ep.data.ArraySource({name: table[name].to_numpy() for name in table})
    assert len(source) == 3


def test_a_grain_dataset():
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.source(list(range(20))).map(
        lambda i: {"x": arrays()[i], "i": i}
    )
    loader = ep.data.Loader(data, ep.at("x", jnp.sqrt), batch_size=6)
    found = list(loader.epoch(loader.init(KEY)))
    order = rows(ep.data.Loader(ep.data.ArraySource(np.arange(20)), batch_size=6))
    assert np.concatenate([b["i"] for b in found]).tolist() == order.tolist()
    x = np.concatenate([b["x"] for b in found])
    assert np.allclose(x, np.sqrt(arrays()[order]))


def test_a_stream_is_no_source(unchecked):
    grain = pytest.importorskip("grain")
    stream = grain.MapDataset.range(20).to_iter_dataset()
    with pytest.raises(TypeError, match="A stream cannot be sought"):
        ep.data.Loader(stream, batch_size=6)


def test_a_hugging_face_dataset():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": arrays().tolist(), "i": list(range(20))})
    loader = ep.data.Loader(data, batch_size=6)
    found = list(loader.epoch(loader.init(KEY)))
    order = rows(ep.data.Loader(ep.data.ArraySource(np.arange(20)), batch_size=6))
    assert np.concatenate([b["i"] for b in found]).tolist() == order.tolist()
    assert np.array_equal(np.concatenate([b["x"] for b in found]), arrays()[order])
    named = data.add_column("name", ["a"] * 20)
    with pytest.raises(TypeError, match="at `.name`.*Leave text"):
        ep.data.Loader(named, batch_size=6)
    ragged = datasets.Dataset.from_dict({"x": [[1, 2], [3]]})
    loader = ep.data.Loader(ragged, batch_size=2)
    with pytest.raises(ep.StructureError, match="record 1 .*Pad or cut"):
        loader.next(loader.init(KEY))


def test_gaps_that_a_transform_of_the_user_fills():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": [1.0, None]})

    def filled(rows):
        return {"x": [-1.0 if x is None else x for x in rows["x"]]}

    data.set_transform(filled)
    loader = ep.data.Loader(data, batch_size=2, shuffle=False)
    assert loader.next(loader.init(KEY))[0]["x"].tolist() == [1, -1]


def test_a_source_is_not_looked_through():
    """A list of many records was once written down whole, for a message."""
    shown = []

    class Record(dict):
        def __repr__(self):
            shown.append(1)
            return "Record"

    records = [Record(x=np.float32(i)) for i in range(100)]
    jax.tree_util.register_pytree_node(
        Record, lambda r: ((r["x"],), None), lambda _, xs: Record(x=xs[0])
    )
    loader = ep.data.Loader(records, batch_size=50, shuffle=False)
    list(loader.epoch(loader.init(KEY)))
    assert not shown
    with pytest.raises(TypeError, match="Wrap a pytree of arrays"):
        ep.data.Loader(tuple(records) * 100, batch_size=50)
    assert len(shown) <= 100


def test_a_source_that_reads_many_at_once():
    calls = []

    class Many:
        def __len__(self):
            return 20

        def __getitem__(self, i):
            return {"x": arrays()[i]}

        def __getitems__(self, indices):
            calls.append(list(indices))
            return [self[i] for i in indices]

    loader = ep.data.Loader(Many(), batch_size=6, shuffle=False)
    found = list(loader.epoch(loader.init(KEY)))
    assert np.array_equal(np.concatenate([b["x"] for b in found]), arrays())
    assert [len(c) for c in calls] == [6, 6, 6, 2]


@pytest.mark.slow
def test_a_memory_map_of_many_gigabytes(tmp_path):
    """Only what is read is touched: the file is sparse, and memory stays small."""
    path, size = tmp_path / "large", 3 * 2**30
    with open(path, "wb") as file:
        file.truncate(2 * size)
    assert path.stat().st_size > 6e9
    data = np.memmap(path, np.int16, "r+", shape=(size // 128, 128))
    marks = {0: 3, size // 256: 5, size // 128 - 1: 7}
    for i, mark in marks.items():
        data[i] = mark
    loader = ep.data.Loader(data, lambda x: x + 1, batch_size=16)
    cursor = loader.init(KEY)
    iterator = loader.epoch(cursor)
    found = [next(iterator) for _ in range(3)]
    iterator.close()
    again = [loader.next(cursor)[0], loader.next(loader.next(cursor)[1])[0]]
    assert all((a == b).all() for a, b in zip(found, again, strict=False))
    assert found[0].dtype == jnp.int16 and (found[0] == 1).all()
    whole = ep.data.Loader(data, batch_size=8, shuffle=False)
    for i, mark in marks.items():
        text = whole.init(KEY).to_json().replace('"position": 0', f'"position": {i}')
        assert (whole.next(ep.data.Cursor.from_json(text))[0][0] == mark).all()
    # More than 2 GB pass through.
    large = ep.data.Loader(data, lambda x: x[:1], batch_size=2**15, shuffle=False)
    iterator, used = large.epoch(large.init(KEY)), resident()
    for batch in it.islice(iterator, 260):
        assert batch.shape == (2**15, 1)
        assert resident() - used < 2**28
    assert iterator.cursor.position * 256 > 2**31
    iterator.close()


def resident():
    """The memory that this process holds, without what the system may drop."""
    try:
        _, pages, shared, *_ = map(
            int, pathlib.Path("/proc/self/statm").read_text().split()
        )
    except OSError:
        pytest.skip("this system does not tell")
    return (pages - shared) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_numpy_array_is_the_array_source(shuffle):
    options = {"batch_size": 6, "shuffle": shuffle}
    device = rows(ep.data.Loader(ep.data.ArraySource(arrays()), **options))
    assert np.array_equal(rows(ep.data.Loader(arrays(), **options)), device)


def test_a_grain_dataset_is_read_a_batch_at_a_time():
    grain = pytest.importorskip("grain")
    calls = []

    class Many(grain.sources.RandomAccessDataSource):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            calls.append(i)
            return arrays()[i]

        def _getitems(self, indices):
            calls.append(list(indices))
            return [arrays()[i] for i in indices]

    data = grain.MapDataset.source(Many()).map(lambda x: 2 * x)
    loader = ep.data.Loader(data, batch_size=8, shuffle=False)
    calls.clear()
    assert np.array_equal(rows(loader), 2 * arrays())
    read = sorted(c for c in calls if isinstance(c, list))
    assert read == [list(range(8)), list(range(8, 16)), list(range(16, 20))]
    assert all(isinstance(c, list) or c == 0 for c in calls)  # record 0: its form


def test_a_grain_dataset_with_gaps():
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.source(list(range(8))).filter(lambda i: i != 3)
    loader = ep.data.Loader(data, batch_size=4, shuffle=False)
    with pytest.raises(ep.StructureError, match="record 3 .*another form"):
        loader.next(loader.init(KEY))
