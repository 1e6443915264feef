"""`batch_size="tune"`: the values of a sweep, with a size that was measured."""

import math
import time

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

ONE = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
SPACE = {"x": ep.Linspace(0, 50, 320_000), "scale": jnp.float32(3.0)}


@pytest.fixture
def timed(monkeypatch):
    """Return a function for which batches of 256 points are fastest."""
    now = [0.0]

    def tick(x):
        now[0] += x.size * (1 + abs(math.log2(x.size) - 8))
        return x

    def fn(p):
        struct = jax.ShapeDtypeStruct((), jnp.float32)
        x = jax.pure_callback(tick, struct, p["x"], vmap_method="expand_dims")
        return {"y": jnp.sin(x) * p["scale"]}

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return fn


def test_the_best_size_is_found_and_remembered(timed, tmp_path):
    asked = {"batch_size": "tune", "mesh": ONE}
    begun = ep.sweep(timed, SPACE, batch_size=1000, store=tmp_path / "s", mesh=ONE)
    expected = {"y": begun.values["y"][:]}
    result = ep.sweep(timed, SPACE, **asked)
    assert result.batch_size == 256
    close(result.values, expected)
    tried = "1024: 1.00, 256: 0.33, 16: 1.67, 64: 1.00"
    assert result.made == (("tuned", tried),)
    assert "tuned" in result.to_xarray().attrs
    reduced = ep.sweep(timed, SPACE, reduce=ep.reduce.Mean(), **asked)
    assert (reduced.batch_size, reduced.points) == (256, 320_000)
    assert reduced.made == (("tuned", "remembered"),)
    np.testing.assert_allclose(reduced.values["y"], expected["y"].mean(), rtol=1e-4)
    # A store keeps the size that it was begun with.
    again = ep.sweep(timed, SPACE, store=tmp_path / "s", **asked)
    assert (again.batch_size, begun.batch_size) == (1000, 1000)


def test_points_with_effects_are_computed_once():
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


def test_static_values_and_failing_points():
    def fn(p):
        x = p["f"](p["x"])
        return eqx.error_if(x, p["x"] > 9.5, "too large")

    space = {"f": ep.Static([jnp.sin, jnp.cos]), "x": ep.Linspace(0, 10, 400)}
    settings = {"on_error": "mark", "mesh": ONE}
    tuned = ep.sweep(fn, space, batch_size="tune", **settings)
    plain = ep.sweep(fn, space, **settings)
    assert np.array_equal(tuned.ok, plain.ok) and not tuned.ok.all()
    close(tuned.values, plain.values)


def test_a_size_that_was_not_compared_is_not_remembered():
    for _ in range(2):
        small = ep.sweep(jnp.tan, ep.Linspace(0, 1, 9), batch_size="tune")
        assert small.made == (("tuned", f"{small.batch_size}: 1.00"),)
    with jax.disable_jit():  # the plain loop has no batches
        assert ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), batch_size="tune").made == ()


@pytest.mark.usefixtures("unchecked")
def test_errors():
    class Pool:
        def submit(self, fn, *args):
            raise AssertionError

    with pytest.raises(ValueError, match=r"`batch_size='tune'` .* `executor`"):
        ep.sweep(jnp.sin, SPACE, batch_size="tune", executor=Pool())
    with pytest.raises(ValueError, match="Did you mean `tune`"):
        ep.sweep(jnp.sin, SPACE, batch_size="tuned")
    with pytest.raises(ValueError, match="Known names: `auto`, `a positive integer`"):
        ep.sweeper(jnp.sin, SPACE, batch_size="tune")
