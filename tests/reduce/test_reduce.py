"""A reduction of a sweep is that of its values; reducers are values with laws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType
from support.sweeps import close

import eqx_pipe as ep
from eqx_pipe._reduce import as_reducers
from eqx_pipe._sweep.compute import reduce_programs as reduced_kernel


def make_mesh(n):
    kind = (AxisType.Auto if n == 2 else AxisType.Explicit,)
    return jax.make_mesh((n,), ("x",), axis_types=kind, devices=jax.devices()[:n])


def outputs(point):
    x = point["x"] * point["y"].astype(jnp.float32) + 3
    return {
        "a": jnp.stack([x, x**2]),
        "n": jnp.round(x * 4 + 0.3).astype(jnp.int32) % 7,
        "s": x,
    }


def space(n):
    return ep.Space({"x": ep.Linspace(-1, 1, n), "y": ep.Values([2, 5, 3])})


def first_of(by=None):
    """What comes first and last: a merge that does not commute."""

    def merge(a, b):
        return (
            a[0] | b[0],
            jnp.where(a[0], a[1], b[1]),
            jnp.where(b[0], b[2], a[2]),
        )

    return ep.reduce.Reducer(
        init=lambda s: (False, jnp.zeros(s.shape, s.dtype), jnp.zeros(s.shape)),
        update=lambda a, v: merge(a, (jnp.array(True), v, v)),
        merge=merge,
        finish=lambda a: a[1:],
        by=by,
    )


# A reducer, and the same of all values at once.
REDUCERS = {
    "mean": (lambda: ep.reduce.Mean(), lambda v: jtu.tree_map(lambda x: x.mean(0), v)),
    "var": (
        lambda: ep.reduce.Var(ddof=1),
        lambda v: jtu.tree_map(lambda x: x.var(0, ddof=1), v),
    ),
    "sum": (lambda: ep.reduce.Sum(), lambda v: jtu.tree_map(lambda x: x.sum(0), v)),
    "min": (lambda: ep.reduce.Min(by="a"), lambda v: v["a"].min(0)),
    "max": (
        lambda: ep.reduce.Max(by=lambda out: (out["n"], -out["s"])),
        lambda v: (v["n"].max(0), (-v["s"]).max(0)),
    ),
    "argmin": (
        lambda: ep.reduce.ArgMin(by="n"),
        lambda v: (int(v["n"].argmin()), v["n"].min()),
    ),
    "argmax": (
        lambda: ep.reduce.ArgMax(by=lambda out: out["a"][0]),
        lambda v: (int(v["a"][:, 0].argmax()), v["a"][:, 0].max()),
    ),
    "top": (
        lambda: ep.reduce.TopK(5, by="n"),
        lambda v: (np.argsort(-v["n"], kind="stable")[:5], -np.sort(-v["n"])[:5]),
    ),
    "low": (
        lambda: ep.reduce.TopK(300, "s", mode="min"),
        lambda v: (np.argsort(v["s"], kind="stable")[:300], np.sort(v["s"])[:300]),
    ),
    "histogram": (
        lambda: ep.reduce.Histogram([0, 1.5, 3, 6], by="n"),
        lambda v: np.histogram(v["n"], [0, 1.5, 3, 6]),
    ),
    "own": (lambda: first_of("s"), lambda v: (v["s"][0], v["s"][-1])),
}


def leaves_of(tree):
    return [np.asarray(x) for x in jtu.tree_leaves(tree)]


def agrees(name, got, values):
    expected = leaves_of(REDUCERS[name][1](values))
    got = leaves_of(got)
    for a, b in zip(got, expected, strict=name != "histogram"):
        assert a.shape == b.shape, name
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6, err_msg=name)


SOME = st.lists(st.sampled_from(sorted(REDUCERS)), min_size=1, max_size=2, unique=True)


@given(SOME, st.sampled_from([1, 19, 67]), st.sampled_from([1, 7, "auto"]))
def test_it_is_the_reduction_of_the_values(names, n, batch_size):
    reduce = {name: REDUCERS[name][0]() for name in names}
    options = {"batch_size": batch_size, "mesh": make_mesh(2)}
    result = ep.sweep(outputs, space(n), reduce=reduce, **options)
    values = ep.sweep(outputs, space(n), **options).values
    assert result.points == len(result) == 3 * n
    for name in names:
        agrees(name, result.values[name], values)


def test_devices_do_not_show():
    reduce = [REDUCERS[name][0]() for name in ("var", "own")]
    one, eight = (
        ep.sweep(outputs, space(21), reduce=reduce, batch_size=4, mesh=make_mesh(n))
        for n in (1, 8)
    )
    close(one.values, eight.values)


def test_points_that_do_not_count_leave_no_trace():
    """The hook for points that fail: they keep their index, and nothing else."""
    names = ("sum", "min", "argmax", "low")
    many = as_reducers("test", {name: REDUCERS[name][0]() for name in names})
    values = ep.sweep(outputs, space(9), batch_size=4).values
    ok = np.arange(27) % 3 > 0
    struct = jtu.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), values)
    spoilt = jtu.tree_map(
        lambda x: np.where(ok.reshape(-1, *[1] * (x.ndim - 1)), x, x.dtype.type(99)),
        values,
    )
    absorb = jax.jit(lambda *args: many.absorb(*args))
    found, again = (
        many.finish(absorb(many.begin(struct), given, jnp.asarray(ok)))
        for given in (values, spoilt)
    )
    for a, b in zip(leaves_of(found), leaves_of(again), strict=True):
        assert np.array_equal(a, b)
    for name in ("sum", "min"):
        agrees(name, found[name], jtu.tree_map(lambda x: x[ok], values))
    for name in ("argmax", "low"):
        assert np.all(ok[found[name].index])


def test_nan_never_wins_and_nothing_gives_none():
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
def test_the_variance_of_integers_does_not_depend_on_where_they_are(
    dtype, where, away, batch_size
):
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
    """Facts: a naive float32 mean of many values is off in the third digit."""
    space = {"i": ep.Values(np.arange(4000)), "k": ep.Values(np.arange(1000))}
    reduce = {"mean": ep.reduce.Mean(), "var": ep.reduce.Var(), "sum": ep.reduce.Sum()}

    def fn(p):
        return 1000 + ((p["i"] * 617 + p["k"]) % 1000).astype(jnp.float32) / 1000

    got = ep.sweep(fn, space, reduce=reduce).values
    k = 1000 + np.arange(1000) / 1000
    np.testing.assert_allclose(got["mean"], k.mean(), rtol=1e-7)
    np.testing.assert_allclose(got["sum"], k.sum() * 4000, rtol=1e-7)
    np.testing.assert_allclose(got["var"], k.var(), rtol=1e-3)  # the data are rounded


def test_a_stop_ends_it_and_the_result_says_where():
    count = ep.reduce.Reducer(
        lambda s: 0, lambda n, _: n + 1, lambda a, b: a + b, int, lambda n: n > 60
    )
    ends = []
    for n in (1, 8):
        result = ep.sweep(
            outputs, space(101), reduce=[count], batch_size=4, mesh=make_mesh(n)
        )
        assert result.values == [result.points]
        assert len(result.ok) == result.points
        ends.append(result.points)
    assert ends == [64] * 2
    assert "64 points, stopped" in repr(result)
    with jax.disable_jit():
        assert ep.sweep(lambda x: x, ep.Linspace(0, 1, 99), reduce=count).points == 61


def test_indices_beyond_32_bits():
    many = as_reducers("test", [ep.reduce.ArgMax(), ep.reduce.TopK(2)])
    state = many.begin(jax.ShapeDtypeStruct((), jnp.float32))
    far = eqx.tree_at(
        lambda s: [s[0].seen, s[1].seen],
        state,
        [(jnp.uint32(5), jnp.uint32(3))] * 2,
    )
    here = many.absorb(far, jnp.arange(4.0), jnp.ones(4, bool))
    best, top = many.finish(here)
    assert best.index == 3 * 2**32 + 5 + 3
    assert top.index.tolist() == [best.index, best.index - 1]


def test_a_slice_counts_from_its_start():
    part = space(50)[140:20:-3]
    result = ep.sweep(outputs, part, reduce=ep.reduce.ArgMax("s"), batch_size=8)
    best = ep.sweep(outputs, part, batch_size=8).best("s", "max")
    assert result.values.index == best.index
    np.testing.assert_allclose(result.values.value, best.value, rtol=2e-5)


def test_keys_come_with_their_points():
    """A reducer that keeps a PRNG key, of a function that draws."""
    space = ep.Linspace(0, 1, 40)

    def fn(x, key):
        return {"draw": jr.normal(key), "key": key}

    values = ep.sweep(fn, space, key=jr.key(1), batch_size=4).values
    kept = ep.reduce.Reducer(
        init=lambda s: (False, jr.key(0)),
        update=lambda a, v: (jnp.array(True), jax.lax.select(a[0], a[1], v["key"])),
        merge=lambda a, b: (a[0] | b[0], jnp.where(a[0], a[1], b[1])),
        finish=lambda a: jr.key_data(a[1]),
    )
    reduce = {"mean": ep.reduce.Mean("draw"), "first": kept}
    got = ep.sweep(fn, space, key=jr.key(1), batch_size=4, reduce=reduce).values
    np.testing.assert_allclose(got["mean"], values["draw"].mean(), rtol=1e-5)
    assert np.array_equal(got["first"], jr.key_data(values["key"][0]))


def test_a_histogram_is_that_of_numpy():
    edges = [0.1, 0.2, 0.3, 0.7]  # not numbers of float32
    x = np.float32([0.1, 0.2, 0.3, 0.7, 0.69999, 0.0, 1.0, 0.10000001])
    x = np.concatenate([x, np.nextafter(x, np.float32(2)), np.float32([np.nan])])
    got = ep.sweep(lambda x: x, ep.Values(x), reduce=ep.reduce.Histogram(edges)).values
    kept = x[~np.isnan(x)].astype(np.float64)
    assert np.array_equal(got.counts, np.histogram(kept, edges)[0])
    assert (got.below, got.above) == (np.sum(kept < 0.1), np.sum(kept > 0.7))
    assert ep.reduce.Histogram(4, range=(0, 1)).edges == (0, 0.25, 0.5, 0.75, 1)


@pytest.mark.slow
def test_under_disable_jit_it_is_the_plain_loop():
    names = ("mean", "argmin", "histogram", "own")
    reduce = {name: REDUCERS[name][0]() for name in names}
    with jax.disable_jit():
        got = ep.sweep(outputs, space(2), reduce=reduce).values
    values = ep.sweep(outputs, space(2)).values
    for name, value in got.items():
        agrees(name, value, values)


def test_blocks_depend_on_points_and_batch_size_only():
    for size, batch in [(1, 1), (10**3, 7), (10**9, 16_384), (10**6, 10**6)]:
        batches = reduced_kernel.block_batches(size, batch)
        assert 1 <= batches and batches * batch <= max(batch, 2**20)


def test_only_reducers_that_may_stop_are_asked():
    asks = ep.reduce.Reducer(
        init=lambda struct: jnp.int32(0),
        update=lambda state, value: state + 1,
        merge=lambda a, b: a + b,
        finish=lambda state: state,
        stop=lambda state: state > 3,
    )
    assert (
        as_reducers("sweep", {"a": ep.reduce.Mean(), "b": ep.reduce.TopK(2)}).stops
        is False
    )
    assert as_reducers("sweep", {"a": ep.reduce.Mean(), "b": asks}).stops is True
