"""Reductions in stores, parts and by executors agree with those in memory."""

import concurrent.futures as cf
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stores import KEY, one_device, stored
from support.sweeps import close

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")
pytest.importorskip("cloudpickle")

ROOT = Path(__file__).parents[2]


def hashing():
    """Return a reducer that hashes integers: each point and the order count."""
    return ep.reduce.Reducer(
        lambda struct: (jnp.uint32(0), jnp.uint32(1), jr.key(5)),
        lambda state, x: (
            state[0] * jnp.uint32(31) + x,
            state[1] * jnp.uint32(31),
            state[2],
        ),
        lambda a, b: (a[0] * b[1] + b[0], a[1] * b[1], a[2]),
        lambda state: (int(state[0]), jr.key_data(state[2])),
        by="bits",
    )


# Each leaf of a state is an array of the store: few, where many chunks are written.
FEW = {"least": ep.reduce.ArgMin(by="x"), "hash": hashing()}
REDUCE = FEW | {"more": [ep.reduce.Mean(by=lambda out: out["y"][0])]}


def model(p, key):
    x = 4 + jnp.sin(p["a"] * 7) * p["b"] + jr.normal(key)
    bits = jr.bits(key, dtype=jnp.uint32)  # equal in all programs
    return {"x": x, "y": x * jnp.arange(1.0, 3.0), "bits": bits}


SPACE = ep.Space({"a": ep.Linspace(0, 1, 16), "b": ep.Values([1.0, 2.0, 3.0])})
ASKED = {"key": KEY, "batch_size": 6, "reduce": REDUCE}


@pytest.fixture(scope="module")
def whole():
    return ep.sweep(model, SPACE, **ASKED)


@pytest.fixture(scope="module")
def threads():
    with cf.ThreadPoolExecutor(2) as pool:
        yield pool


class Dies:
    """An executor that does the work at once, and breaks after some of it."""

    def __init__(self, after):
        self.left = after

    def submit(self, fn, *args):
        future = cf.Future()
        if self.left == 0:
            raise RuntimeError("the cluster is closed")
        self.left -= 1
        future.set_result(fn(*args))
        return future


