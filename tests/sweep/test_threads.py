"""The number of threads per device of a sweep, on which values do not depend."""

import os

import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from jax.sharding import AxisType
from support.helpers import slow_unless
from support.sweeps import close

import eqx_pipe as ep

BATCH = 64

CORES = getattr(os, "sched_getaffinity", lambda pid: range(os.cpu_count() or 1))(0)

several_cores = pytest.mark.skipif(
    len(CORES) == 1, reason="XLA splits nothing for one core"
)


def is_split(text):
    """Return whether XLA splits a step over threads, outside its own libraries."""
    lines = (line for line in text.splitlines() if "kind=kCustom" not in line)
    return any("outer_dimension_partitions" in line for line in lines)


def smooth(p, key):
    x = p["a"] * jnp.linspace(0.0, 1.0, 512) + jr.normal(key, (512,))
    return jnp.tanh(jnp.exp(-x) * jnp.sin(3 * x)) / (1 + x**2)


def logs(p, key):
    x = jnp.log1p(p["a"] * jr.uniform(key, (500,))) ** p["b"]
    return jnp.cumsum(x), jnp.sum(x), jnp.max(x * jnp.arange(500.0))


def pretend(monkeypatch, cores):
    """Let this process believe that it may use that many cores."""
    have = lambda pid: set(range(cores))  # noqa: E731
    monkeypatch.setattr(os, "sched_getaffinity", have, raising=False)


def swept(fn, devices, cores, monkeypatch):
    pretend(monkeypatch, cores)
    space = {"a": ep.Linspace(0.1, 2, 16), "b": ep.Linspace(0.2, 0.9, 15)}
    mesh = jax.make_mesh(
        (devices,), ("i",), (AxisType.Auto,), devices=jax.devices()[:devices]
    )
    return ep.sweep(fn, space, key=jr.key(0), batch_size=BATCH, mesh=mesh).values


@several_cores
@pytest.mark.parametrize("fn", slow_unless({smooth}, [smooth, logs]))
def test_values_are_the_same(fn, programs, monkeypatch):
    alone = swept(fn, 1, 2, monkeypatch)
    several = [swept(fn, n, min(n, 4), monkeypatch) for n in (1, 2, 8)]
    first, *others = (made.as_text() for _, made in programs)
    assert is_split(first)  # else nothing is compared here
    assert not any(map(is_split, others))
    for values in several:
        close(alone, values)


@several_cores
def test_cores_without_a_device_may_help(programs, monkeypatch):
    swept(smooth, 2, 16, monkeypatch)
    assert is_split(programs[0][1].as_text())


@several_cores
def test_cores_without_points_may_help(programs, monkeypatch):
    swept(smooth, 8, 8, monkeypatch)  # 240 points are four batches
    assert is_split(programs[0][1].as_text())


def test_reduced_sweeps_too(programs, monkeypatch):
    space = {"a": ep.Linspace(0.1, 2, 50_000)}
    for cores, unsplit in ((8, True), (9, False)):
        pretend(monkeypatch, cores)
        programs.clear()
        found = ep.sweep(lambda p: p["a"] * 2, space, reduce=ep.reduce.Mean())
        assert float(found.values) == pytest.approx(2.1, abs=1e-4)
        options, _ = programs[0]  # later ones merge states, on one device
        assert bool(options) == unsplit
