"""Programs that are compiled again, and those that never share an entry."""

import gc

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.helpers import slow_unless

import eqx_pipe as ep
import eqx_pipe.testing as ept
from eqx_pipe._jaxprs.fingerprint import _Writer


def space(lo=0.0):
    return ep.Space({"b": ep.Linspace(lo, 1, 5), "a": ep.Values([1.0, 2.0])})


def swept_again(fn, *args, **kwargs):
    """Return the values of a sweep that compiles nothing."""
    with ept.assert_compiles(0):
        return np.asarray(ep.sweep(fn, *args, **kwargs).values)


def inside_scan(array):
    step = jax.jit(lambda c: c * array[1])
    return lambda p: jax.lax.scan(lambda c, _: (step(c), None), p["a"], None, 3)[0]


def inside_while(array):
    step = jax.jit(lambda c: c + array[1])
    return lambda p: jax.lax.while_loop(lambda c: c < array[0] * 9, step, p["a"])


def inside_our_cond(array):
    step = jax.jit(lambda x: x * array[2] + array.sum())
    choose = ep.cond(lambda x: x > 0.5, step, lambda x: x + array[0])
    return lambda p: choose(p["b"]) * p["a"]


def under_checkpoint(array):
    step = jax.checkpoint(jax.jit(lambda x: jnp.sin(x * array[2]) * array[1]))
    return lambda p: step(p["a"]) + jax.grad(lambda x: step(step(x)))(p["b"])


def batched_rule(array):
    @jax.custom_batching.custom_vmap
    def twice(x):
        return 2 * x

    del array
    return lambda p: jax.nn.softplus(p["a"])


def checked(array):
    return lambda p: eqx.error_if(p["a"], p["a"] < 0, "negative") + array[0]


def numpy_array(array):
    array = np.asarray(array)
    return lambda p: p["a"] * jnp.sum(array)


QUICK = [inside_scan, inside_our_cond, under_checkpoint, numpy_array]
OTHERS = [inside_while, batched_rule, checked]


@pytest.mark.parametrize("make", slow_unless(QUICK, [*QUICK, *OTHERS]))
def test_other_arrays_and_fresh_functions_compile_nothing(make):
    first, second = jnp.array([1.0, 2.0, 3.0]), jnp.array([1.5, 0.5, 5.0])
    jax.block_until_ready((first, second))
    ep.sweep(make(first), space())
    other = space(0.25)
    values = swept_again(make(second), other)
    with jax.disable_jit():
        expected = ep.sweep(make(second), other).values
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_keys_slices_and_the_users_mesh_compile_nothing():
    def fn(p, key):
        return p["a"] + jr.normal(key)

    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    keys, spaces = [jr.key(0), jr.key(1)], [space()[1:4], space()[5:8]]
    ep.sweep(fn, spaces[0], key=keys[0])
    swept_again(fn, spaces[1], key=keys[1])
    with jax.set_mesh(mesh):
        swept_again(fn, spaces[1], key=keys[1], mesh=mesh)


def test_the_function_is_traced_once_a_sweep():
    traces = []

    def fn(p):
        traces.append(1)
        return p["a"]

    for expected in (1, 2):
        ep.sweep(fn, space())
        assert len(traces) == expected


def test_the_function_is_traced_once_for_a_store_and_its_growth(tmp_path):
    pytest.importorskip("zarr")
    traces = []

    def fn(p):
        traces.append(1)
        return p["a"]

    for expected, n in enumerate((3, 3, 4, 5), start=1):
        result = ep.sweep(fn, {"a": ep.Values(range(n))}, store=tmp_path / "runs")
        assert len(traces) == expected and result.ok.all()


