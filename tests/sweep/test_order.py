"""Sweeps in another order, and points that fail: what is in place stays there."""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept


def make_mesh(n):
    return jax.make_mesh((n,), ("x",), devices=jax.devices()[:n])


def test_points_of_like_cost_share_a_batch():
    batches = []

    def fn(point):
        lane = jax.pure_callback(
            lambda x: batches.append(np.sort(x).tolist()) or np.float32(x),
            jax.ShapeDtypeStruct((), jnp.float32),
            point,
            vmap_method="broadcast_all",
        )
        return lane

    values = np.float32([5, 1, 4, 2, 6, 3])
    for cost in (lambda x: -x, -values, tuple(-values), jnp.asarray(-values)):
        batches.clear()
        result = ep.sweep(
            fn, ep.Values(values), order_by=cost, batch_size=2, mesh=make_mesh(1)
        )
        assert result.values.tolist() == values.tolist()
        assert batches == [[5, 6], [3, 4], [1, 2]]
    batches.clear()  # ties stay in order, and NaN comes last
    costs = np.array([np.nan, 3.0, -0.0, np.inf, 0.0, -np.inf])
    ep.sweep(fn, ep.Values(values), order_by=costs, batch_size=2, mesh=make_mesh(1))
    assert batches == [[3, 4], [1, 6], [2, 5]]


def test_an_error_of_the_costs_says_so(tmp_path):
    def negative(x):
        return eqx.error_if(x, x > 0.6, "too dear")

    space = ep.Linspace(0, 1, 3)
    for kept in ({}, {"store": tmp_path / "runs.zarr", "batch_size": 1}):
        asked = {"order_by": negative, "mesh": make_mesh(1), "on_error": "mark"}
        with pytest.raises(
            ep.SweepError, match="sweep: order_by.*at point 2.*too dear"
        ):
            ep.sweep(jnp.sin, space, **asked, **kept)
    with pytest.raises(ep.MissingKeyError):
        ep.sweep(jnp.sin, space, key=jr.key(0), order_by=lambda x, key: jr.uniform(key))
    with pytest.raises(ZeroDivisionError) as caught:
        ep.sweep(jnp.sin, space, order_by=lambda x: 1 / 0)
    assert "`eqx_pipe.sweep: order_by` was given" in str(caught.value.__notes__)
    with pytest.raises(TypeError, match="sweep: order_by.*returned None"):
        ep.sweep(jnp.sin, space, order_by=lambda x: None)
    for kept in ({"reduce": ep.reduce.Mean()}, {"store": tmp_path / "other.zarr"}):
        with pytest.raises(ValueError, match="for 3 points"):
            ep.sweep(jnp.sin, space, order_by=np.ones(2), **kept)
    assert not (tmp_path / "other.zarr").exists()


def fails(bad):
    def fn(point, key):
        wrong = jnp.any(jnp.stack([point == b for b in bad])) if bad else False
        x = eqx.error_if(point, wrong, "this one")
        return {"x": x + jr.uniform(key), "n": jnp.int32(7), "key": key}

    return fn


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ordered", [False, True])
def test_a_failing_point_is_named(ordered):
    space, bad = ep.Values(np.arange(13, dtype=np.float32)), {3, 8, 9}
    asked = {"key": jr.key(0), "batch_size": 4, "mesh": make_mesh(2)}
    if ordered:
        asked["order_by"] = np.arange(13) % 3
    marked = ep.sweep(fails(bad), space, on_error="mark", **asked)
    assert np.flatnonzero(marked.to_xarray()["status"].values == 1).tolist() == [
        i for i in range(13) if i not in bad
    ]
    with pytest.raises(ep.SweepError, match="this one.*mark") as caught:
        ep.sweep(fails(bad), space, **asked)
    (index,) = caught.value.indices
    assert index in bad if ordered else index == min(bad)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_isolating_compiles_nothing_and_logs_nothing(caplog):
    space = ep.Values(np.arange(64, dtype=np.float32))
    threshold = jnp.float32(100)
    fn = lambda x: eqx.error_if(x, x > threshold, "large")  # noqa: E731
    assert ep.sweep(fn, space).ok.all()
    with ept.assert_compiles(0), caplog.at_level(logging.ERROR):
        result = ep.sweep(fn, ep.Values(np.arange(64.0, 128)), on_error="mark")
    assert result.ok.sum() == 37 and result.best(mode="max").value == 100
    assert not caplog.records


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_static_combinations_fail_by_themselves():
    space = ep.Space({"x": ep.Values([1.0, 2.0]), "n": ep.Static([1, 2, 3])})

    def fn(point):
        return eqx.error_if(point["x"], point["x"] * point["n"] > 3, "large")

    result = ep.sweep(fn, space, on_error="mark")
    assert result.grid().shape == (2, 3)
    assert result.ok.tolist() == [True, True, True, True, False, False]
    with pytest.raises(ep.SweepError) as caught:
        ep.sweep(fn, space)
    assert caught.value.indices == (4,)


def test_where_all_points_fail_there_is_no_result_but_a_form():
    def fn(x, key):
        fails = eqx.error_if(x, x >= 0, "always")
        return {"x": fails, "n": jnp.int32(1), "key": key}

    asked = {"key": jr.key(0), "on_error": "mark"}
    compiled = ep.sweep(fn, ep.Linspace(0, 1, 3), **asked)
    assert not compiled.ok.any()
    assert np.isnan(compiled.values["x"]).all() and not compiled.values["n"].any()
    assert not jr.key_data(compiled.values["key"]).any()


def test_nans_found_by_debug_nans_are_failures():
    with jax.debug_nans(True):
        result = ep.sweep(jnp.log, ep.Values([-1.0, 1, 2]), on_error="mark")
    assert result.ok.tolist() == [False, True, True]


def test_a_slice_of_a_huge_space_is_not_listed():
    space = ep.Space([ep.Linspace(0, 1, 2**20), ep.Linspace(0, 1, 2**20)])[5:]
    assert ep.plan(lambda p: p[0] + p[1], space).points == 2**40 - 5


def test_neighbours_along_the_last_dim_share_a_batch():
    def loop(p):
        return jax.lax.while_loop(lambda n: n < p["n"], lambda n: n + 1, 0)

    axes = {"n": ep.Values(np.arange(13)), "x": ep.Linspace(0, 1, 32)}
    asked = {"count_steps": True, "batch_size": 32, "mesh": make_mesh(1)}
    first = ep.sweep(loop, axes, **asked)
    last = ep.sweep(loop, dict(reversed(axes.items())), **asked)
    assert first.waste == 1 and last.waste > 1.5
    assert np.array_equal(first.grid(), last.grid().T)
