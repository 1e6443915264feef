"""The order of an epoch: a permutation, the same on host and device, and a fair one."""

import itertools as it
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqx_pipe._data.shuffle import permute, permute_on_host

pytestmark = pytest.mark.gpu

WORDS = np.asarray([5, 9], np.uint32)


def on_device(size, epoch, words=WORDS):
    positions = jnp.arange(size, dtype=jnp.uint32)
    order = jax.jit(lambda e, p: permute(jnp.asarray(words), e, p, size))
    return np.asarray(order(jnp.asarray(epoch, jnp.uint32), positions))


def epochs(size, number):
    """Return the orders of many epochs at once, as rows."""
    positions = jnp.arange(size, dtype=jnp.uint32)
    order = jax.vmap(lambda e: permute(jnp.asarray(WORDS), e, positions, size))
    return np.asarray(jax.jit(order)(jnp.arange(number, dtype=jnp.uint32)))


@given(
    size=st.integers(1, 5000),
    epoch=st.integers(0, 2**32 - 1),
    words=st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2),
)
def test_it_is_a_permutation(size, epoch, words):
    order = permute_on_host(words, epoch, np.arange(size), size)
    assert sorted(order.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [1, 32, 49, 100_003])  # ranks, a square, turns
def test_host_and_device_agree_bit_for_bit(size):
    for epoch in (0, 2**32 - 1):
        host = permute_on_host(WORDS, epoch, np.arange(size), size)
        assert np.array_equal(host, on_device(size, epoch))
    assert np.array_equal(np.sort(host), np.arange(size))


@pytest.mark.parametrize("size", [20, 49, 1000])
def test_positions_that_are_over_are_of_the_next_epoch(size):
    places, over = np.arange(size) * 7 % size, np.arange(size) % 3 == 0
    order = jax.jit(lambda p, o: permute(jnp.asarray(WORDS), jnp.uint32(4), p, size, o))
    found = np.asarray(order(jnp.asarray(places, jnp.uint32), jnp.asarray(over)))
    for epoch, of in ((4, ~over), (5, over)):
        host = permute_on_host(WORDS, epoch, places[of], size)
        assert np.array_equal(found[of], host)


@pytest.mark.parametrize("size", [50, 1000, 100_003, 2**31 - 1])
def test_walks_are_looked_up_on_a_gpu(size, monkeypatch):
    """Both ways give the same; a loop of unknown length makes a GPU ask the host."""

    def on_a_gpu(**ways):
        return ways["cuda"]()

    places = np.unique(np.geomspace(1, size, 3000).astype(np.int64)) - 1
    over = np.arange(len(places)) % 2 == 0
    args = jnp.asarray(places, jnp.uint32), jnp.asarray(over)
    monkeypatch.setattr(jax.lax, "platform_dependent", on_a_gpu)
    make = lambda p, o: permute(jnp.asarray(WORDS), jnp.uint32(4), p, size, o)  # noqa: E731
    found = np.asarray(jax.jit(make)(*args))
    assert "while" not in str(jax.make_jaxpr(make)(*args))
    for epoch, of in ((4, ~over), (5, over)):
        host = permute_on_host(WORDS, epoch, places[of], size)
        assert np.array_equal(found[of], host)


@given(
    size=st.sampled_from([2**31 - 1, 2**31 + 1, 2**33 + 5, 2**40, 2**61 + 3]),
    data=st.data(),
)
def test_no_two_places_of_a_large_source_give_the_same(size, data):
    first = data.draw(st.integers(0, size - 1000))
    order = permute_on_host(WORDS, 3, np.arange(first, first + 1000), size)
    assert len(set(order.tolist())) == 1000
    assert 0 <= order.min() and order.max() < size
    # Neighbours are spread over the whole source.
    assert order.max() - order.min() > size // 2


def test_a_large_size_on_the_device_agrees_with_the_host():
    size, places = 2**31 - 1, np.asarray([0, 1, 2**30, 2**31 - 2])
    device = jax.jit(lambda p: permute(jnp.asarray(WORDS), jnp.uint32(7), p, size))
    host = permute_on_host(WORDS, 7, places, size)
    assert np.array_equal(host, device(jnp.asarray(places, jnp.uint32)))


def test_epochs_and_keys_have_orders_of_their_own():
    orders = {tuple(on_device(100, e, w)) for e in (0, 1) for w in (WORDS, WORDS[::-1])}
    assert len(orders) == 4


@pytest.mark.parametrize(
    "size, places, order",
    [
        (6, [0, 1, 2, 3, 4, 5], [2, 4, 5, 3, 1, 0]),
        (32, [0, 1, 31], [12, 30, 5]),
        (33, [0, 1, 32], [21, 4, 8]),
        (1000, [0, 1, 999], [637, 279, 860]),
        (2**40, [0, 1, 2**40 - 1], [99398693724, 92868482555, 890774817244]),
    ],
)
def test_an_order_stays_what_it_was(size, places, order):
    """Cursors are kept in files: another order would resume at other records."""
    assert permute_on_host(WORDS, 3, places, size).tolist() == order


def chi_squared(counts):
    """Return the chi-squared statistic of counts, and its degrees of freedom."""
    expected = counts.mean()
    freedom = counts.size - 1
    return ((counts - expected) ** 2 / expected).sum(), freedom


@pytest.mark.parametrize("size", [2, 5])
def test_every_order_of_few_records_is_as_likely(size):
    orders = epochs(size, 12_000)
    code = {p: i for i, p in enumerate(it.permutations(range(size)))}
    seen = np.bincount([code[tuple(o)] for o in orders.tolist()], minlength=len(code))
    assert (seen > 0).all() and len(seen) == math.factorial(size)
    value, freedom = chi_squared(seen)
    assert value < freedom + 4.5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [7, 34])  # by ranks, and by turns
def test_every_record_is_as_likely_at_every_place(size):
    orders = epochs(size, 8_000)
    counts = np.zeros((size, size))
    np.add.at(counts, (np.tile(np.arange(size), len(orders)), orders.ravel()), 1)
    # Rows and columns have fixed sums.
    value, freedom = chi_squared(counts)[0] * (size - 1) / size, (size - 1) ** 2
    assert value < freedom + 4.5 * math.sqrt(2 * freedom)
    # Neither does one epoch tell about the next, nor a place about its neighbour.
    for pairs in ((orders[:-1, 0], orders[1:, 0]), (orders[:, 0], orders[:, 1])):
        steps = (pairs[1].astype(int) - pairs[0]) % size
        counts = np.bincount(steps, minlength=size)
        counts = counts if counts[0] else counts[1:]
        value, freedom = chi_squared(counts)
        assert value < freedom + 5 * math.sqrt(2 * freedom)
