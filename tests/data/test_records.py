"""Host sources: what may be one, and records that do not fit."""

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


def test_the_dtype_is_that_of_record_0_in_every_batch():
    records = [np.int64(0)] * 4 + [np.float64(4.75)] * 4
    loader = ep.data.Loader(records, batch_size=4, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    next(iterator)
    with pytest.raises(ep.StructureError, match=r"record 4 .*int32\[\].*float32"):
        next(iterator)
    same = [np.int64(1), np.int32(2), 3]
    loader = ep.data.Loader(same, batch_size=3, shuffle=False)
    assert loader.next(loader.init(KEY))[0].tolist() == [1, 2, 3]


def test_floats_that_overflow():
    loader = ep.data.Loader([1.0, np.inf, 1e300], batch_size=3, shuffle=False)
    with pytest.raises(ValueError, match="do not fit into float32"):
        loader.next(loader.init(KEY))


def test_a_table_of_columns_is_told_how_to_be_a_source():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": np.zeros(3, np.float32)})
    with pytest.raises(KeyError) as error:
        ep.data.Loader(table, batch_size=2)
    assert any("ArraySource({name:" in note for note in error.value.__notes__)
    source = ep.data.ArraySource({name: table[name].to_numpy() for name in table})
    assert len(source) == 3


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
