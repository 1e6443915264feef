"""Which device gets which points: each one once, and no device the dearer half."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eqx_pipe._sweep.dealing import Deal
from eqx_pipe._sweep.reduced_kernel import block_rows

deals = st.builds(Deal, st.integers(1, 5), st.integers(1, 4), st.booleans())


def computed(deal, device, points):
    """What a kernel computes on a device: the points of all rounds, in order."""
    turns = np.arange(int(deal.turns(device, points)))[:, None]
    within = deal.step * np.arange(deal.batch_size)
    return np.minimum(deal.first(device, turns) + within, points - 1).reshape(-1)


@given(deals, st.integers(1, 70))
def test_every_point_comes_to_its_place(deal, points):
    rows = np.full((points, 2), -1)
    for device in range(deal.num_devices):
        given = computed(deal, device, points)[:, None] * [1, 10]
        for place, own in deal.stretches(rows, given, device):
            assert np.all(place == -1)
            place[...] = own
    assert rows.tolist() == [[i, 10 * i] for i in range(points)]


@given(deals, st.integers(0, 70))
def test_no_device_has_more_than_a_batch_more(deal, points):
    shares = [int(deal.turns(d, points)) for d in range(deal.num_devices)]
    assert max(shares) - min(shares) <= 1
    traced = [deal.turns(jnp.int32(d), jnp.int32(points)) for d in range(len(shares))]
    assert [int(turns) for turns in traced] == shares


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_devices_have_as_much_to_do_where_costs_rise(batch, devices, rounds, singly):
    points = 2 * rounds * batch * devices
    deal = Deal(batch, devices, singly)
    loads = [computed(deal, device, points).sum() for device in range(devices)]
    # Dealt to and fro there is no difference; point by point one point in each batch.
    allowed = 2 * rounds * batch * (devices - 1) if singly else 0
    assert max(loads) - min(loads) <= allowed


def test_batches_are_of_neighbours_unless_points_are_dealt_singly():
    assert computed(Deal(2, 3), 0, 12).tolist() == [0, 1, 10, 11]
    assert computed(Deal(2, 3), 2, 12).tolist() == [4, 5, 6, 7]
    assert computed(Deal(2, 3, singly=True), 2, 12).tolist() == [2, 5, 8, 11]
    assert computed(Deal(2, 3, singly=True), 1, 8).tolist() == [1, 4, 7, 7]


@given(st.integers(1, 40), st.integers(1, 4))
def test_the_rows_of_blocks_are_where_they_were_dealt_to(blocks, devices):
    deal, capacity = Deal(1, devices), -(-blocks // devices)
    rows = block_rows(blocks, capacity, devices)[:blocks]
    for device in range(devices):
        numbers = computed(deal, device, blocks)
        at = device * capacity + np.arange(len(numbers))
        assert rows[numbers].tolist() == at.tolist()
