"""A kernel has the values of its function, under `vmap` and in sweeps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax

import eqx_pipe as ep

pytest.importorskip("llvmlite")


def collatz(n):
    """Count steps; each point takes another number of them."""
    step = lambda n: jnp.where(n % 2 == 0, n // 2, 3 * n + 1)  # noqa: E731
    return lax.while_loop(lambda c: c[0] > 1, lambda c: (step(c[0]), c[1] + 1), (n, 0))[
        1
    ]


def lorenz(rate):
    """Twenty steps by Euler, of a stacked carry."""

    def step(_, y):
        slope = jnp.stack(
            [10 * (y[1] - y[0]), y[0] * (rate - y[2]) - y[1], y[0] * y[1] - 2.5 * y[2]]
        )
        return y + 0.01 * slope

    return lax.fori_loop(0, 20, step, jnp.array([1.0, 0.0, 0.0]))


@pytest.mark.parametrize("size", [1, 7, 31, 32, 33, 100])
def test_any_number_of_points(size):
    n = jnp.arange(1, size + 1)
    got = jax.jit(jax.vmap(ep.kernel(collatz)))(n)
    np.testing.assert_array_equal(got, jax.vmap(collatz)(n))


def test_arrays_of_small_size():
    rate = jnp.linspace(1, 20, 50)
    got = jax.vmap(ep.kernel(lorenz))(rate)
    np.testing.assert_allclose(got, jax.vmap(lorenz)(rate), rtol=1e-5)


def test_in_a_sweep():
    space = {"n": ep.Values(range(1, 41)), "k": ep.Values([1, 2, 3])}
    fn = lambda p: {"steps": collatz(p["n"] * p["k"]), "n": p["n"]}  # noqa: E731
    got = ep.sweep(ep.kernel(fn), space)
    want = ep.sweep(fn, space)
    np.testing.assert_array_equal(got.values["steps"], want.values["steps"])
    np.testing.assert_array_equal(got.values["n"], want.values["n"])


def test_random_bits_are_those_of_jax():
    def fn(key):
        def step(i, total):
            return total ^ jr.bits(jr.fold_in(key, i), (3,))

        return lax.fori_loop(0, 4, step, jnp.zeros(3, jnp.uint32)), jr.split(key)[1]

    keys = jr.split(jr.key(1), 50)
    got, new = jax.vmap(ep.kernel(fn))(keys)
    want, split = jax.vmap(fn)(keys)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(jr.key_data(new), jr.key_data(split))


def test_outside_of_vmap_it_is_the_function():
    assert ep.kernel(collatz)(27) == 111


def test_refuses_with_the_line():
    def fn(x):
        return jnp.linalg.eigvalsh(x * jnp.ones((2, 2)))

    with pytest.raises(ValueError, match=r"`eigh`.* \(line \d+ of .*test_kernel.py\)"):
        jax.vmap(ep.kernel(fn))(jnp.ones(3))


def in_scans(x):
    rows = [x * jnp.arange(250.0) for _ in range(9)]
    return lax.scan(lambda c, r: (c + sum(r), None), x, rows)[0]


def in_carries(x):
    """Shift arrays, which takes few operations."""
    start = [jnp.broadcast_to(x, (220,))] * 5
    return lax.while_loop(lambda c: c[0][0] < 9, lambda c: [*c[1:], c[0][::-1]], start)


@pytest.mark.parametrize("fn", [in_scans, in_carries])
def test_refuses_what_does_not_fit_on_the_stack(fn):
    with jax.enable_x64(True), pytest.raises(ValueError, match="keep more than .* byt"):
        jax.vmap(ep.kernel(fn))(jnp.ones(3))


def test_refuses_a_long_program():
    def fn(x):
        def step(_, y):
            for _ in range(60):
                y = y @ jnp.ones((15, 15)) * 0.1
            return y

        return lax.fori_loop(0, 3, step, x * jnp.ones(15))

    with pytest.raises(ValueError, match="takes too long. .*Use smaller arrays"):
        jax.vmap(ep.kernel(fn))(jnp.ones(3))


def test_refuses_what_xla_does_better():
    with pytest.raises(ValueError, match=r"shape \(300,\), and .* at most 250"):
        jax.vmap(ep.kernel(lambda x: x * jnp.ones(300)))(jnp.ones(3))


def _shuffled(p):
    """Step as often as a point asks for, with values from before and after the loop."""
    trips, start = p["n"] % 37, jnp.sin(p["x"])
    loop = lambda c: (c[0] + 1, c[1] * 0.9 + start * p["x"])  # noqa: E731
    steps, y = lax.while_loop(lambda c: c[0] < trips, loop, (0, start))
    return {"steps": steps, "y": y * start, "same": p["x"], "even": steps % 2 == 0}


@pytest.mark.parametrize("size", [64, 65, 500, 3001])
def test_lanes_that_finish_take_other_points(size):
    rng = np.random.default_rng(size)
    x = rng.normal(size=size).astype(np.float32)
    # Some take no step, and their neighbours many.
    n = np.where(rng.random(size) < 0.3, 0, rng.integers(0, 37**2, size))
    run = jax.jit(jax.vmap(ep.kernel(_shuffled)))
    got = run({"n": n, "x": x})
    np.testing.assert_array_equal(got["steps"], n % 37)
    np.testing.assert_array_equal(got["even"], n % 37 % 2 == 0)
    np.testing.assert_array_equal(got["same"], x)
    want = jax.vmap(_shuffled)({"n": n, "x": x})["y"]
    np.testing.assert_allclose(got["y"], want, rtol=1e-5, atol=1e-6)
    order = rng.permutation(size)
    again = run({"n": n[order], "x": x[order]})["y"]
    np.testing.assert_array_equal(again, got["y"][order])


def test_lanes_that_finish_fail_alone():
    def fn(p):
        out = _shuffled(p)
        return eqx.error_if(out["y"], out["steps"] == 36, "too many steps")

    space = {"n": ep.Values(range(300)), "x": ep.Values([0.5])}
    got = ep.sweep(ep.kernel(fn), space, on_error="mark")
    failed = np.isnan(got.values).ravel()
    np.testing.assert_array_equal(failed, np.arange(300) % 37 == 36)


def test_a_loop_whose_test_is_the_same_for_all_points():
    def fn(x):
        one = lax.integer_pow(x, 0)
        test = lambda c: (c[1] < 3) | (lax.integer_pow(c[0], 0) > one)  # noqa: E731
        return lax.while_loop(test, lambda c: (c[0] + one, c[1] + 1), (x, 0))[0]

    x = jnp.arange(70.0)
    np.testing.assert_array_equal(jax.jit(jax.vmap(ep.kernel(fn)))(x), x + 3)
    ones = lambda x: lax.while_loop(lambda c: c > c**0, lambda c: c - c**0, x)  # noqa: E731
    got = jax.jit(jax.vmap(ep.kernel(ones)))(x)
    np.testing.assert_array_equal(got, jnp.minimum(x, 1))
    never = lambda x: lax.while_loop(lambda c: c**0 < 1, lambda c: c - 1, x)  # noqa: E731
    np.testing.assert_array_equal(jax.jit(jax.vmap(ep.kernel(never)))(x), x)
