"""`mixture`, `windows` and `reduce_batches`."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqx_pipe as ep

KEY = jr.key(4)


def numbered(size, kind, base=0):
    values = np.arange(base, base + size, dtype=np.int32)
    return ep.data.ArraySource(values) if kind == "device" else values


def all_of(source, batch_size=4, shuffle=False):
    loader = ep.data.Loader(source, batch_size=batch_size, shuffle=shuffle)
    return np.concatenate(list(loader.epoch(loader.init(KEY)))).tolist()


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    weights=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    until=st.sampled_from(["first_exhausted", "all_exhausted"]),
)
def test_a_mixture_gives_each_source_in_order(sizes, weights, until):
    sources = [numbered(n, "host", 100 * k) for k, n in enumerate(sizes)]
    mixed = ep.data.mixture(sources, weights[: len(sizes)], until=until)
    found = [int(mixed[i]) for i in range(len(mixed))]
    for k, size in enumerate(sizes):
        mine = [x - 100 * k for x in found if x // 100 == k]
        assert mine == [i % size for i in range(len(mine))]
        if until == "all_exhausted":
            assert len(mine) >= size
        else:
            assert len(mine) <= size
    # At any point each has what is due to it, give or take one.
    total = sum(weights[: len(sizes)])
    for n in range(1, len(found) + 1):
        for k in range(len(sizes)):
            given = sum(x // 100 == k for x in found[:n])
            assert abs(given - n * weights[k] / total) <= len(sizes) / 2 + 1e-9


def test_mixtures_on_host_and_device_agree():
    kinds = [("device", "device"), ("host", "host"), ("host", "device")]
    found = []
    for a, b in kinds:
        mixed = ep.data.mixture([numbered(7, a), numbered(5, b, 100)], [3, 1])
        found.append((all_of(mixed), all_of(mixed, 3, shuffle=True)))
    assert found[0] == found[1] == found[2]
    plain, shuffled = found[0]
    assert sorted(plain) == sorted(shuffled) and len(plain) == 9


def test_a_mixture_of_keys_and_trees():
    def source(seed):
        return ep.data.ArraySource(
            {"k": jr.split(jr.key(seed), 3), "x": jnp.zeros((3, 2))}
        )

    mixed = ep.data.mixture([source(0), source(1)])
    assert (jr.key_data(mixed[3]["k"]) == jr.key_data(source(1)[1]["k"])).all()


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


def test_windows_of_mixtures_of_windows():
    def build(kind):
        pair = (
            ep.data.windows(numbered(6, kind), 2, 2),
            ep.data.windows(numbered(8, kind), 2, 2),
        )
        return ep.data.windows(ep.data.mixture(pair), 3)

    device, host = build("device"), build("host")
    assert len(device) == len(host) == 4 and host[0].shape == (3, 2)
    assert all_of(device) == all_of(host) == [host[i].tolist() for i in range(4)]


@pytest.mark.parametrize("kind", ["device", "host"])
def test_indices_from_the_end_and_beyond(kind):
    cut = ep.data.windows(numbered(7, kind), 3, 2)
    assert cut[-1].tolist() == cut[2].tolist() == [4, 5, 6]
    assert len(list(cut)) == 3
    mixed = ep.data.mixture([numbered(3, kind), numbered(3, kind)])
    assert mixed[-1] == 2 and len(list(mixed)) == 6
    assert [int(x) for x in numbered(5, "device")] == [0, 1, 2, 3, 4]
    for source in (cut, mixed, ep.data.ArraySource(jnp.arange(6))):
        for beyond in (7, -8):
            with pytest.raises(IndexError, match=f"record {beyond} of a source"):
                source[beyond]


def test_numbers_that_do_not_fit_on_the_device():
    with pytest.raises(ValueError, match="do not fit into int32"):
        ep.data.ArraySource(np.array([2**40 + 7]))
    with pytest.raises(ValueError, match="do not fit into float32"):
        ep.data.ArraySource({"x": np.array([1e300])})
    assert ep.data.ArraySource(np.array([2**31 - 1]))[0] == 2**31 - 1


def shares_of(weights):
    return ep.data.mixture([[0.0]] * len(weights), weights).shares


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=5))
def test_shares_are_close_to_the_weights(weights):
    shares = shares_of(weights)
    assert min(shares) > 0 and sum(shares) <= 1024
    exact = np.asarray(weights) / sum(weights)
    off = np.asarray(shares) / sum(shares) - exact
    assert abs(off).max() <= 1 / 1024


def test_many_small_weights_get_no_more_than_their_share():
    weights = [1.0] + 50 * [2e-3]
    shares = shares_of(weights)
    assert sum(shares[1:]) / sum(shares) == pytest.approx(0.1 / 1.1, abs=0.01)
    with pytest.raises(ValueError, match=r"`weights\[1\]`.*a share of 1e-05.*larger"):
        shares_of([1.0] + 50 * [1e-5])


def test_simple_shares_stay_simple():
    assert shares_of([0.7, 0.3]) == (7, 3)
    assert shares_of([2.0, 2.0, 2.0]) == (1, 1, 1)
