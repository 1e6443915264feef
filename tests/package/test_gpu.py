"""Computations that may differ on a GPU, compared with the same on a CPU.

`python -m benchmarks gpu` runs these tests on a GPU. Without one, the two devices are
two CPU devices.
"""

import functools
import os
import signal
import threading
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

HERE, CPU = jax.devices()[0], jax.devices("cpu")[-1]
ROUNDING = 1e-4
"""The largest difference of two floats, divided by the largest value of the array."""


@pytest.fixture
def agree(record_property):
    """Return a check that a computation gives the same on both devices.

    Keys, integers and bits must be equal, floats equal up to rounding.
    """

    def check(fn, precision="highest", rounding=ROUNDING):
        found = []
        for device in (HERE, CPU):
            with jax.default_device(device), jax.default_matmul_precision(precision):
                found.append([*map(np.asarray, jax.tree.leaves(fn(device)))])
        worst = 0.0
        for here, there in zip(*found, strict=True):
            if here.dtype.kind in "biu":
                np.testing.assert_array_equal(here, there)
            else:
                np.testing.assert_array_equal(np.isnan(here), np.isnan(there))
                largest = max(np.max(np.abs(there)), np.finfo(np.float32).tiny)
                apart = np.max(np.abs(here.astype(complex) - there)) / largest
                worst = max(worst, float(apart))
        record_property("difference", worst)
        assert worst <= rounding

    return check


def swept(device, fn, points=1000, **options):
    """Sweep over a grid of `a` and `b` on one device."""
    side = int(points**0.5)
    space = {"a": ep.Linspace(0.01, 1, side), "b": ep.Linspace(0.1, 0.9, side)}
    mesh = jax.make_mesh((1,), ("x",), devices=[device])
    return ep.sweep(fn, space, mesh=mesh, **{"batch_size": 64} | options)


def formula(p):
    return jnp.exp(-p["a"] * 3) * jnp.sin(p["b"] * 5) / (1 + p["a"] ** 2)


def trips(p):
    """Run up to 1,000 steps, and return their number and a float."""
    n = jnp.exp(p["a"] * jnp.log(1000.0)).astype(jnp.int32)
    step = lambda c: (c[0] + 1, c[1] + 0.01 * jnp.sin(c[1]))  # noqa: E731
    return jax.lax.while_loop(lambda c: c[0] < n, step, (0, p["b"]))


def matrix(p, size=16):
    numbers = jnp.arange(float(size * size)).reshape(size, size)
    return jnp.cos(numbers * p["a"]) + 4 * p["b"] * jnp.eye(size)


def products(p):
    x = matrix(p)
    return jax.nn.softmax(x @ x.T, axis=-1) @ x


def test_values(agree):
    agree(lambda device: swept(device, formula, 10**5).values)


def test_draws(agree):
    def fn(p, key):
        return jr.key_data(key), jr.bits(key, (3,)), jr.normal(key, (3,))

    agree(lambda device: swept(device, fn, key=jr.key(0)).values)


def test_loops_of_unequal_length(agree):
    agree(lambda device: swept(device, trips, order_by=lambda p: p["b"]).values)


