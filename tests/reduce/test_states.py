"""Reducers without a sweep: every dtype, its limits, and no points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import slow_unless

import eqx_pipe as ep

# Each with its limits, a tie, and (last) a value that is not counted.
NUMBERS = {
    "bool": [True, False, True, False, True, True],
    "int8": [3, -128, 127, 3, -128, 99],
    "uint32": [3, 0, 2**32 - 1, 3, 2**32 - 1, 99],
    "float32": [3.5, -np.inf, np.inf, 3.5, -2.25, 99],
    "bfloat16": [3.5, -1.25, 7.0, 3.5, -1.25, 99],
}
OK = np.array([True, True, True, True, True, False])
EDGES = {"bool": [0, 1, 2], "uint32": [0.5, 3, 2**33]}


def all_reduced(reducers, values, ok):
    """Return the results of a batch whose halves are absorbed, then merged."""
    struct = jax.ShapeDtypeStruct(values.shape[1:], values.dtype)
    half = len(values) // 2

    def run(reducer, values, ok):
        none = reducer.begin(struct)
        first, second = (
            reducer.absorb(none, v, o)
            for v, o in ((values[:half], ok[:half]), (values[half:], ok[half:]))
        )
        return reducer.merge(first, second)

    @jax.jit
    def run_all(values, ok):
        return [run(reducer, values, ok) for reducer in reducers]

    states = run_all(values, jnp.asarray(ok))
    return [r.finish(state) for r, state in zip(reducers, states, strict=True)]


def reduced(reducer, values, ok):
    return all_reduced([reducer], values, ok)[0]


@pytest.mark.parametrize("dtype", slow_unless({"uint32", "bfloat16"}, NUMBERS))
def test_every_dtype(dtype):
    values = jnp.asarray(np.asarray(NUMBERS[dtype]).astype(jnp.dtype(dtype)))
    kept = np.asarray(values)[OK].astype(object if dtype != "bool" else bool)
    wide = kept.astype(np.float64)
    low, high = int(np.argmin(wide)), int(np.argmax(wide))
    edges = EDGES.get(dtype, [-1000, -1.25, 3, 4, 127])
    reducers = {
        "min": ep.reduce.Min(),
        "max": ep.reduce.Max(),
        "argmin": ep.reduce.ArgMin(),
        "argmax": ep.reduce.ArgMax(),
        "top": ep.reduce.TopK(3),
        "low": ep.reduce.TopK(7, mode="min"),
        "counts": ep.reduce.Histogram(edges),
        "sum": ep.reduce.Sum(),
        "mean": ep.reduce.Mean(),
    }
    found = all_reduced(list(reducers.values()), values, OK)
    got = dict(zip(reducers, found, strict=True))
    assert (got["min"], got["max"]) == (kept[low], kept[high])
    assert got["min"].dtype == got["max"].dtype == got["argmin"].value.dtype == dtype
    assert (got["argmin"].index, got["argmin"].value) == (low, kept[low])
    assert (got["argmax"].index, got["argmax"].value) == (high, kept[high])
    for name, key in (("top", -wide), ("low", wide)):
        order = np.argsort(key, kind="stable")[: reducers[name].k]
        assert got[name].index.tolist() == order.tolist()
        assert got[name].value.astype(float).tolist() == wide[order].tolist()
    counts = got["counts"]
    assert counts.counts.tolist() == np.histogram(wide, edges)[0].tolist()
    assert counts.below == np.sum(wide < edges[0])
    assert counts.above == np.sum(wide > edges[-1])
    if dtype != "float32":  # an infinite sum
        assert float(got["sum"]) == wide.sum()
        assert got["mean"].dtype == (dtype if dtype == "bfloat16" else "float32")
        np.testing.assert_allclose(float(got["mean"]), wide.mean(), rtol=1e-2)


@pytest.mark.parametrize("dtype", slow_unless({"bfloat16"}, ["bfloat16", "int8"]))
def test_no_points(dtype):
    """No points and only failed points give the same results."""
    nothing = np.nan if dtype in ("float32", "bfloat16") else 0
    values = jnp.asarray(np.asarray(NUMBERS[dtype]).astype(jnp.dtype(dtype)))
    reducers = [
        ep.reduce.Min(),
        ep.reduce.Max(),
        ep.reduce.ArgMin(),
        ep.reduce.ArgMax(),
    ]
    others = [ep.reduce.TopK(2), ep.reduce.Mean(), ep.reduce.Var()]
    *failed, top, mean, var = all_reduced(
        [*reducers, *others], values, np.zeros(6, bool)
    )
    struct = jax.ShapeDtypeStruct((), values.dtype)
    none = [reducer.finish(reducer.begin(struct)) for reducer in reducers]
    for reducer, got in zip([*reducers, *reducers], [*failed, *none], strict=True):
        if isinstance(reducer, ep.reduce.ArgMin | ep.reduce.ArgMax):
            assert got.index is None
            got = got.value
        assert got.dtype == dtype
        np.testing.assert_equal(got.astype(float), float(nothing))
    assert top.index.shape == top.value.shape == (0,)
    assert np.isnan(mean.astype(float)) and np.isnan(var.astype(float))


def test_complex_numbers_have_a_sum_a_mean_and_a_real_variance():
    values = jnp.asarray([1 + 2j, 3 - 1j, -2 + 0.5j, 0.25j, 7, 99j], jnp.complex64)
    kept = np.asarray(values)[:5].astype(complex)
    total, mean, var = all_reduced(
        [ep.reduce.Sum(), ep.reduce.Mean(), ep.reduce.Var(ddof=1)], values, OK
    )
    np.testing.assert_allclose(total, kept.sum(), rtol=1e-6)
    np.testing.assert_allclose(mean, kept.mean(), rtol=1e-6)
    np.testing.assert_allclose(var, kept.var(ddof=1), rtol=1e-6)
    assert (mean.dtype, var.dtype) == ("complex64", "float32")


def test_too_few_points_for_a_variance_give_nan():
    assert np.isnan(reduced(ep.reduce.Var(ddof=5), jnp.arange(6.0), OK))


def test_by_is_keyword_only():
    functions = [lambda *_: 0] * 4
    assert ep.reduce.Reducer(*functions, by="a").by == "a"
    with pytest.raises(TypeError, match="positional"):
        ep.reduce.Reducer(*functions, None, "a")
