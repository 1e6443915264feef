"""Reductions of sweeps equal those of all values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.reducers import best
from support.sweeps import close, make_mesh

import eqx_pipe as ep

pytestmark = pytest.mark.gpu


def space(n):
    return ep.Space({"x": ep.Linspace(-1, 1, n), "y": ep.Values([2, 5, 3])})


def of_leaves(point):
    x = point["x"] * point["y"].astype(jnp.float32) + 3
    n = jnp.round(x * 4 + 0.3).astype(jnp.int32) % 7
    return {"a": jnp.stack([x, x**2]), "n": n, "s": x}


LEAVES = {
    "mean": (ep.reduce.Mean(), lambda v: jtu.tree_map(lambda x: x.mean(0), v)),
    "sum": (ep.reduce.Sum(by="a"), lambda v: v["a"].sum(0)),
    "var": (ep.reduce.Var(), lambda v: jtu.tree_map(lambda x: x.var(0), v)),
    "max": (
        ep.reduce.Max(by=lambda out: (out["n"], -out["a"])),
        lambda v: (v["n"].max(0), (-v["a"]).max(0)),
    ),
    "argmax": (
        ep.reduce.ArgMax(by=lambda out: out["a"][0]),
        lambda v: (v["a"][:, 0].argmax(), v["a"][:, 0].max()),
    ),
    "ties": (ep.reduce.TopK(5, by="n"), lambda v: best(v["n"], 5)),
}


def test_it_is_the_reduction_of_each_leaf_on_any_devices():
    reduce = {name: reducer for name, (reducer, _) in LEAVES.items()}
    values = ep.sweep(of_leaves, space(21), batch_size=4).values
    found = [
        ep.sweep(
            of_leaves, space(21), reduce=reduce, batch_size=4, mesh=make_mesh(n)
        ).values
        for n in (1, 8)
    ]
    close(*found)
    for name, (_, of) in LEAVES.items():
        for pair in zip(
            *map(jtu.tree_leaves, (found[0][name], of(values))), strict=True
        ):
            np.testing.assert_allclose(*pair, rtol=2e-5, atol=2e-6, err_msg=name)


def test_nan_is_never_selected():
    values = ep.Values([np.nan, 2.0, np.inf, 1.0, np.nan, 1.0])
    reduce = [ep.reduce.ArgMin(), ep.reduce.TopK(9), ep.reduce.Min(), ep.reduce.Sum()]
    low, top, least, total = ep.sweep(lambda x: x, values, reduce=reduce).values
    assert (low.index, top.index.tolist()) == (3, [2, 1, 3, 5])
    assert np.isnan(least) and np.isnan(total)
    none = ep.sweep(lambda x: x * np.nan, values, reduce=ep.reduce.ArgMin()).values
    assert none.index is None and np.isnan(none.value)
    infinite = ep.sweep(lambda x: x, ep.Values([1.0, np.inf]), reduce=ep.reduce.Sum())
    assert infinite.values == np.inf


@given(
    st.sampled_from([np.int8, np.int32, np.uint32]),
    st.integers(-(2**31), 2**31 - 1),
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.integers(1, 5),
)
@example(np.int32, 2**30 + 12345, [0, 1, 2, 5], 3)
def test_the_variance_of_integers_ignores_an_offset(dtype, where, away, batch_size):
    info = np.iinfo(dtype)
    values = np.clip(where + np.array(away), info.min, info.max).astype(dtype)
    found = ep.sweep(
        lambda x: x, ep.Values(values), reduce=ep.reduce.Var(), batch_size=batch_size
    ).values
    expected = np.var(values.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_variance_of_huge_numbers():
    def variance(values):
        values = ep.Values(np.float32(values))
        found = [
            ep.sweep(
                lambda x: x, values, reduce=ep.reduce.Var(), batch_size=n
            ).values.item()
            for n in (1, 8)
        ]
        assert found[0] == found[1]
        return found[0]

    assert variance([1e20] * 5) == 0
    assert variance([1e30, 2e30, 3e30]) == np.inf


def test_integers_are_exact():
    big = ep.Values(np.full(1000, 2**31 - 1, np.int32), dim="b")
    points = {"i": ep.Values(np.arange(50)), "b": big, "m": ep.Values(-np.arange(50))}
    values = ep.sweep(
        lambda p: {"up": p["b"], "down": p["m"] * 40_000_000, "yes": p["b"] > 0},
        points,
        reduce=ep.reduce.Sum(),
    ).values
    n = 2_500_000
    assert values["up"] == n * (2**31 - 1) and values["up"].dtype == np.int64
    assert values["down"] == -1225 * 40_000_000 * 50_000
    assert values["yes"] == n


def test_floats_lose_no_digits():
    """A naive float32 mean of many values is wrong in the third digit."""
    space = {"i": ep.Values(np.arange(4000)), "k": ep.Values(np.arange(1000))}
    reduce = {"mean": ep.reduce.Mean(), "var": ep.reduce.Var(), "sum": ep.reduce.Sum()}

    def fn(p):
        return 1000 + ((p["i"] * 617 + p["k"]) % 1000).astype(jnp.float32) / 1000

    got = ep.sweep(fn, space, reduce=reduce).values
    k = 1000 + np.arange(1000) / 1000
    np.testing.assert_allclose(got["mean"], k.mean(), rtol=1e-7)
    np.testing.assert_allclose(got["sum"], k.sum() * 4000, rtol=1e-7)
    np.testing.assert_allclose(got["var"], k.var(), rtol=1e-3)  # the data are rounded


def test_indices_beyond_32_bits():
    def found(reducer):
        state = reducer.begin(jax.ShapeDtypeStruct((), jnp.float32))
        seen = jnp.uint32(5), jnp.uint32(3)  # the low word and the high one
        far = eqx.tree_at(lambda s: s.seen, state, seen)
        here = reducer.absorb(far, jnp.arange(4.0), jnp.ones(4, bool))
        return reducer.finish(here).index

    last = 3 * 2**32 + 5 + 3
    assert found(ep.reduce.ArgMax()) == last
    assert found(ep.reduce.TopK(2)).tolist() == [last, last - 1]


def test_a_histogram_equals_that_of_numpy():
    edges = [0.1, 0.2, 0.3, 0.7]  # not numbers of float32
    x = np.float32([0.1, 0.2, 0.3, 0.7, 0.69999, 0.0, 1.0, 0.10000001])
    x = np.concatenate([x, np.nextafter(x, np.float32(2)), np.float32([np.nan])])
    got = ep.sweep(lambda x: x, ep.Values(x), reduce=ep.reduce.Histogram(edges)).values
    kept = x[~np.isnan(x)].astype(np.float64)
    assert np.array_equal(got.counts, np.histogram(kept, edges)[0])
    assert (got.below, got.above) == (np.sum(kept < 0.1), np.sum(kept > 0.7))
