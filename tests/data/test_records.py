"""Host sources: what may be one, and records that do not fit."""

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
    told = "record 2 of .* do not fit into int32, such as 1099511627776.*jax_enable_x64"
    with pytest.raises(ValueError, match=told):
        next(iterator)


class Counted:
    """Records that are read one by one, or many at once."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return {"id": {"a": 10**10 * (i == 4)}, "x": np.float32(i)}


class Many(Counted):
    def __getitems__(self, at):
        return [self[i] for i in at]


class Columns(Counted):
    def __getitems__(self, at):
        return {
            "id": {"a": 10**10 * (np.asarray(at) == 4)},
            "x": np.zeros(len(at), np.float32),
        }


@pytest.mark.parametrize("kind", [Counted, Many, Columns])
def test_a_number_that_does_not_fit_is_named_with_its_record(kind):
    loader = ep.data.Loader(kind(), batch_size=3, shuffle=True)
    with pytest.raises(ValueError, match="record 4 .* at `.id.a` .*10000000000"):
        list(loader.epoch(loader.init(KEY)))


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


class Rows:
    """Records of an array, read one by one or a batch at a time."""

    def __init__(self, array, many=None):
        self.array = array
        if many is not None:
            self.__getitems__ = many

    def __len__(self):
        return len(self.array)

    def __getitem__(self, i):
        return self.array[i : i + 1]


def as_list(array):
    return [array[i : i + 1] for i in range(len(array))]


SOURCES = {
    "device": ep.data.ArraySource,
    "device, tree": lambda array: ep.data.ArraySource({"x": array}),
    "host": lambda array: array,
    "host, tree": lambda array: {"x": array},
    "list": as_list,
    "one by one": Rows,
    "a list at a time": lambda array: Rows(
        array, lambda at: [array[i : i + 1] for i in at]
    ),
    "stacked": lambda array: Rows(array, lambda at: array[np.asarray(at)][:, None]),
}


def whole(source):
    loader = ep.data.Loader(source, batch_size=4, shuffle=False)
    (leaf,) = jax.tree.leaves(loader.next(loader.init(KEY))[0])
    return leaf.reshape(-1)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", [">f4", ">i8", ">c8", ">f2"])
def test_the_other_byte_order(source, dtype):
    found = whole(SOURCES[source](np.arange(4).astype(dtype)))
    assert found.tolist() == [0, 1, 2, 3] and found.dtype.kind == dtype[1]


REFUSED = {
    "long double": np.arange(4, dtype=np.longdouble),
    "complex long double": np.arange(4, dtype=np.clongdouble),
    "dates": np.arange(4).astype("M8[s]"),
    "durations": np.arange(4).astype("m8[s]"),
    "text": np.arange(4).astype("U1"),
    "bytes": np.arange(4).astype("S1"),
    "raw bytes": np.zeros(4, "V4"),
    "structured": np.zeros(4, [("a", np.float32)]),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", REFUSED)
def test_numbers_that_jax_does_not_have(source, kind):
    if REFUSED[kind].dtype in (np.float64, np.complex128):
        pytest.skip("a long double is a double on this machine")
    with pytest.raises(TypeError, match="long doubles by .*structured array as a dict"):
        whole(SOURCES[source](REFUSED[kind]))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mask", [[0, 1, 0, 1], False])
def test_masked_arrays_keep_their_mask_or_raise(source, mask):
    array = np.ma.masked_array(np.arange(4.0), mask)
    with pytest.raises(ValueError, match="masked array.*getmaskarray"):
        whole(SOURCES[source](array))


def test_a_masked_number():
    array = np.ma.masked_array(np.arange(4.0), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="record 1 is a masked array.*getmaskarray"):
        whole([array[i] for i in range(4)])


@pytest.mark.parametrize("source", ["device", "list", "matrix", "host, tree"])
def test_sparse_matrices(source):
    sparse = pytest.importorskip("jax.experimental.sparse")
    matrix = sparse.BCOO.fromdense(jnp.eye(4))
    row = sparse.BCOO.fromdense(jnp.ones(3))
    make = {
        "device": lambda: ep.data.ArraySource({"x": matrix}),
        "list": lambda: [{"x": row}] * 4,
        "matrix": lambda: matrix,
        "host, tree": lambda: {"x": matrix, "y": np.zeros(4)},
    }[source]
    with pytest.raises(TypeError, match="is a sparse BCOO.*make the matrix in `pipe`"):
        whole(make())
    dense = ep.data.ArraySource(matrix.todense())
    loader = ep.data.Loader(
        dense, lambda x: sparse.BCOO.fromdense(x, nse=1), batch_size=4, shuffle=False
    )
    assert np.array_equal(loader.next(loader.init(KEY))[0].todense(), np.eye(4))


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
