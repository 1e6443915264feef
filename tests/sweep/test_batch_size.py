"""`batch_size="auto"`: the size for each kind of function, and its bounds."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

import eqx_pipe as ep
import eqx_pipe.testing as ept
from eqx_pipe._jaxprs import live_bytes
from eqx_pipe._vmap.batch_size import Analysis, choose_batch_size


def chosen(fn, n=10**6, devices=1, space=None, **asked):
    """Return the batch size for a function of a number, without running it."""
    mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])
    space = ep.Linspace(0, 1, n) if space is None else space
    return ep.plan(fn, space, mesh=mesh, **asked).batch_size


def scan(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, 100)[0]


def loop(x):
    return jax.lax.while_loop(lambda c: c < 3, lambda c: c + 0.1, x)


refilled = ep.refill(loop)


def test_each_kind_of_loop_has_its_size():
    sizes = [chosen(fn) for fn in (loop, scan, refilled)]
    assert sizes == sorted(set(sizes))
    assert sizes[0] <= 512 < sizes[1] <= 1024 and sizes[2] >= 4096
    assert chosen(jnp.sin) >= 512
    assert sizes[0] <= chosen(loop, order_by=lambda x: x) <= sizes[1]


def loop_of(step, size):
    """Ten steps from `size` numbers."""
    start = jnp.arange(1.0, size + 1)
    return lambda x: jax.lax.fori_loop(0, 10, lambda i, u: step(u), x * start)


@pytest.mark.parametrize("numbers", [8, 64])
def test_the_values_of_a_step_fit_in_the_nearest_cache(numbers):
    alone = lambda x: jnp.sort(x * jnp.arange(float(numbers)))  # noqa: E731
    for fn in (alone, loop_of(lambda u: u * 0.9, numbers)):
        assert 2**13 < 4 * numbers * chosen(fn) <= 12 * 2**10


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool"])
def test_a_number_counts_as_at_least_four_bytes(dtype):
    def step(u):
        return jnp.where(u.astype(dtype).astype(bool), u * 0.9, u)

    assert chosen(loop_of(step, 32)) == chosen(loop_of(lambda u: u * 0.9, 32))


def test_only_loops_whose_end_depends_on_the_point_wait():
    def until(end, x):
        return jax.lax.while_loop(
            lambda c: c[0] < end, lambda c: (c[0] + 1, c[1] * x), (0, x)
        )

    bound = jnp.int32(7)
    assert chosen(lambda x: until(bound, x)[1]) == chosen(scan)
    assert chosen(lambda x: until((9 * x).astype(int), x)[1]) == chosen(loop)
    # The counter is the same for all, until it depends on what is not.
    grows = lambda x: jax.lax.while_loop(  # noqa: E731
        lambda c: c[0] < 9,
        lambda c: (c[0] + (c[1] > 0.5).astype(int), c[1] * 1.1),
        (0, x),
    )
    assert chosen(lambda x: grows(x)[1]) == chosen(loop)


def test_values_shared_by_all_points_do_not_count():
    weights = jnp.ones((40, 40))

    def over(matrix):
        def fn(x):
            step = lambda c, _: (jnp.tanh(jnp.sin(matrix(x)).T @ c), None)  # noqa: E731
            return jax.lax.scan(step, x * jnp.ones(40), None, 9)[0].sum()

        return fn

    assert chosen(over(lambda x: weights)) > chosen(over(lambda x: weights * x)) == 16
    space = {"x": ep.Linspace(0, 1, 10**4), "w": weights}
    assert chosen(lambda p: over(lambda x: p["w"])(p["x"]), space=space) > 16


@jax.custom_batching.custom_vmap
def own_rule(x):
    return loop(x)


@own_rule.def_vmap
def _(axis_size, in_batched, x):
    return jax.vmap(loop)(x), in_batched[0]


@pytest.mark.parametrize(
    "hide",
    [
        jax.jit,
        lambda fn: lambda x: jax.lax.cond(x > 0.5, fn, lambda x: x, x),
        lambda fn: lambda x: jax.lax.scan(lambda c, _: (fn(c), None), x, None, 3)[0],
        lambda fn: jax.checkpoint(fn),
        lambda fn: lambda x: jax.vmap(fn)(x + jnp.zeros(2)),
    ],
)
def test_loops_are_found_at_any_depth(hide):
    assert chosen(hide(loop)) == chosen(loop)
    assert chosen(hide(refilled)) == chosen(refilled)


def test_the_derivative_of_a_refilled_loop_waits():
    for fn in (loop, refilled):
        slope = lambda x, fn=fn: jax.jvp(fn, (x,), (x,))[1]  # noqa: E731
        assert chosen(slope) == chosen(loop)


def test_a_loop_in_a_custom_vmap_is_found():
    assert chosen(own_rule) == chosen(loop)


def test_a_loop_in_an_open_jaxpr_is_found():
    """Lineax's `linear_solve` has such jaxprs before JAX 0.12."""
    weights = np.arange(3.0, dtype=np.float32)
    closed = jax.make_jaxpr(lambda x: loop(x * weights.sum() + jnp.asarray(weights)[0]))
    program = closed(jnp.float32(1.0))
    hides = Primitive("test_hides")
    hides.def_abstract_eval(lambda x, **_: x)
    is_open = getattr(program, "jaxpr", program)
    assert chosen(lambda x: hides.bind(x, program=is_open)) == chosen(loop)


