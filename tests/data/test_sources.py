"""`ArraySource`, and windows of an array."""

import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

KEY = jr.key(4)


def all_of(source, batch_size=4, shuffle=False):
    loader = ep.data.Loader(source, batch_size=batch_size, shuffle=shuffle)
    return np.concatenate(list(loader.epoch(loader.init(KEY)))).tolist()


@pytest.mark.parametrize("kind", ["device", "host"])
def test_windows_are_views(kind):
    tokens = np.arange(11, dtype=np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, 4)[::3]
    source = ep.data.ArraySource(windows) if kind == "device" else windows
    want = [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert all_of(source, 2) == want
    assert sorted(all_of(source, 2, shuffle=True)) == want


def test_records_in_order_are_read_as_one_slice(monkeypatch):
    zarr = pytest.importorskip("zarr")
    usual, read = zarr.Array.__getitem__, []

    def noting(self, at):
        read.append(at)
        return usual(self, at)

    source = zarr.array(np.arange(8, dtype=np.int32))
    monkeypatch.setattr(zarr.Array, "__getitem__", noting)
    loader = ep.data.Loader({"x": source}, batch_size=4, shuffle=False)
    batch, _ = loader.next(loader.init(KEY))
    assert slice(0, 4) in read and batch["x"].tolist() == [0, 1, 2, 3]


def test_indices_from_the_end_and_beyond():
    source = ep.data.ArraySource(np.arange(6, dtype=np.int32))
    assert source[-1] == source[5] == 5 and source[-6] == 0
    assert [int(x) for x in source] == [0, 1, 2, 3, 4, 5]
    for beyond in (6, -7):
        with pytest.raises(IndexError, match=f"record {beyond} of a source"):
            source[beyond]


def test_numbers_that_do_not_fit_on_the_device():
    with pytest.raises(ValueError, match="do not fit into int32"):
        ep.data.ArraySource(np.array([2**40 + 7]))
    told = "record 1 .* at `.x` .* do not fit into float32, such as 1e.300"
    with pytest.raises(ValueError, match=told):
        ep.data.ArraySource({"x": np.array([[1.0], [1e300]])})
    assert ep.data.ArraySource(np.array([2**31 - 1]))[0] == 2**31 - 1
