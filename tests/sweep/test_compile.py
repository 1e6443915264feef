"""Sweeps that compile nothing, and sweeps that compile another program."""

import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.helpers import slow_unless

import eqx_pipe as ep
import eqx_pipe.testing as ept


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
def test_small_arrays_that_change_are_arguments_of_a_second_program(make):
    arrays = jnp.array([[1.0, 2.0, 3.0], [2.5, 2.0, 3.5], [1.5, 0.5, 5.0]])
    first, then, second = map(jnp.asarray, np.asarray(arrays))
    ep.sweep(make(first), space())
    swept_again(make(first), space())
    with ept.assert_compiles(1):
        ep.sweep(make(then), space())
    other = space(0.25)
    swept_again(make(first), other)
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


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit])
def test_the_function_is_traced_once_a_sweep(wrap):
    traces = []

    @wrap
    def fn(p):
        traces.append(1)
        return jnp.sin(p["a"])

    for expected in (1, 2):
        ep.sweep(fn, space())
        assert len(traces) == (expected if wrap is not jax.jit else 1)


def test_the_function_is_traced_once_for_a_store_and_its_growth(tmp_path):
    pytest.importorskip("zarr")
    traces = []

    def fn(p):
        traces.append(1)
        return p["a"]

    for expected, n in enumerate((3, 3, 4, 5), start=1):
        result = ep.sweep(fn, {"a": ep.Values(range(n))}, store=tmp_path / "runs")
        assert len(traces) == expected and result.ok.all()


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


def test_copies_on_devices_are_those_of_current_arrays():
    """An array at the address of a collected one does not get its copy."""
    fn = lambda p: p["x"] * p["w"][1]  # noqa: E731
    for k in range(50):
        w = jnp.asarray([0.0, float(k)])
        found = ep.sweep(fn, {"x": ep.Values([1.0, 2.0]), "w": w})
        assert found.values.tolist() == [k, 2 * k]
        alive = weakref.ref(w)
        del w, found
    gc.collect()
    assert alive() is None
    host = np.ones(2, np.float32)  # an array of NumPy may change
    for k in (3.0, 4.0):
        host[1] = k
        found = ep.sweep(fn, {"x": ep.Values([1.0, 2.0]), "w": host})
        assert found.values.tolist() == [k, 2 * k]


@pytest.mark.parametrize("n", [41, 43])
def test_making_an_axis_compiles_nothing(n):
    with ept.assert_compiles(0):
        ep.Linspace(0, 1, n), ep.Geomspace(1, 2, n)
        ep.Linspace(np.zeros(3), np.ones(3), n)
        ep.Values(np.arange(n)), ep.Values([0.5] * n), ep.Values(np.ones((n, 2), "f4"))
        ep.sobol({"a": ep.Uniform(0, 1)}, n)
        ep.Space({"a": ep.Linspace(0, 1, n), "w": np.ones(n)})