def test_a_loop_inside_a_refilled_loop_does_not_wait():
    def fn(x):
        step = lambda c: c + loop(c) * 0 + 0.1  # noqa: E731
        return jax.lax.while_loop(lambda c: c < 3, step, x)

    assert chosen(ep.refill(fn)) == chosen(refilled)


def test_large_intermediates_give_small_batches():
    small, large = (
        chosen(lambda x, n=n: jnp.sort(jnp.cos(x * jnp.arange(float(n)))).sum())
        for n in (10, 10**5)
    )
    assert large < 64 < small


def test_a_batch_has_at_least_16_points():
    for fn in (loop, scan, jnp.sin):
        wide = lambda x, fn=fn: fn(jnp.sort(x * jnp.ones(10**6))[0])  # noqa: E731
        assert chosen(wide) == chosen(wide, 10**6, 8) == 16
        assert chosen(wide, 5) == 5


def test_values_of_a_step_count_more_than_scanned_inputs():
    def over(n):
        def fn(x):
            rows = x * jnp.ones((100, n))
            return jax.lax.scan(lambda c, r: (jnp.sin(c) + r[0], None), x, rows)[0]

        return fn

    def state(n):
        step = lambda c, _: (jnp.sort(jnp.sin(c)), None)  # noqa: E731
        return lambda x: jax.lax.scan(step, x * jnp.ones(n), None, 9)[0].sum()

    assert chosen(over(8)) > 8 * chosen(state(512))


@pytest.mark.parametrize("n", [1, 7, 1000, 10**6])
@pytest.mark.parametrize("devices", [1, 8])
def test_it_is_bounded_by_the_points_and_leaves_short_tails(n, devices):
    size = chosen(scan, n, devices)
    per_device = -(-n // devices)
    assert 1 <= size <= per_device
    batches = -(-per_device // size)
    assert batches * size - per_device < 8 * batches
    assert size % 8 == 0 or size == per_device or size < 64


def test_the_result_has_the_chosen_size():
    result = ep.sweep(scan, ep.Linspace(0, 1, 30))
    assert result.batch_size == chosen(scan, 30, len(jax.devices()))


@pytest.fixture
def memory(monkeypatch):
    """Return the memory that devices report, of which a sweep reserves 64 MiB."""
    stats = {}
    device = type(jax.devices()[0])
    monkeypatch.setattr(device, "memory_stats", lambda self: stats or None)
    return stats


def test_reported_memory_bounds_the_size(memory):
    def wide(x):
        # Sorting is not fused away: the whole row is held for each lane.
        return jnp.sort(jnp.sin(x * jnp.arange(100.0)))[::10]

    free = chosen(wide)
    lane = 4 * 100
    for room in (20 * lane, 12 * lane):
        memory |= {"bytes_limit": 2**26 + room + 7, "bytes_in_use": 7}
        bounded = chosen(wide)
        assert 1 <= bounded < free
        assert bounded * lane <= room
    values = ep.sweep(wide, ep.Linspace(0, 1, 100), batch_size="auto").values
    memory["bytes_in_use"] = memory["bytes_limit"]
    assert chosen(wide) == 1
    again = ep.sweep(wide, ep.Linspace(0, 1, 100))  # at least 8 points on a device
    assert again.batch_size == 1
    np.testing.assert_allclose(again.values, values, rtol=1e-5, atol=1e-6)


def test_a_warm_sweep_compiles_nothing_if_devices_report_memory(memory):
    memory["bytes_limit"] = 2**30
    space = ep.Linspace(0, 1, 100)
    ep.sweep(scan, space)
    with ept.assert_compiles(0):
        ep.sweep(scan, space)


def test_a_gpu_gets_so_many_lanes_that_the_launch_of_a_step_is_small():
    gpu = mock.Mock(jax.Device, platform="gpu", device_kind="NVIDIA A100-SXM4-40GB")
    gpu.memory_stats = lambda: None
    tiny, middle, large = (
        choose_batch_size(Analysis(carried=n), 2**30, [gpu]) for n in (8, 800, 8000)
    )
    assert tiny == 2**20 and 40_000 < middle < 50_000 and large == 2**14


def test_values_inside_of_an_equation_are_alive_with_those_outside():
    def wide(x):
        return jnp.outer(x, x).sum()

    def in_a_loop(x):
        return jax.lax.scan(lambda c, _: (c + wide(x), None), x[0], None, length=3)[0]

    x = jnp.ones(100, jnp.float32)
    for fn in (wide, jax.jit(wide), in_a_loop):
        assert 40_000 <= live_bytes(jax.make_jaxpr(fn)(x)) <= 42_000
