"""Sweeps in a run of several processes, each with several devices of its own."""

import pytest
from support.processes import run_processes

SETUP = """
import jax.numpy as jnp
import numpy as np
import eqx_pipe as ep

key = jax.random.key(0)
space = ep.Space({"a": ep.Linspace(0, 1, 5), "b": ep.Values([1.0, 2.0, 3.0])})
static = {"a": ep.Linspace(0, 1, 5), "n": ep.Static([1, 2])}

def noisy(p, key):
    return p["a"] * p["b"] + jax.random.uniform(key)

def plain(p):
    return p["a"] * p["b"]

points = [(space.point(i), space.point_key(i, key=key)) for i in range(15)]
wanted = np.array([p["a"] * p["b"] for p, _ in points])
drawn = np.array([noisy(p, k) for p, k in points])
a = np.linspace(0, 1, 5, dtype="f4")
"""

ALONE = """
mesh = jax.make_mesh((2,), ("x",), devices=jax.local_devices())
found = {
    "all local devices": (ep.sweep(plain, space).values, wanted),
    "draws": (ep.sweep(noisy, space, key=key, batch_size=2, mesh=mesh).values, drawn),
    "another order": (ep.sweep(plain, space, order_by=plain).values, wanted),
    "static": (ep.sweep(lambda p: p["a"] * p["n"], static).values.reshape(5, 2),
               np.stack([a, 2 * a], 1)),
    "reduced": (ep.sweep(plain, space, reduce=ep.reduce.Mean()).values, wanted.mean()),
    "over": (ep.sweep(plain, space, reduce=ep.reduce.Sum(over="a")).values,
             wanted.reshape(5, 3).sum(0)),
    "a sweeper": (ep.sweeper(plain, space)(space).values, wanted),
    "marked": (ep.sweep(plain, space, on_error="mark").values, wanted),
}
for name, (values, expected) in found.items():
    np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=name)
"""

SHARED = """
from jax.experimental import multihost_utils

computed = []

def seen(p):
    jax.debug.callback(lambda a: computed.append(float(a)), p["a"])
    return p["a"] * p["b"]

one = jax.make_mesh((1,), ("x",), devices=jax.local_devices()[:1])
asked = dict(shard="auto", batch_size=1, resume="force", mesh=one)
for name, fn, more, expected in (
    ("values", seen, {}, wanted),
    ("draws", noisy, {"key": key}, drawn),
    ("over", plain, {"reduce": ep.reduce.Sum(over="a")}, wanted.reshape(5, 3).sum(0)),
):
    path = f"{folder}/{name}.zarr"
    ep.sweep(fn, space, store=path, **asked, **more)
    multihost_utils.sync_global_devices(name)
    np.testing.assert_allclose(
        ep.SweepResult.load(path).values[:], expected, rtol=1e-5, err_msg=name
    )
jax.effects_barrier()
assert len(computed) in (7, 8), computed
path = f"{folder}/mean.zarr"
ep.sweep(plain, space, store=path, reduce=ep.reduce.Mean(), **asked)
multihost_utils.sync_global_devices("mean")
mean = ep.sweep(plain, space, store=path, reduce=ep.reduce.Mean(), mesh=one)
np.testing.assert_allclose(mean.values, wanted.mean(), rtol=1e-5)
try:
    ep.sweep(plain, space, mesh=jax.make_mesh((4,), ("x",)))
except ValueError as error:
    assert "2 of them of other processes" in str(error), error
    assert "`shard='auto'`" in str(error), error
else:
    raise AssertionError("no error")
"""


@pytest.mark.slow
def test_each_process_sweeps_on_its_own_devices():
    run_processes(SETUP + ALONE)


@pytest.mark.slow
def test_processes_share_a_store_and_each_loads_the_whole_result(tmp_path):
    run_processes(f"folder = {str(tmp_path)!r}\n{SETUP}{SHARED}")