def test_a_jitted_function_is_traced_and_looked_at_once(monkeypatch):
    traces, looks = [], []
    look = _Writer.program

    @jax.jit
    def fn(p):
        traces.append(1)
        return jnp.sin(p["a"]) * jnp.cos(p["b"])

    first = ep.sweep(fn, space()).values
    monkeypatch.setattr(
        _Writer, "program", lambda *args: looks.append(1) or look(*args)
    )
    second = swept_again(fn, space())
    assert len(traces) == 1
    assert len(looks) == 1  # what finds the point; not what is in `fn`
    np.testing.assert_array_equal(first, second)


def test_other_dtypes_and_lengths_are_other_programs():
    def fn(x):
        return x * 2

    for values in ([1, 2, 3], [1.0, 2.0, 3.0], [1.0, 2.0], np.ones((3, 2))):
        got = ep.sweep(fn, ep.Values(values)).values
        np.testing.assert_allclose(got, 2 * np.asarray(values))
    with jax.enable_x64(True):
        assert ep.sweep(fn, ep.Values([2.0**-60])).values.dtype == np.float64


def test_an_array_closed_over_and_the_same_array_in_the_space_are_two_programs():
    array = jnp.arange(3.0)
    xs = ep.Linspace(0, 1, 8)
    closed = ep.sweep(lambda p: p["x"] * array, {"x": xs})
    given = ep.sweep(lambda p: p["x"] * p["w"], {"x": xs, "w": array})
    bare = ep.sweep(lambda x: x * array, xs)
    np.testing.assert_allclose(closed.values, given.values, rtol=2e-5)
    np.testing.assert_allclose(closed.values, bare.values, rtol=2e-5)


def test_the_geometry_of_a_space_is_not_worked_out_again_and_again(monkeypatch):
    from eqx_pipe._spaces import space as module

    calls, geometry_of = [], module.geometry_of
    grid = space()
    monkeypatch.setattr(
        module, "geometry_of", lambda *a: calls.append(a) or geometry_of(*a)
    )
    ep.sweep(lambda p: p["a"], grid)
    ep.sweep(lambda p: p["a"], grid, reduce=ep.reduce.Mean())
    assert len(calls) <= 4  # the size is asked for before anything is traced


def test_small_arrays_are_copied_to_the_devices_once():
    from eqx_pipe._sweep.compute import programs as placed

    devices = np.array(jax.devices()[:2])
    place = jax.sharding.NamedSharding(
        jax.sharding.Mesh(devices, "x"), jax.sharding.PartitionSpec()
    )
    small, host = jnp.arange(5.0), np.arange(5.0, dtype="f4")
    big = jnp.zeros(placed._SMALL_BYTES // 4 + 1)
    given = [small, {"key": jr.key(3), "none": None}, host, big]
    first, second = placed.put(given, place), placed.put(given, place)
    assert first[0] is second[0] and first[1]["key"] is second[1]["key"]
    assert first[3] is not second[3]
    host[0] = 7.0  # NumPy arrays may change, so they are copied each time: by calls
    third = placed.put(given, place)
    assert third[2] is host and third[0] is first[0]
    there = [x for x in jax.tree.leaves(third) if x is not host]
    assert len(there) == 3 and all(x.sharding == place for x in there)
    large = np.zeros(placed._HANDED_IN_BYTES + 1, np.int8)
    assert placed.put([large], place)[0].sharding == place
    assert np.array_equal(third[0], small) and third[1]["none"] is None
    assert placed._copies.get(small) is not None
    count = len(placed._copies)
    del small, given
    gc.collect()
    assert len(placed._copies) < count


@pytest.mark.parametrize("n", [41, 43])
def test_making_an_axis_compiles_nothing(n):
    with ept.assert_compiles(0):
        ep.Linspace(0, 1, n), ep.Geomspace(1, 2, n)
        ep.Linspace(np.zeros(3), np.ones(3), n)
        ep.Values(np.arange(n)), ep.Values([0.5] * n), ep.Values(np.ones((n, 2), "f4"))
        ep.sobol({"a": ep.Uniform(0, 1)}, n)
        ep.Space({"a": ep.Linspace(0, 1, n), "w": np.ones(n)})
