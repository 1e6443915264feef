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

TOGETHER = """
both = jax.make_mesh((4,), ("x",))
assert len({d.process_index for d in both.devices.flat}) == 2
computed = []

def seen(p):
    jax.debug.callback(lambda a: computed.append(float(a)), p["a"])
    return p["a"] * p["b"]

assert ep.sweep(seen, space, mesh=both).ok.all()
jax.effects_barrier()
assert len(computed) in (7, 8), computed
for size in (1, 2, 3):
    some = ep.sweep(plain, space, mesh=both, batch_size=size)
    assert some.missing is None
    np.testing.assert_allclose(some.values, wanted, rtol=1e-6)
found = {
    "draws": (ep.sweep(noisy, space, key=key, mesh=both).values, drawn),
    "one point": (ep.sweep(plain, space[3:4], mesh=both).values, wanted[3:4]),
    "no point": (ep.sweep(plain, space[:0], mesh=both).values, wanted[:0]),
    "reduced": (ep.sweep(plain, space, mesh=both, reduce=ep.reduce.Mean()).values,
                wanted.mean()),
    "over": (ep.sweep(plain, space, mesh=both, reduce=ep.reduce.Sum(over="a")).values,
             wanted.reshape(5, 3).sum(0)),
    "order": (ep.sweep(plain, space, mesh=both, order_by=plain).values, wanted),
    "stored": (ep.sweep(plain, space, mesh=both, store=folder + "/r.zarr").values,
               wanted),
    "stored reduction": (
        ep.sweep(plain, space, mesh=both, store=folder + "/s.zarr",
                 reduce=ep.reduce.Mean()).values, wanted.mean()),
}
for name, (values, expected) in found.items():
    np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=name)
half = ep.sweep(lambda p: p["a"].astype("bfloat16"), space, mesh=both).values
assert half.dtype == jax.numpy.bfloat16 and half[-1] == 1

import equinox as eqx
fails = lambda p: eqx.error_if(p["a"], p["a"] > 0.9, "too large")
marked = ep.sweep(fails, space, mesh=both, on_error="mark")
assert list(marked.errors) == [12, 13, 14], marked.errors
try:
    ep.sweep(fails, space, mesh=both, batch_size=1)
except ep.SweepError as error:
    print(rank, error)
else:
    raise AssertionError("no error")
try:
    ep.sweep(plain, space, mesh=both, store=folder + "/r.zarr", shard=(rank, 2))
except ValueError as error:
    assert "Leave `shard` out" in str(error)
else:
    raise AssertionError("no error")
try:
    ep.sweep(plain, space, mesh=jax.make_mesh((3,), ("x",), devices=jax.devices()[:3]))
except ValueError as error:
    assert "of other processes" in str(error) and "device_count" in str(error)
else:
    raise AssertionError("no error")
"""


@pytest.mark.slow
def test_each_process_sweeps_on_its_own_devices():
    run_processes(SETUP + ALONE)


@pytest.mark.slow
def test_processes_sweep_together_and_each_has_the_whole_result(tmp_path):
    run_processes(f"folder = {str(tmp_path)!r}\n{SETUP}{TOGETHER}")
