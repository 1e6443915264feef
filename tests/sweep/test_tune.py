"""`batch_size="tune"`: the values of a sweep, with a size that was found on the way."""

import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few
from support.sweeps import FUNCTIONS, SPACES, close, some_space

import eqx_pipe as ep
from eqx_pipe._cache import LRUCache
from eqx_pipe._sweep import tune
from eqx_pipe._sweep.compute.job import Job


@pytest.fixture(autouse=True)
def sizes(monkeypatch):
    """No size is remembered."""
    monkeypatch.setattr(tune, "_sizes", LRUCache(16))
    return tune._sizes._entries


@pytest.fixture
def clock(monkeypatch):
    """A clock by which the best size is 64."""
    compute = tune._Search._seconds

    def seconds(self, size, count):
        each = 1.0 + abs(math.log2(size) - 6)
        return None if compute(self, size, count) is None else each * count

    monkeypatch.setattr(tune._Search, "_seconds", seconds)
    monkeypatch.setattr(tune, "_GAINS", dict.fromkeys(tune._GAINS, math.inf))


def wave(p):
    return {"y": jnp.sin(p["x"]) * p["scale"]}


SPACE = {"x": ep.Linspace(0, 50, 20_000), "scale": jnp.float32(3.0)}
LONG = SPACE | {"x": ep.Linspace(0, 50, 2_000_000)}
ONE = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])


def test_the_best_size_is_found_and_remembered(clock, sizes):
    result = ep.sweep(wave, SPACE, batch_size="tune", mesh=ONE)
    assert result.batch_size == 64
    close(result.values, ep.sweep(wave, SPACE, mesh=ONE).values)
    ((name, tried),) = result.made
    assert name == "tuned" and "256: 0.60, 64: 0.20, 16: 0.60" in tried
    assert "tuned" in result.to_xarray().attrs
    assert [*sizes.values()] == [64]
    again = ep.sweep(wave, SPACE, batch_size="tune", mesh=ONE)
    assert (again.batch_size, again.made) == (64, (("tuned", "remembered"),))
    close(again.values, result.values)


@given(st.sampled_from([16, 96, 1024]), st.floats(0, 14))
def test_one_valley_is_looked_for_where_it_can_be(rule, valley):
    """Of six sizes beside that of the rule the best is among the first four."""

    def took(size):
        return 1 + abs(math.log2(size) - valley)

    search = object.__new__(tune._Search)
    search.best, search.tried, gains = rule, {rule: took(rule)}, dict(tune._GAINS)
    gains.pop(rule, None)
    best = min([rule, *gains], key=took)
    for _ in range(4):
        size, before = next(iter(gains)), search.best
        assert gains.pop(size) > 0
        search.tried[size] = took(size)
        search.best = min(before, size, key=took)
        gains = search._reordered(gains, size, before)
    assert search.best == best


def test_no_point_is_computed_twice(clock, monkeypatch):
    spans, fill = [], Job.fill

    def counted(self, rows, first, last, *rest):
        spans.append((first, last))
        return fill(self, rows, first, last, *rest)

    monkeypatch.setattr(Job, "fill", counted)
    result = ep.sweep(wave, LONG, batch_size="tune", mesh=ONE)
    starts, ends = zip(*spans, strict=True)
    assert len(spans) > 10 and starts == (0, *ends[:-1]) and ends[-1] == len(result)
    assert result.batch_size == 64


def test_points_with_effects_are_computed_in_turn(clock):
    counted = []

    def fn(x):
        jax.debug.callback(lambda x: counted.append(float(x)), x)
        return x

    result = ep.sweep(fn, ep.Linspace(0, 1, 300), batch_size="tune", mesh=ONE)
    assert sorted(counted) == sorted(np.linspace(0, 1, 300, dtype="f4").tolist())
    assert result.made == ()


@few
@given(FUNCTIONS, SPACES, st.booleans())
def test_values_are_those_of_a_sweep(fn, which, ordered):
    space, key = some_space(which), jr.key(3)
    size = ep.Space(space).size if not isinstance(space, ep.Space) else space.size
    order_by = np.arange(size)[::-1] if ordered else None
    tuned = ep.sweep(fn, space, key=key, batch_size="tune", order_by=order_by)
    close(tuned.values, ep.sweep(fn, space, key=key).values)


def test_static_values_failing_points_and_reductions(clock):
    import equinox as eqx

    def fn(p):
        x = p["f"](p["x"])
        return eqx.error_if(x, p["x"] > 9.5, "too large")

    space = {"f": ep.Static([jnp.sin, jnp.cos]), "x": ep.Linspace(0, 10, 400)}
    settings = {"on_error": "mark", "mesh": ONE}
    tuned = ep.sweep(fn, space, batch_size="tune", **settings)
    plain = ep.sweep(fn, space, **settings)
    assert np.array_equal(tuned.ok, plain.ok) and not tuned.ok.all()
    close(tuned.values, plain.values)
    reduced = ep.sweep(
        wave, SPACE, batch_size="tune", reduce=ep.reduce.Mean(), mesh=ONE
    )
    assert (reduced.batch_size, reduced.points) == (64, 20_000)
    close(
        reduced.values, ep.sweep(wave, SPACE, reduce=ep.reduce.Mean(), mesh=ONE).values
    )


def test_a_store_keeps_the_size_that_was_found(clock, tmp_path, monkeypatch):
    path = tmp_path / "runs.zarr"
    settings = {"batch_size": "tune", "store": path, "mesh": ONE}
    assert ep.sweep(wave, SPACE, **settings).batch_size == 64
    monkeypatch.setattr(tune, "tuned", None)  # is not called
    again = ep.sweep(wave, SPACE, **settings)
    assert again.batch_size == 64
    close(
        {"y": again.values["y"][:]}, {"y": ep.sweep(wave, SPACE, mesh=ONE).values["y"]}
    )


def test_a_size_that_was_not_compared_is_not_remembered(sizes):
    small = ep.sweep(wave, {**SPACE, "x": ep.Linspace(0, 1, 9)}, batch_size="tune")
    assert small.made == (("tuned", f"{small.batch_size}: 1.00"),)
    assert not sizes


def test_the_plain_loop_has_no_batches():
    with jax.disable_jit():
        assert ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), batch_size="tune").made == ()


@pytest.mark.usefixtures("unchecked")
def test_what_is_wrong_is_said():
    class Pool:
        def submit(self, fn, *args):
            raise AssertionError

    with pytest.raises(ValueError, match=r"`batch_size` is 'tune'.*`executor`"):
        ep.sweep(wave, SPACE, batch_size="tune", executor=Pool())
    with pytest.raises(ValueError, match="Did you mean `tune`"):
        ep.sweep(wave, SPACE, batch_size="tuned")
    with pytest.raises(ValueError, match="Known names: `auto`, `a positive integer`"):
        ep.sweeper(wave, SPACE, batch_size="tune")