FUNCTIONS = {
    "solve": lambda p: jnp.linalg.solve(matrix(p), jnp.ones(16)),
    "eigenvalues": lambda p: jnp.linalg.eigvalsh(matrix(p) + matrix(p).T),
    "fourier": lambda p: jnp.abs(jnp.fft.rfft(matrix(p)[0])),
    "products": products,
    "sort": lambda p: jnp.sort(matrix(p)[0])[::4],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_array_functions(agree, name):
    agree(lambda device: swept(device, FUNCTIONS[name], 100).values)


def test_half_precision(agree):
    def fn(p):
        x = p["a"].astype(jnp.bfloat16) * 3 + 1
        return x.astype(jnp.float32), p["b"].astype(jnp.float16) / 3

    agree(lambda device: swept(device, fn).values, rounding=0.01)


def test_default_precision_of_products(agree):
    """By default a GPU may multiply matrices in TF32, with ten bits."""
    agree(lambda device: swept(device, products, 100).values, "default", 0.02)


def test_reductions(agree):
    kinds = ep.reduce.Mean(), ep.reduce.Var(), ep.reduce.Sum(), ep.reduce.ArgMax()
    reduce = {type(r).__name__: r for r in kinds}
    reduce["counts"] = ep.reduce.Histogram(np.linspace(-1, 1, 33))
    agree(lambda device: swept(device, formula, 10**5, reduce=reduce).values)


def test_refill(agree):
    @ep.refill
    def refilled(p):
        return jax.lax.while_loop(
            lambda c: c[0] < 300 * p["a"],
            lambda c: (c[0] + 1, c[1] + 0.01 * jnp.sin(c[1])),
            (0, p["b"]),
        )

    agree(lambda device: swept(device, refilled, 4096, batch_size="auto").values)


def test_choices(agree):
    """Values and gradients, where the other branch would return inf or NaN."""
    stage = ep.cond(lambda x: x > 0, jnp.log, jnp.exp)
    run = jax.jit(jax.vmap(jax.value_and_grad(stage)))
    agree(lambda device: run(jnp.linspace(-3, 3, 1000) + 1e-3))


def test_pipelines(agree):
    """The loss of a pipeline that draws, and its gradients."""

    def run(device):
        first, *rest = [eqx.nn.Linear(32, 32, key=k) for k in jr.split(jr.key(1), 6)]
        model = ep.chain(
            ep.residual(ep.chain(eqx.nn.LayerNorm(32), first, jnp.tanh)),
            ep.parallel(*rest[:2], merge="mean"),
            ep.repeat(rest[2:]),
            eqx.nn.Dropout(0.5),
        )
        x = jnp.sin(jnp.arange(2048.0)).reshape(64, 32)

        def loss(model):
            return jnp.mean(jax.vmap(lambda x: model(x, key=jr.key(2)))(x) ** 2)

        return eqx.filter_jit(eqx.filter_value_and_grad(loss))(model)

    agree(lambda device: eqx.filter(run(device), eqx.is_array))


def test_loaders(agree):
    """The order of records, their draws, and the cursor of each batch."""

    def run(device):
        pipe = lambda x, *, key: (x, jr.bits(key))  # noqa: E731
        source = ep.data.ArraySource(jnp.arange(1000) * 3)
        loader = ep.data.Loader(source, pipe, batch_size=64)
        epoch = loader.epoch(loader.init(jr.key(5)))
        return [(batch, epoch.cursor.position) for batch in epoch]

    agree(run)


def test_failed_points(agree):
    def fn(p):
        return eqx.error_if(p["a"], (p["a"] > 0.5) & (p["b"] > 0.5), "too large")

    def run(device):
        result = swept(device, fn, 400, on_error="mark")
        assert len(result.errors) == 100
        return result.ok, result.values[result.ok]

    agree(run)


def test_an_interrupted_sweep_resumes(tmp_path):
    """Check that it equals one that was not interrupted, bit for bit."""
    # The children of a shell's background job ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    run = functools.partial(swept, HERE, jax.jit(trips), 4096)
    try:
        run(store=tmp_path / "compiles")
        begin = time.perf_counter()
        whole = run(store=tmp_path / "whole")
        half = (time.perf_counter() - begin) / 2
        threading.Timer(half, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt) as stopped:
            run(store=tmp_path / "stopped")
            time.sleep(half)  # the machine was busy before, and is no longer
    finally:
        signal.signal(signal.SIGINT, before)
    resumed = run(store=tmp_path / "stopped")
    for now, then in zip(resumed.values, whole.values, strict=True):
        np.testing.assert_array_equal(now, then)
    partial = getattr(stopped.value, "result", resumed)
    done = partial.ok
    np.testing.assert_array_equal(partial.values[0][done], whole.values[0][done])


@pytest.mark.skipif(HERE.memory_stats() is None, reason="the device is not limited")
def test_a_batch_that_does_not_fit_is_halved():
    space, wide = ep.Linspace(0, 1, 2**14), 2**18
    fn = lambda x: jnp.sort(x * jnp.cos(jnp.arange(float(wide))))[:4]  # noqa: E731
    run = ep.sweeper(fn, space)  # it chooses the size while the memory is free
    stats = HERE.memory_stats()
    room = stats["bytes_limit"] - stats["bytes_in_use"]
    ballast = jnp.zeros(int(room * 0.95), jnp.int8).block_until_ready()
    result = run(space)
    assert "out_of_memory" in dict(result.made)
    del ballast
    np.testing.assert_allclose(result.values, ep.sweep(fn, space).values, rtol=1e-5)
