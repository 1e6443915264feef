"""Which device gets which points: each once, and none the dearer half."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import eqx_pipe as ep
from eqx_pipe._sweep.compute.partition import (
    COUNT,
    FIRST,
    LAST,
    SHIFT,
    Layout,
    Partition,
    control,
)
from eqx_pipe._sweep.compute.prepare import prepare
from eqx_pipe._sweep.compute.reduce_programs import block_rows
from eqx_pipe._vmap import all_busy

any_partition = given(
    how=st.sampled_from(["runs", "batches", "points"]),
    batch=st.integers(1, 5),
    devices=st.integers(1, 4),
    points=st.integers(1, 70),
)


def parted(how, batch, devices, points):
    return Layout((100,), (0,), batch, 1, (None,) * devices, False, how).partition(
        points
    )


def computed(partition, device, points):
    """What a kernel computes on a device: the points of all its batches, in order."""
    told = control(partition, points, [])[device]
    numbers = np.arange(told[COUNT], dtype=np.uint32)[:, None]
    begin = partition.begin(told[FIRST], told[SHIFT], numbers).astype(int)
    assert begin.tolist() == partition.start(device, numbers.astype(int)).tolist()
    within = partition.stride * np.arange(partition.batch_size)
    return np.minimum(begin + within, told[LAST]).reshape(-1)


@any_partition
def test_every_point_comes_to_its_place(how, batch, devices, points):
    partition = parted(how, batch, devices, points)
    rows = np.full((points, 2), -1)
    for device in range(partition.num_devices):
        given = computed(partition, device, points)[:, None] * [1, 10]
        for place, own in partition.stretches(rows, given, device):
            assert np.all(place == -1)
            place[...] = own
    assert rows.tolist() == [[i, 10 * i] for i in range(points)]


@any_partition
def test_no_device_has_more_than_its_share(how, batch, devices, points):
    partition = parted(how, batch, devices, points)
    shares = [int(partition.count(d, points)) for d in range(partition.num_devices)]
    assert max(shares) == -(-points // (partition.batch_size * partition.num_devices))
    assert sum(shares) <= -(-points // partition.batch_size) + partition.num_devices - 1
    none = [int(partition.count(d, 0)) for d in range(partition.num_devices)]
    assert none == [0] * partition.num_devices


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_devices_have_as_much_to_do_where_costs_rise(batch, devices, rounds, singly):
    points = 2 * rounds * batch * devices
    partition = Partition(batch, devices, singly=singly)
    loads = [computed(partition, device, points).sum() for device in range(devices)]
    # Dealt to and fro there is no difference; point by point one point in each lane.
    allowed = 2 * rounds * batch * (devices - 1) if singly else 0
    assert max(loads) - min(loads) <= allowed


def test_points_that_may_take_longer_go_round():
    def loop(p):
        return jax.lax.while_loop(lambda n: n < p, lambda n: n + 1, 0)

    refilled = ep.refill(lambda p: 0, lambda p, n: n < p, lambda p, n: n + 1, last)
    space = ep.Values(np.arange(12))
    for fn, costs, how in [
        (jnp.sin, False, "runs"),
        (jnp.sin, True, "batches"),
        (loop, False, "batches"),
        (refilled, False, "points"),
        (refilled, True, "points"),
    ]:
        args = fn, ep.Space(space), None, 2, tuple(jax.devices()[:2])
        ((_, layout),) = prepare(*args, ordered=costs).needed
        assert layout.split == how


def last(point, carry):
    return carry


@given(st.integers(1, 40), st.integers(1, 4))
def test_the_rows_of_blocks_are_where_their_device_put_them(blocks, devices):
    partition, capacity = Partition(1, devices), -(-blocks // devices)
    rows = block_rows(blocks, capacity, devices)[:blocks]
    for device in range(devices):
        numbers = computed(partition, device, blocks)
        at = device * capacity + np.arange(len(numbers))
        assert rows[numbers].tolist() == at.tolist()


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
