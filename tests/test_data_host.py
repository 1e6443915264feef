"""Host sources: what may be one, reading ahead, and errors."""

import gc
import itertools as it
import threading
import time

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


def ours():
    """The threads that read ahead and still live."""
    return [t for t in threading.enumerate() if t.name.startswith("eqx_pipe-read")]


def wait_for(happened):
    """Waits for what must happen sooner or later."""
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_threads():
    """Waits until all have ended; those that read may finish what they do."""
    gc.collect()
    wait_for(lambda: not ours())


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_numpy_array_is_the_array_source(shuffle):
    options = {"batch_size": 6, "shuffle": shuffle}
    device = rows(ep.Loader(ep.ArraySource(arrays()), **options))
    assert np.array_equal(rows(ep.Loader(arrays(), **options)), device)


def test_a_memory_map_of_many_gigabytes(tmp_path):
    """Only what is read is touched: the file is sparse."""
    path, size = tmp_path / "large", 3 * 2**30
    with open(path, "wb") as file:
        file.truncate(2 * size)
    data = np.memmap(path, np.int16, "r+", shape=(size // 128, 128))
    data[-1] = 7
    loader = ep.Loader(data, lambda x: x + 1, batch_size=16)
    cursor = loader.init(KEY)
    iterator = loader.epoch(cursor)
    found = [next(iterator) for _ in range(3)]
    iterator.close()
    again = [loader.next(cursor)[0], loader.next(loader.next(cursor)[1])[0]]
    assert all((a == b).all() for a, b in zip(found, again, strict=False))
    assert found[0].dtype == jnp.int16 and (found[0] == 1).all()
    whole = ep.Loader(ep.windows(data, 2, 2), batch_size=4, shuffle=False)
    _, end = whole.next(whole.init(KEY))
    assert end.position == 4
    last = ep.windows(data, 2, 2)[size // 256 - 1]
    assert (last[0] == 0).all() and (last[1] == 7).all()
    wait_for_threads()


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

    loader = ep.Loader(Many(), batch_size=6, shuffle=False)
    found = list(loader.epoch(loader.init(KEY)))
    assert np.array_equal(np.concatenate([b["x"] for b in found]), arrays())
    assert [len(c) for c in calls] == [6, 6, 6, 2]


def test_python_numbers_and_wide_integers():
    loader = ep.Loader([(i, 0.5 * i) for i in range(4)], batch_size=4, shuffle=False)
    (batch,) = loader.epoch(loader.init(KEY))
    assert batch[0].dtype == jnp.int32 and batch[1].tolist() == [0, 0.5, 1, 1.5]
    too_large = np.asarray([1, 2, 2**40, 3])
    loader = ep.Loader(too_large, batch_size=2, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    assert next(iterator).tolist() == [1, 2]
    with pytest.raises(ValueError, match="do not fit into int32.*jax_enable_x64"):
        next(iterator)


def test_a_grain_dataset():
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.source(list(range(20))).map(
        lambda i: {"x": arrays()[i], "i": i}
    )
    loader = ep.Loader(data, ep.at("x", jnp.sqrt), batch_size=6)
    found = list(loader.epoch(loader.init(KEY)))
    order = rows(ep.Loader(ep.ArraySource(np.arange(20)), batch_size=6))
    assert np.concatenate([b["i"] for b in found]).tolist() == order.tolist()
    x = np.concatenate([b["x"] for b in found])
    assert np.allclose(x, np.sqrt(arrays()[order]))
    with pytest.raises(TypeError, match="A stream cannot be sought"):
        ep.Loader(data.to_iter_dataset(), batch_size=6)


def test_a_hugging_face_dataset():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": arrays().tolist(), "i": list(range(20))})
    loader = ep.Loader(data, batch_size=6)
    found = list(loader.epoch(loader.init(KEY)))
    order = rows(ep.Loader(ep.ArraySource(np.arange(20)), batch_size=6))
    assert np.concatenate([b["i"] for b in found]).tolist() == order.tolist()
    assert np.array_equal(np.concatenate([b["x"] for b in found]), arrays()[order])
    named = data.add_column("name", ["a"] * 20)
    with pytest.raises(TypeError, match="at `.name`.*Leave text"):
        ep.Loader(named, batch_size=6)
    ragged = datasets.Dataset.from_dict({"x": [[1, 2], [3]]})
    loader = ep.Loader(ragged, batch_size=2)
    with pytest.raises(ep.StructureError, match="record 1 .*Pad or cut"):
        loader.next(loader.init(KEY))


class Slow:
    """A source that counts what is asked of it."""

    def __init__(self, size=1000, fails_at=None, seconds=0.0):
        self.size, self.fails_at, self.seconds = size, fails_at, seconds
        self.read = []

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        self.read.append(i)
        if i == self.fails_at:
            raise OSError("the disk is gone")
        time.sleep(self.seconds)
        return np.float32(i)


def test_it_reads_ahead_but_not_far():
    source = Slow()
    loader = ep.Loader(source, batch_size=10, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    next(iterator)
    wait_for(lambda: len(source.read) >= 20)
    time.sleep(0.1)
    assert len(source.read) <= 50
    del iterator
    wait_for_threads()


def test_it_reads_while_nobody_asks():
    source = Slow(50)
    loader = ep.Loader(source, batch_size=10, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    wait_for(lambda: len(source.read) >= 20)
    assert len(list(iterator)) == 5


def test_an_error_names_the_record_and_ends_the_threads():
    for source in (Slow(fails_at=27), ep.windows(Slow(fails_at=27), 1)):
        loader = ep.Loader(source, batch_size=10, shuffle=False)
        iterator = loader.epoch(loader.init(KEY))
        assert len(list(it.islice(iterator, 2))) == 2
        with pytest.raises(OSError, match="the disk is gone") as error:
            next(iterator)
        assert any("at record 27" in note for note in error.value.__notes__)
        assert iterator.cursor.position == 20
        assert list(iterator) == []
        wait_for_threads()


def test_an_error_in_next_names_the_record():
    loader = ep.Loader(Slow(fails_at=3), batch_size=10, shuffle=False)
    with pytest.raises(OSError) as error:
        loader.next(loader.init(KEY))
    assert "record 3" in error.value.__notes__[0]


def test_an_error_of_a_source_that_reads_many_at_once_names_the_record():
    class Many(Slow):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    loader = ep.Loader(Many(fails_at=13), batch_size=10, shuffle=False)
    _, cursor = loader.next(loader.init(KEY))
    with pytest.raises(OSError) as error:
        loader.next(cursor)
    assert "record 13" in error.value.__notes__[0]


def test_ctrl_c_while_waiting_ends_the_threads(monkeypatch):
    import concurrent.futures

    loader = ep.Loader(Slow(seconds=0.001), batch_size=10, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    next(iterator)

    def interrupted(self, timeout=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(concurrent.futures.Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    wait_for_threads()


def test_an_abandoned_iterator_ends_its_threads():
    loader = ep.Loader(Slow(), batch_size=10)
    for _ in loader.epoch(loader.init(KEY)):
        break
    wait_for_threads()


def test_sources_that_may_not_bear_it_are_read_by_one_thread_at_a_time():
    inside, most = [0], [0]

    class Fragile(Slow):
        def __getitem__(self, i):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.0005)
            inside[0] -= 1
            return np.float32(i)

    loader = ep.Loader(Fragile(60), batch_size=10)
    pair = loader.epoch(loader.init(KEY)), loader.epoch(loader.init(KEY))
    assert all((a == b).all() for a, b in zip(*pair, strict=True))
    assert most[0] == 1


def test_nothing_is_traced_again_by_another_epoch_or_loader():
    traces = []

    def pipe(x):
        traces.append(1)
        return x + 1

    loader = ep.Loader(arrays(), pipe, batch_size=10)
    cursor = loader.init(KEY)
    list(loader.epoch(cursor)), list(loader.epoch(cursor.next_epoch()))
    other = ep.Loader(arrays(), pipe, batch_size=10)
    list(other.epoch(other.init(jr.key(9))))
    assert len(traces) == 1
    device = ep.Loader(ep.ArraySource(arrays()), pipe, batch_size=6)
    cursor = device.init(KEY)
    list(device.epoch(cursor)), list(device.epoch(cursor.next_epoch()))
    assert len(traces) == 3  # and once for the short last batch
    list(device.epoch(cursor))
    assert len(traces) == 3


def test_other_parameters_are_no_other_program():
    traces = []

    def scaled(scale):
        return ep.weighted(count, weights=jnp.full(1, scale))

    def count(x):
        traces.append(1)
        return x

    for scale in (1.0, 2.0):
        loader = ep.Loader(ep.ArraySource(arrays()), scaled(scale), batch_size=10)
        batch, _ = loader.next(loader.init(KEY))
        assert jnp.allclose(batch[0, 0] % (2 * scale), 0)
    assert len(traces) == 1


# Records that do not fit.


def test_records_of_different_form():
    source = [{"x": np.zeros(3)}, {"x": np.zeros(4)}]
    loader = ep.Loader(source, batch_size=2, shuffle=False)
    with pytest.raises(ep.StructureError, match=r"record 1 .*`.x`: float64\[4\].*Pad"):
        loader.next(loader.init(KEY))
    loader = ep.Loader([{"x": 1}, {"y": 1}], batch_size=2, shuffle=False)
    with pytest.raises(ep.StructureError, match="record 1 .*another form"):
        loader.next(loader.init(KEY))
    loader = ep.Loader([{"x": 1}, None], batch_size=2, shuffle=False)
    with pytest.raises(ep.StructureError, match="record 1 .*another form"):
        loader.next(loader.init(KEY))
    loader = ep.Loader([1, 2.5], batch_size=2, shuffle=False)
    with pytest.raises(ep.StructureError, match="record 1 .*float64"):
        loader.next(loader.init(KEY))


def test_records_that_are_no_arrays():
    with pytest.raises(TypeError, match="`.name`.*encode them as integers"):
        ep.Loader([{"name": "a"}], batch_size=1)
    with pytest.raises(TypeError, match="encode them"):
        ep.Loader(["a", "b"], batch_size=1)
    with pytest.raises(TypeError, match="holds no arrays"):
        ep.Loader([None], batch_size=1)


def test_a_source_that_fails_at_its_first_record():
    with pytest.raises(OSError) as error:
        ep.Loader(Slow(fails_at=0), batch_size=1)
    assert "record 0" in error.value.__notes__[0]


class Ends(Slow):
    """A source that takes `StopIteration` for a way to say that it is through."""

    def __getitem__(self, i):
        if i >= 5:
            raise StopIteration
        return np.float32(i)


class EndsMany(Ends):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


@pytest.mark.parametrize("kind", [Ends, EndsMany])
def test_a_source_that_ends_too_soon(kind):
    loader = ep.Loader(kind(12), batch_size=4, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    next(iterator)
    with pytest.raises(RuntimeError, match="`StopIteration`.*smaller length") as error:
        list(iterator)
    text = "".join([str(error.value), *getattr(error.value, "__notes__", [])])
    assert "record 5" in text
    with pytest.raises(RuntimeError, match="`StopIteration`"):
        loader.next(iterator.cursor)
    with pytest.raises(RuntimeError, match="`StopIteration`"):
        ep.reduce_loader(loader, loader.init(KEY), ep.Mean())
    wait_for_threads()


def test_the_dtype_is_that_of_record_0_in_every_batch():
    records = [np.int64(0)] * 4 + [np.float64(4.75)] * 4
    loader = ep.Loader(records, batch_size=4, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    next(iterator)
    with pytest.raises(ep.StructureError, match=r"record 4 .*float64\[\].*int32"):
        next(iterator)
    same = [np.int64(1), np.int32(2), 3]
    loader = ep.Loader(same, batch_size=3, shuffle=False)
    assert loader.next(loader.init(KEY))[0].tolist() == [1, 2, 3]


def test_floats_that_overflow():
    loader = ep.Loader([1.0, np.inf, 1e300], batch_size=3, shuffle=False)
    with pytest.raises(ValueError, match="do not fit into float32") as error:
        loader.next(loader.init(KEY))
    assert "record 2" in error.value.__notes__[0]


@pytest.mark.parametrize("format", [None, "numpy"])
def test_a_hugging_face_column_with_gaps(format):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"i": [1, 2, None, 4]}).with_format(format)
    loader = ep.Loader(data, batch_size=4, shuffle=False)
    with pytest.raises(ep.StructureError, match="record 2 .*another form"):
        loader.next(loader.init(KEY))


@pytest.mark.parametrize(
    ("found", "what", "wrong"),
    [
        (lambda n: [np.float32(0)] * (n - 1), ValueError, "3 records, and 4 were"),
        (lambda n: {"x": np.zeros(n)}, TypeError, "returned a dict"),
    ],
)
def test_a_source_that_gives_another_number_of_records(found, what, wrong):
    class Many(Slow):
        def __getitems__(self, indices):
            return found(len(indices))

    loader = ep.Loader(Many(), batch_size=4)
    with pytest.raises(what, match=f"{wrong}.*one record for each"):
        loader.next(loader.init(KEY))


def test_a_table_of_columns_is_told_how_to_be_a_source():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": np.zeros(3, np.float32)})
    with pytest.raises(KeyError) as error:
        ep.Loader(table, batch_size=2)
    assert any("ArraySource({name:" in note for note in error.value.__notes__)
    source = ep.ArraySource({name: table[name].to_numpy() for name in table})
    assert len(source) == 3
