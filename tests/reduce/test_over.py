"""Reductions over some dims: each cell is the reduction of its own points."""

import concurrent.futures as cf

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few
from support.reducers import REDUCERS, agree, reducers
from support.stores import close, one_device

import eqx_pipe as ep
import eqx_pipe.testing as ept

KEY = jr.key(3)
SPACE = {
    "a": ep.Linspace(0, 1, 3),
    "seed": ep.Values(jnp.arange(5)),
    "b": ep.Values([1.0, 2.0]),
}


def model(p, key):
    y = jnp.sin(p["a"] * 7) * p["b"] + jr.normal(key)
    return {"y": y, "n": {"k": p["seed"] % 3, "v": y * jnp.arange(2.0)}}


def some(over):
    """Return a reducer for each kind of state: sums, an index, one of the user's."""
    return reducers(["mean", "argmin", "first and last"], by="y", over=over)


def check(result, grid, axes):
    """Raise unless each cell is the reduction of its own values."""
    kept = [k for k in range(grid["y"].ndim) if k not in axes]
    y = grid["y"].transpose([*kept, *axes])
    found = result.grid()
    for cell in np.ndindex(*y.shape[: len(kept)]):
        own = jtu.tree_map(lambda x, cell=cell: x[cell], found)
        agree({name: _found(x) for name, x in own.items()}, y[cell].ravel())


def _found(x):
    """Return the entries of a cell that has fewer than `k`."""
    if not np.ndim(getattr(x, "index", 0)):
        return x
    assert np.all(np.diff(x.index < 0) >= 0)
    return type(x)(x.index[x.index >= 0], x.value[x.index >= 0])


@pytest.fixture(scope="module")
def grid():
    return ep.sweep(model, SPACE, key=KEY, batch_size=8).grid()


@few
@given(
    sizes=st.permutations([1, 2, 4]),
    over=st.sets(st.sampled_from("abc"), min_size=1, max_size=2),
    names=st.sets(st.sampled_from(sorted(REDUCERS)), min_size=2, max_size=4),
)
def test_each_cell_is_the_reduction_of_its_values(sizes, over, names):
    space = {n: ep.Linspace(0, 1, k) for n, k in zip("abc", sizes, strict=True)}

    def fn(p, key):
        return {"y": jnp.sin(5 * p["a"]) + p["b"] * p["c"] + jr.uniform(key)}

    asked = {"key": KEY, "mesh": one_device(), "batch_size": 4}
    reduce = reducers(names, by="y", over=tuple(over))
    result = ep.sweep(fn, space, reduce=reduce, **asked)
    axes = tuple(k for k, name in enumerate("abc") if name in over)
    check(result, ep.sweep(fn, space, **asked).grid(), axes)
    kept = {name: len(axis) for name, axis in space.items() if name not in over}
    assert result.space.dims == kept


def test_each_leaf_has_its_cells_and_a_state_may_hold_a_key(grid):
    last = ep.reduce.Reducer(
        lambda s: (jnp.zeros(s.shape), jnp.array(False), jr.key(2)),
        lambda state, x: (x, jnp.array(True), state[2]),
        lambda a, b: (jnp.where(b[1], b[0], a[0]), a[1] | b[1], a[2]),
        lambda state: float(state[0]),
        by="y",
        over="seed",
    )
    reduce = {"mean": ep.reduce.Mean(over="seed"), "last": last}
    found = ep.sweep(model, SPACE, key=KEY, reduce=reduce, batch_size=8).grid()
    for leaf, values in zip(*map(jtu.tree_leaves, (found["mean"], grid)), strict=True):
        np.testing.assert_allclose(leaf, values.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["last"], grid["y"][:, -1], rtol=2e-5)


def assert_same(a, b):
    close(*(jtu.tree_map(lambda x: x[...], result.values) for result in (a, b)))


def test_devices_and_executors():
    asked = {"key": KEY, "reduce": some("seed"), "batch_size": 8}
    whole = ep.sweep(model, SPACE, **asked)
    assert_same(whole, ep.sweep(model, SPACE, mesh=one_device(), **asked))
    with cf.ThreadPoolExecutor(2) as pool:
        assert_same(whole, ep.sweep(model, SPACE, executor=pool, **asked))
    assert_same(whole, ep.sweeper(model, SPACE, **asked)(SPACE))
    with ept.assert_compiles(0):
        assert_same(whole, ep.sweep(model, SPACE, **asked))


