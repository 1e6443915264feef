"""Which device gets which points: each once, and none the expensive half."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import eqx_pipe as ep
from eqx_pipe._sweep.compute.kernel import COUNT, FIRST, LAST, Layout, control_of
from eqx_pipe._sweep.compute.prepare import prepare
from eqx_pipe._vmap import all_busy

any_partition = given(
    dealt=st.booleans(),
    batch=st.integers(1, 5),
    devices=st.integers(1, 4),
    points=st.integers(1, 70),
)


def parted(dealt, batch, devices, points):
    layout = Layout((100,), (0,), batch, 1, (None,) * devices, dealt=dealt)
    return layout.partition(points)


def computed(partition, device, points):
    """Return the points of all batches of a device, as a kernel computes them."""
    told = control_of(partition, points, [])[device].astype(int)
    number = np.arange(told[COUNT] * partition.batch_size)
    return np.minimum(told[FIRST] + partition.stride * number, told[LAST])


@any_partition
def test_every_point_comes_to_its_place(dealt, batch, devices, points):
    partition = parted(dealt, batch, devices, points)
    rows = np.full(points, -1)
    for device in range(partition.num_devices):
        place, found = rows[partition.own(device)], computed(partition, device, points)
        assert np.all(place == -1)
        place[...] = found[: len(place)]
    assert rows.tolist() == list(range(points))


@any_partition
def test_no_device_has_more_than_its_share(dealt, batch, devices, points):
    partition = parted(dealt, batch, devices, points)
    shares = [partition.count(d, points) for d in range(partition.num_devices)]
    assert max(shares) == -(-points // (partition.batch_size * partition.num_devices))
    assert not any(partition.count(d, 0) for d in range(partition.num_devices))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))
def test_devices_have_as_much_to_do_where_costs_rise(batch, devices, rounds):
    points = rounds * batch * devices
    partition = parted(True, batch, devices, points)
    loads = [computed(partition, device, points).sum() for device in range(devices)]
    # One point in each lane.
    assert max(loads) - min(loads) <= rounds * batch * (devices - 1)


def test_points_that_may_take_longer_go_round():
    def loop(p):
        return jax.lax.while_loop(lambda n: n < p, lambda n: n + 1, 0)

    refilled = ep.refill(lambda p: 0, lambda p, n: n < p, lambda p, n: n + 1, last)
    space = ep.Values(np.arange(12))
    for fn, costs, dealt in [
        (jnp.sin, False, False),
        (jnp.sin, True, True),
        (loop, False, True),
        (refilled, False, True),
    ]:
        args = fn, ep.Space(space), None, 2, tuple(jax.devices()[:2])
        ((_, layout),) = prepare(*args, ordered=costs).needed
        assert layout.dealt == dealt


def last(point, carry):
    return carry


def test_only_cpus_with_work_for_every_core_keep_to_their_thread(monkeypatch):
    class Other:
        platform = "gpu"

    have = lambda pid: set(range(4))  # noqa: E731
    monkeypatch.setattr(os, "sched_getaffinity", have, raising=False)
    cpu = jax.devices()[0]
    assert all_busy([cpu] * 4, 4)
    assert all_busy([cpu] * 5, 9)
    assert not all_busy([cpu] * 4, 3)
    assert not all_busy([cpu] * 3, 9)
    assert not all_busy([Other()] * 4, 9)
