"""`ArraySource` and `windows`."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

KEY = jr.key(4)


def numbered(size, kind, base=0):
    values = np.arange(base, base + size, dtype=np.int32)
    return ep.data.ArraySource(values) if kind == "device" else values


def all_of(source, batch_size=4, shuffle=False):
    loader = ep.data.Loader(source, batch_size=batch_size, shuffle=shuffle)
    return np.concatenate(list(loader.epoch(loader.init(KEY)))).tolist()


@pytest.mark.parametrize("kind", ["device", "host"])
def test_windows_are_slices(kind):
    source = ep.data.windows(numbered(11, kind), size=4, stride=3)
    assert len(source) == 3
    loader = ep.data.Loader(source, batch_size=2, shuffle=False)
    found = np.concatenate(list(loader.epoch(loader.init(KEY))))
    assert found.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    shuffled = ep.data.Loader(source, batch_size=2)
    batches = np.concatenate(list(shuffled.epoch(shuffled.init(KEY))))
    assert sorted(batches[:, 0].tolist()) == [0, 3, 6]


def test_windows_of_windows():
    def build(kind):
        return ep.data.windows(ep.data.windows(numbered(14, kind), 2, 2), 3)

    device, host = build("device"), build("host")
    assert len(device) == len(host) == 5 and host[0].shape == (3, 2)
    assert all_of(device) == all_of(host) == [host[i].tolist() for i in range(5)]


@pytest.mark.parametrize("kind", ["device", "host"])
def test_indices_from_the_end_and_beyond(kind):
    cut = ep.data.windows(numbered(7, kind), 3, 2)
    assert cut[-1].tolist() == cut[2].tolist() == [4, 5, 6]
    assert len(list(cut)) == 3
    assert [int(x) for x in numbered(5, "device")] == [0, 1, 2, 3, 4]
    for source in (cut, ep.data.ArraySource(jnp.arange(6))):
        for beyond in (7, -8):
            with pytest.raises(IndexError, match=f"record {beyond} of a source"):
                source[beyond]


def test_numbers_that_do_not_fit_on_the_device():
    with pytest.raises(ValueError, match="do not fit into int32"):
        ep.data.ArraySource(np.array([2**40 + 7]))
    with pytest.raises(ValueError, match="do not fit into float32"):
        ep.data.ArraySource({"x": np.array([1e300])})
    assert ep.data.ArraySource(np.array([2**31 - 1]))[0] == 2**31 - 1
