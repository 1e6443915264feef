"""`Quantile`: exact while few, within its bound when many, however it is merged."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_pipe as ep

SHARES = (0.0, 0.1, 0.5, 0.93, 1.0)


def wrong(x, found, shares):
    """Return the largest error in rank."""
    x, places = np.sort(x), np.array(shares) * (len(x) - 1)
    below, above = np.searchsorted(x, found), np.searchsorted(x, found, side="right")
    return max(np.max(below - places), np.max(places - above))


def bound(n, size):
    return n * math.log2(n / size) / (2 * size)


RANDOM = np.random.default_rng(0).normal(size=1000).astype(np.float32)
MANY = {
    "random": RANDOM,
    "sorted": np.sort(RANDOM),
    "falling": -np.sort(RANDOM),
    "ties": np.round(RANDOM),
    "apart": np.concatenate([np.sort(RANDOM)[::2], np.sort(RANDOM)[1::2]]),
}


def test_many_numbers_are_within_the_bound():
    reduce = ep.reduce.Quantile(SHARES, size=16)
    run = ep.sweeper(lambda p: p["x"], {"x": ep.Values(RANDOM)}, reduce=reduce)
    for name, x in MANY.items():
        found = run({"x": ep.Values(x)}).values
        assert found.shape == (5,) and np.all(np.diff(found) >= 0)
        assert wrong(x, found, SHARES) <= bound(len(x), 16) + 1, name


def test_few_numbers_are_exact_leaf_by_leaf_and_over_a_dim():
    space = {"a": ep.Values([1.0, -2.0]), "x": ep.Values(RANDOM[:50])}

    def fn(p):
        y = eqx.error_if(p["a"] * p["x"], p["x"] > 1.5, "too large")
        return {"y": jnp.stack([y, y**2]), "n": (y * 10).astype(jnp.int32), "b": y > 0}

    reduce = ep.reduce.Quantile(SHARES, over="x")
    found = ep.sweep(fn, space, reduce=reduce, on_error="mark").values
    values = ep.sweep(fn, space, on_error="mark")
    ok = values.ok.reshape(2, 50)
    for name, leaf in values.grid().items():
        for k in range(2):
            few = np.quantile(leaf[k][ok[k]].astype(float), SHARES, axis=0)
            np.testing.assert_allclose(found[name][k], few, rtol=1e-5, atol=1e-6)
    assert 0 < (~ok).sum() < 50


def test_nan_inf_and_no_points():
    def found(x, where=None):
        space = {"x": ep.Values(jnp.asarray(x))}
        fn = lambda p: eqx.error_if(p["x"], p["x"] == 99, "no")  # noqa: E731
        reduce = ep.reduce.Quantile(0.5, size=4)
        return ep.sweep(fn, space, reduce=reduce, on_error="mark").values

    assert np.isnan(found([1.0, np.nan, 3.0]))
    assert found([-np.inf, 2.0, np.inf]) == 2
    assert np.isnan(found([99.0, 99.0, 99.0]))


def test_merging_is_within_the_bound_in_any_order():
    reducer = ep.reduce.Quantile(SHARES, size=16)
    state = reducer.begin(jax.ShapeDtypeStruct((), jnp.float32))
    absorb, merge = jax.jit(reducer.absorb), jax.jit(reducer.merge)
    x = MANY["apart"].reshape(8, 125)
    parts = [absorb(state, row, np.ones(125, bool)) for row in x]
    left = parts[0]
    for part in parts[1:]:
        left = merge(left, part)
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [merge(b, a) for a, b in pairs]
    for merged in (left, parts[0]):
        assert wrong(x.ravel(), reducer.finish(merged), SHARES) <= bound(1000, 16) + 1


@pytest.mark.parametrize("size", [1, 2.5])
def test_wrong_sizes(size, unchecked):
    with pytest.raises((TypeError, ValueError), match="`size` is"):
        ep.reduce.Quantile(0.5, size=size)