@pytest.mark.slow
@settings(max_examples=max(2, settings().max_examples // 10), deadline=None)
@given(st.integers(0, 7), st.booleans())
def test_what_was_stopped_goes_on(tmp_path_factory, whole, after, wide):
    asked = {**ASKED, "reduce": FEW}
    expected = {name: whole.values[name] for name in FEW}
    path = tmp_path_factory.mktemp("s") / "runs.zarr"
    with pytest.raises(ep.SweepError, match="accepts no more work") as caught:
        ep.sweep(model, SPACE, store=path, executor=Dies(after), **asked)
    said = f"{6 * after} of 48 points are finished"
    assert said in caught.value.__notes__[-1]
    mesh = None if wide else one_device()
    again = ep.sweep(model, SPACE, store=path, mesh=mesh, key=KEY, reduce=FEW)
    close(again.values, expected)
    assert again.points == 48 and again.missing is None and again.ok.all()
    assert again.batch_size == 6
    third = ep.sweep(model, SPACE, store=path, executor=Dies(0), **asked)
    close(third.values, expected)


def test_parts_together_are_the_whole(tmp_path, whole):
    path, asked = tmp_path / "runs.zarr", {**ASKED, "mesh": one_device()}
    first = ep.sweep(model, SPACE, store=path, shard=(1, 2), **asked)
    there = np.arange(48) // 6 % 2 == 1
    assert np.array_equal(first.ok, there) and np.array_equal(first.missing, ~there)
    assert first.points == 24 and "24 points missing" in repr(first)
    assert "reduced over 24 points" in repr(first) and "stopped" not in repr(first)
    # What is there, in its place.
    values = ep.sweep(model, SPACE, key=KEY, batch_size=6).values
    x = np.where(there, values["x"], np.inf)
    assert first.values["least"].index == np.argmin(x)
    y = values["y"][there, 0]
    np.testing.assert_allclose(first.values["more"][0], y.mean(), rtol=1e-6)
    second = ep.sweep(model, SPACE, store=path, shard=(0, 2), **asked)
    close(second.values, whole.values)
    assert second.points == 48 and second.missing is None


def test_an_executor_changes_nothing(threads, whole):
    there = ep.sweep(model, SPACE, executor=threads, **ASKED)
    close(there.values, whole.values)
    assert there.points == 48 and there.ok.all()


def fails(p, key):
    return eqx.error_if(model(p, key), (p["a"] > 0.9) & (p["b"] < 1.5), "no")


def test_failed_points_are_kept_apart_and_named(tmp_path, threads):
    asked = {**ASKED, "on_error": "mark", "reduce": FEW}
    here = ep.sweep(fails, SPACE, **asked)
    assert 0 < here.ok.sum() < 48
    for away in ({"executor": threads}, {"store": tmp_path / "r"}):
        there = ep.sweep(fails, SPACE, **away, **asked)
        close(there.values, here.values)
        assert np.array_equal(there.ok, here.ok) and there.missing is None
        assert np.array_equal(there.status, here.status)
    bad = int(np.flatnonzero(~here.ok)[0])
    with pytest.raises(ep.SweepError, match=f"at point {bad}") as caught:
        ep.sweep(fails, SPACE, store=tmp_path / "other", **{**ASKED, "reduce": FEW})
    assert caught.value.indices == (bad,)


def test_failures_in_a_store_are_raised(tmp_path):
    asked = {**ASKED, "reduce": ep.reduce.ArgMin(by="x"), "store": tmp_path / "r"}
    kept = ep.sweep(fails, SPACE, on_error="mark", shard=(1, 2), **asked)
    failed = ~kept.ok & ~kept.missing
    done = [stored(tmp_path / "r").manifest(i) is not None for i in range(2)]
    with pytest.raises(ep.SweepError, match='Pass `on_error="mark"`') as caught:
        ep.sweep(fails, SPACE, **asked)
    assert caught.value.indices == tuple(np.flatnonzero(failed))
    assert [stored(tmp_path / "r").manifest(i) is not None for i in range(2)] == done


@pytest.mark.slow
def test_static_axes(tmp_path, threads):
    space = {"w": ep.Static([1, 2]), "a": ep.Linspace(0, 1, 5)}
    fn = lambda p: {"x": p["a"] * p["w"]}  # noqa: E731
    asked = {
        "reduce": {"mean": ep.reduce.Mean(), "least": ep.reduce.ArgMin(by="x")},
        "batch_size": 2,
    }
    here = ep.sweep(fn, space, **asked)
    for away in ({"store": tmp_path / "runs.zarr"}, {"executor": threads}):
        close(ep.sweep(fn, space, **away, **asked).values, here.values)


def test_what_is_in_the_store(tmp_path):
    path = tmp_path / "runs.zarr"
    ep.sweep(model, SPACE, store=path, **{**ASKED, "reduce": FEW})
    data = xarray.open_zarr(path)
    assert dict(data.sizes)["block"] == 8 and data.attrs["block_points"] == 6
    assert data["first_point"].values.tolist() == list(range(0, 48, 6))
    assert "state.least.value" in data and (data["status"] == 1).all()
    with pytest.raises(ValueError, match="Call the same sweep"):
        ep.SweepResult.load(path)


def test_an_axis_may_be_called_as_the_coordinate_of_a_store(tmp_path):
    space = {"first_point": ep.Linspace(0.0, 1.0, 8)}
    for _ in range(2):
        mean = ep.sweep(
            lambda p: p["first_point"], space, reduce=ep.reduce.Mean(), store=tmp_path
        )
        assert mean.values == 0.5


def test_a_store_of_another_reduction_is_refused(tmp_path):
    asked = {**ASKED, "reduce": ep.reduce.Histogram([0, 2, 9], by="x")}
    path = tmp_path / "histogram.zarr"
    ep.sweep(model, SPACE, store=path, **asked)
    for changed, says in (
        ({"reduce": None}, "`reduce`, reducers: .* now None"),
        ({"reduce": ep.reduce.Mean()}, "`reduce`, reducers"),
        (
            {"reduce": ep.reduce.Histogram([0, 3, 9], by="x")},
            "`reduce`: the same kinds",
        ),
        ({"reduce": ep.reduce.Histogram([0, 2, 3, 9], by="x")}, "`reduce`, states"),
        ({"batch_size": 4}, "`batch_size` is 4"),
    ):
        with pytest.raises(ValueError, match=says):
            ep.sweep(model, SPACE, store=path, **{**asked, **changed})
