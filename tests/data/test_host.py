"""Host sources: reading ahead by threads, and errors."""

import gc
import itertools as it
import threading
import time

import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

KEY = jr.key(2)


def ours():
    """Return the threads that read ahead and still live."""
    return [t for t in threading.enumerate() if t.name.startswith("eqx_pipe-read")]


def wait_for(happened):
    """Wait for what must happen sooner or later."""
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_threads():
    """Wait until all have ended; those that read may finish what they do."""
    gc.collect()
    wait_for(lambda: not ours())


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
    loader = ep.data.Loader(source, batch_size=10, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    next(iterator)
    wait_for(lambda: len(source.read) >= 20)
    time.sleep(0.1)
    # Each thread holds a batch, two more are ready, and one was given.
    assert len(source.read) <= 1 + 10 * (2 * loader.source.threads + 3)
    del iterator
    wait_for_threads()


def test_an_error_names_the_record_and_ends_the_threads():
    source = Slow(fails_at=27)
    loader = ep.data.Loader(source, batch_size=10, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    assert len(list(it.islice(iterator, 2))) == 2
    with pytest.raises(OSError, match="the disk is gone") as error:
        next(iterator)
    assert any("at record 27" in note for note in error.value.__notes__)
    assert iterator.cursor.position == 20
    assert list(iterator) == []
    wait_for_threads()


def test_an_error_in_next_names_the_record():
    loader = ep.data.Loader(Slow(fails_at=3), batch_size=10, shuffle=False)
    with pytest.raises(OSError) as error:
        loader.next(loader.init(KEY))
    assert "record 3" in error.value.__notes__[0]


def test_an_error_of_a_source_that_reads_many_at_once_names_the_record():
    class Many(Slow):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    loader = ep.data.Loader(Many(fails_at=13), batch_size=10, shuffle=False)
    _, cursor = loader.next(loader.init(KEY))
    with pytest.raises(OSError) as error:
        loader.next(cursor)
    assert "records 10, 11, 12, 13, 14" in error.value.__notes__[0]


def test_ctrl_c_while_waiting_ends_the_threads(monkeypatch):
    import concurrent.futures

    loader = ep.data.Loader(Slow(seconds=0.001), batch_size=10, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    next(iterator)

    def interrupted(self, timeout=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(concurrent.futures.Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    wait_for_threads()


def test_the_order_and_the_place_do_not_depend_on_who_reads():
    loader = ep.data.Loader(Slow(100), batch_size=7)
    plain = ep.data.Loader(np.arange(100, dtype=np.float32), batch_size=7)
    iterator = loader.epoch(loader.init(KEY))
    found = [next(iterator) for _ in range(4)]
    found += list(loader.epoch(iterator.cursor))
    expected = list(plain.epoch(plain.init(KEY)))
    assert [b.tolist() for b in found] == [b.tolist() for b in expected]
    iterator.close()
    assert iterator.cursor.position == 28 and list(iterator) == []
    wait_for_threads()


def test_an_order_of_many_blocks_is_that_of_one():
    size = 80_000
    loader = ep.data.Loader(np.arange(size), batch_size=12_000)
    device = ep.data.Loader(ep.data.ArraySource(np.arange(size)), batch_size=12_000)
    _, middle = device.next(device.init(KEY))
    for cursor in (loader.init(KEY), middle):
        pairs = zip(loader.epoch(cursor), device.epoch(cursor), strict=True)
        assert all((a == b).all() for a, b in pairs)


@pytest.mark.parametrize("shared", ["loader", "source"])
def test_sources_that_may_not_bear_it_are_read_by_one_thread_at_a_time(shared):
    inside, most = [0], [0]

    class Fragile(Slow):
        def __getitem__(self, i):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.0005)
            inside[0] -= 1
            return np.float32(i)

    source = Fragile(60)
    one = ep.data.Loader(source, batch_size=10)
    two = one if shared == "loader" else ep.data.Loader(source, batch_size=10)
    pair = one.epoch(one.init(KEY)), two.epoch(two.init(KEY))
    assert all((a == b).all() for a, b in zip(*pair, strict=True))
    assert most[0] == 1


# Records that do not fit.


def test_a_source_that_fails_at_its_first_record():
    with pytest.raises(OSError) as error:
        ep.data.Loader(Slow(fails_at=0), batch_size=1)
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
    loader = ep.data.Loader(kind(12), batch_size=4, shuffle=False)
    iterator = loader.epoch(loader.init(KEY))
    next(iterator)
    with pytest.raises(RuntimeError, match="`StopIteration`.*smaller length") as error:
        list(iterator)
    assert "record" in error.value.__notes__[0]
    with pytest.raises(RuntimeError, match="`StopIteration`"):
        loader.next(iterator.cursor)
    wait_for_threads()
