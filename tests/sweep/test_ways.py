"""Every way to run a sweep gives the same values, draws and failed points."""

import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few, slow_unless
from support.sweeps import close, closed_form, loop, noise, scan, whole
from support.ways import KEY, SPACES, WAYS, by_hand, expected

import eqx_pipe as ep

pytest.importorskip("zarr")
pytest.importorskip("cloudpickle")

pytestmark = pytest.mark.gpu

FUNCTIONS = st.sampled_from([closed_form, loop, scan, noise, whole])
# Each goes through other code: batches, orders, stores, executors, kept programs.
QUICK = {
    "all devices",
    "one device",
    "many calls",
    "another order",
    "a store, resumed",
    "a store, grown",
    "saved and loaded",
    "an executor and a store",
    "a sweeper",
}
ways = pytest.mark.parametrize("way", slow_unless(QUICK, WAYS))


def run(way, fn, space, **asked):
    """Run a sweep in a way; what it keeps in a store is read before the store goes."""
    with tempfile.TemporaryDirectory() as folder:
        result = WAYS[way](fn, space, Path(folder), key=KEY, **asked)
        values = jax.tree.map(lambda x: x[...], result.values)
        return values, result


@ways
@few
@given(FUNCTIONS, st.sampled_from(sorted(SPACES)))
def test_values(way, fn, name):
    values, result = run(way, fn, SPACES[name]())
    close(values, expected(fn, name))
    assert result.ok.all() and len(result) == SPACES[name]().size


def drawn(point, key):
    return jr.key_data(key)


@ways
@few
@given(st.sampled_from(sorted(set(SPACES) - {"keys"})))
def test_keys(way, name):
    """Each point draws by its position, so one bit that differs is an error."""
    values, _ = run(way, drawn, SPACES[name]())
    np.testing.assert_array_equal(values, expected(drawn, name))


def fails_at(bad):
    def fn(point, key):
        x = point["b"] + 10 * point["a"].astype(jnp.float32)
        wrong = jnp.any(jnp.stack([jnp.isclose(x, b) for b in bad])) if bad else False
        x = eqx.error_if(x, wrong, "this one")
        return {"x": x + jr.uniform(key), "n": jnp.int32(7), "key": key}

    return fn


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "way", slow_unless(QUICK, [way for way in WAYS if way != "a plain loop"])
)
@few
@given(st.sets(st.integers(0, 7)))
def test_failed_points(way, bad):
    space = SPACES["a product"]()
    points = [space.point(i) for i in bad]
    numbers = [float(p["b"]) + 10 * float(p["a"]) for p in points]
    values, result = run(way, fails_at(numbers), space, on_error="mark")
    good = np.array([i not in bad for i in range(space.size)])
    np.testing.assert_array_equal(result.ok, good)
    assert set(result.errors) == bad
    assert all("this one" in text for text in result.errors.values())
    clean = by_hand(fails_at([]), space, KEY)
    np.testing.assert_allclose(values["x"][good], clean["x"][good], rtol=1e-6)
    assert np.isnan(values["x"][~good]).all() and not values["n"][~good].any()
    np.testing.assert_array_equal(values["n"][good], 7)
    keys = (jr.key_data(k)[good] for k in (values["key"], clean["key"]))
    np.testing.assert_array_equal(*keys)


@few
@given(
    FUNCTIONS,
    st.sampled_from(sorted(set(SPACES) - {"static values"})),  # it refuses these
    st.sampled_from([None, 2]),
)
def test_values_of_vmap_space(fn, name, batch_size):
    def swept(key):
        return ep.vmap_space(fn, SPACES[name](), key=key, batch_size=batch_size)

    values = jax.jit(swept)(KEY) if name != "keys" else swept(KEY)
    close(values, expected(fn, name))
