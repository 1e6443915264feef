"""`batch_size="tune"`: the values of a sweep, with a size that was measured."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few
from support.sweeps import FUNCTIONS, close
from support.ways import SPACES

import eqx_pipe as ep
from eqx_pipe._cache import LRUCache
from eqx_pipe._sweep.compute import tune as module


@pytest.fixture(autouse=True)
def sizes(monkeypatch):
    """No size is remembered."""
    monkeypatch.setattr(module, "_sizes", LRUCache(16))
    return module._sizes._entries


@pytest.fixture
def clock(monkeypatch):
    """Measure by a clock by which the best size is 64, and trying costs nothing."""
    compute = module._Clock.seconds

    def seconds(self, size, count):
        compute(self, size, count)
        return (1.0 + abs(math.log2(size) - 6)) * count

    monkeypatch.setattr(module._Clock, "seconds", seconds)
    monkeypatch.setattr(module, "_GAINS", dict.fromkeys(module._GAINS, math.inf))


def wave(p):
    return {"y": jnp.sin(p["x"]) * p["scale"]}


SPACE = {"x": ep.Linspace(0, 50, 20_000), "scale": jnp.float32(3.0)}
ONE = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])


def test_the_best_size_is_found_and_remembered(clock, sizes, tmp_path):
    plain = ep.sweep(wave, SPACE, mesh=ONE).values
    mean = {"reduce": ep.reduce.Mean(), "batch_size": "tune", "mesh": ONE}
    result = ep.sweep(wave, SPACE, batch_size="tune", mesh=ONE)
    assert result.batch_size == 64
    close(result.values, plain)
    ((name, tried),) = result.made
    assert [name, tried] == [
        "tuned",
        "1008: 1.00, 256: 0.60, 16: 0.60, 64: 0.20, 1024: 1.00",
    ]
    assert "tuned" in result.to_xarray().attrs
    assert [*sizes.values()] == [64]
    again = ep.sweep(wave, SPACE, batch_size="tune", mesh=ONE)
    assert (again.batch_size, again.made) == (64, (("tuned", "remembered"),))
    close(again.values, plain)
    reduced = ep.sweep(wave, SPACE, **mean)
    assert (reduced.batch_size, reduced.points) == (64, 20_000)
    close(reduced.values, {"y": plain["y"].mean()})
    # A store keeps the size that it was begun with, whatever is found later.
    asked = {"batch_size": "tune", "store": tmp_path / "runs.zarr", "mesh": ONE}
    assert ep.sweep(wave, SPACE, **asked).batch_size == 64
    sizes.clear()
    again = ep.sweep(wave, SPACE, **asked)
    assert again.batch_size == 64 and not sizes
    close({"y": again.values["y"][:]}, plain)


def test_points_with_effects_are_computed_once(clock):
    counted = []

    def fn(x):
        jax.debug.callback(lambda x: counted.append(float(x)), x)
        return x

    result = ep.sweep(fn, ep.Linspace(0, 1, 300), batch_size="tune", mesh=ONE)
    assert sorted(counted) == sorted(np.linspace(0, 1, 300, dtype="f4").tolist())
    assert result.made == ()


@few
@given(FUNCTIONS, st.sampled_from(sorted(SPACES)), st.booleans())
def test_values_are_those_of_a_sweep(fn, which, ordered):
    space, key = SPACES[which](), jr.key(3)
    size = ep.Space(space).size if not isinstance(space, ep.Space) else space.size
    order_by = np.arange(size)[::-1] if ordered else None
    tuned = ep.sweep(fn, space, key=key, batch_size="tune", order_by=order_by)
    close(tuned.values, ep.sweep(fn, space, key=key).values)


def test_static_values_and_failing_points(clock):
    def fn(p):
        x = p["f"](p["x"])
        return eqx.error_if(x, p["x"] > 9.5, "too large")

    space = {"f": ep.Static([jnp.sin, jnp.cos]), "x": ep.Linspace(0, 10, 400)}
    settings = {"on_error": "mark", "mesh": ONE}
    tuned = ep.sweep(fn, space, batch_size="tune", **settings)
    plain = ep.sweep(fn, space, **settings)
    assert np.array_equal(tuned.ok, plain.ok) and not tuned.ok.all()
    close(tuned.values, plain.values)


def test_a_size_that_was_not_compared_is_not_remembered(sizes):
    small = ep.sweep(wave, {**SPACE, "x": ep.Linspace(0, 1, 9)}, batch_size="tune")
    assert small.made == (("tuned", f"{small.batch_size}: 1.00"),)
    assert not sizes
    with jax.disable_jit():  # the plain loop has no batches
        assert ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), batch_size="tune").made == ()


@pytest.mark.usefixtures("unchecked")
def test_what_is_wrong_is_said():
    class Pool:
        def submit(self, fn, *args):
            raise AssertionError

    with pytest.raises(ValueError, match=r"`batch_size='tune'` .* `executor`"):
        ep.sweep(wave, SPACE, batch_size="tune", executor=Pool())
    with pytest.raises(ValueError, match="Did you mean `tune`"):
        ep.sweep(wave, SPACE, batch_size="tuned")
    with pytest.raises(ValueError, match="Known names: `auto`, `a positive integer`"):
        ep.sweeper(wave, SPACE, batch_size="tune")
