"""The partition of points over devices: each point once, expensive points dealt out."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sweeps import make_mesh

import eqx_pipe as ep


@given(
    points=st.sampled_from([1, 7, 30, 61]),
    batch_size=st.sampled_from([1, 3, 5]),
    devices=st.sampled_from([1, 3, 4]),
    ordered=st.booleans(),
)
def test_every_value_is_in_its_row(points, batch_size, devices, ordered):
    values = np.arange(points)[::-1]
    found = ep.sweep(
        lambda x: x * 2,
        ep.Values(values),
        batch_size=batch_size,
        mesh=make_mesh(devices),
        order_by=values if ordered else None,
    )
    np.testing.assert_array_equal(found.values, 2 * values)


def loop(n):
    return jax.lax.while_loop(lambda k: k < n, lambda k: k + 1, 0)


@pytest.mark.parametrize(("devices", "batch_size"), [(2, 2), (3, 1), (4, 5)])
def test_points_of_unequal_cost_are_dealt_in_turn(devices, batch_size):
    """All lanes of a batch execute the steps of its slowest point."""
    points = np.arange(3 * devices * batch_size)
    result = ep.sweep(
        loop,
        ep.Values(points),
        batch_size=batch_size,
        mesh=make_mesh(devices),
        count_steps=True,
    )
    slowest = np.zeros(len(points), int)
    for device in range(devices):
        own = points[device::devices].reshape(-1, batch_size)
        slowest[own] = own.max(axis=1, keepdims=True)
    np.testing.assert_array_equal(result.steps.executed, slowest)
    # Where costs rise, no device has more than one step per lane and batch more.
    loads = [slowest[device::devices].sum() for device in range(devices)]
    assert max(loads) - min(loads) <= 3 * batch_size * (devices - 1)