def test_a_long_cell_is_reduced_in_runs():
    space = {"a": ep.Values([1, 2]), "x": ep.Values(np.arange(70_000))}
    reduce = {"sum": ep.reduce.Sum(over="x"), "best": ep.reduce.ArgMax(over="x")}
    found = ep.sweep(lambda p: p["a"] * p["x"] % 65_537, space, reduce=reduce).values
    values = np.outer([1, 2], np.arange(70_000)) % 65_537
    assert found["sum"].tolist() == values.sum(1).tolist()
    assert found["best"].index.tolist() == values.argmax(1).tolist()


def test_a_store_holds_the_labelled_reductions(tmp_path):
    xarray = pytest.importorskip("xarray")
    asked = {"key": KEY, "reduce": some("seed"), "batch_size": 8}
    whole, path = ep.sweep(model, SPACE, **asked), tmp_path / "runs.zarr"
    part = ep.sweep(model, SPACE, store=path, shard=(0, 2), **asked)
    assert 0 < part.missing.sum() < 6
    assert_same(whole, ep.sweep(model, SPACE, store=path, **asked))
    loaded = ep.SweepResult.load(path)
    assert loaded.space.dims == {"a": 3, "b": 2}
    data, opened = whole.to_xarray(), xarray.open_zarr(path)
    assert set(data.variables) == set(opened.variables)
    xarray.testing.assert_allclose(data, opened.compute(), rtol=2e-5)
    whole.save(tmp_path / "saved.zarr")
    again = ep.SweepResult.load(tmp_path / "saved.zarr")
    xarray.testing.assert_allclose(again.to_xarray(), data)
    for other in (some("a"), ep.reduce.Mean(over="seed"), None, ep.reduce.Mean()):
        with pytest.raises(ValueError, match="was created by a different sweep"):
            ep.sweep(model, SPACE, store=path, key=KEY, reduce=other)


def test_a_store_distinguishes_how_a_state_is_finished(tmp_path):
    pytest.importorskip("zarr")
    path = tmp_path / "runs.zarr"
    ep.sweep(model, SPACE, key=KEY, reduce=ep.reduce.Var("y", over="seed"), store=path)
    with pytest.raises(ValueError, match="with other settings or functions"):
        unbiased = ep.reduce.Var("y", ddof=1, over="seed")
        ep.sweep(model, SPACE, key=KEY, reduce=unbiased, store=path)


def odd(p):
    y = p["a"] * 3 + p["seed"].astype(float)
    bad = (p["seed"] == 4) | (p["a"] == 1)
    return eqx.error_if({"y": y}, bad, "no good")


def test_points_that_fail_are_left_out_of_their_cell():
    space = {"seed": SPACE["seed"], "a": SPACE["a"]}
    reduce = {
        "mean": ep.reduce.Mean(over="seed"),
        "least": ep.reduce.ArgMin("y", over="seed"),
        "count": ep.reduce.Sum(lambda out: 1, over="seed"),
    }
    result = ep.sweep(odd, space, reduce=reduce, on_error="mark")
    np.testing.assert_allclose(result.values["mean"]["y"], [1.5, 3.0, np.nan])
    assert result.values["least"].index.tolist() == [0, 0, -1]
    assert result.values["count"].tolist() == [4, 4, 0]
    assert result.ok.tolist() == [True, True, False]
    assert result.best("mean.y", mode="max").index == 1
    assert list(result.errors) == [0, 1, 2]
    with pytest.raises(ep.SweepError, match=r"`fn` failed at point 12\b") as caught:
        ep.sweep(odd, space, reduce=reduce)
    assert caught.value.indices == (12,)  # as in the space, not by the cell


def test_draws_and_designs():
    space = ep.Space(
        {
            "draw": ep.Random(jr.normal, 4),
            "seed": ep.Seeds(3),
            **ep.sobol({"u": ep.Uniform(0, 1)}, 2, dim="design").tree,
        },
        key=KEY,
    )

    def fn(p, key):
        return p["draw"] + p["u"] + jr.normal(key)

    asked = {"key": KEY, "batch_size": 4}
    values = ep.sweep(fn, space, **asked).grid()
    result = ep.sweep(fn, space, reduce=ep.reduce.Min(over="draw"), **asked)
    np.testing.assert_array_equal(result.grid(), values.min(0))
    assert result.to_xarray()["value"].dims == ("seed", "design")
