"""Points that fail say why, wherever they were computed and kept."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.executors import Plain
from support.stores import one_device

import eqx_pipe as ep

SPACE = {"s": ep.Values([1.0, 2.0]), "x": ep.Linspace(0, 5, 6)}
LOW, HIGH = "EquinoxRuntimeError: too low", "EquinoxRuntimeError: too high"
WHY = {0: LOW, 5: HIGH, 6: LOW, 11: HIGH}


def picky(p):
    x = eqx.error_if(p["x"], p["x"] < 1, "too low")
    return eqx.error_if(x, x > 4, "too high") * p["s"]


def run(fn=picky, space=SPACE, **asked):
    return ep.sweep(fn, space, **{"on_error": "mark", "batch_size": 3, **asked})


@pytest.mark.parametrize(
    "asked",
    [
        {"mesh": one_device()},
        {"order_by": np.arange(12.0)[::-1]},
        {"reduce": ep.reduce.Mean()},
        {"executor": Plain()},
    ],
)
def test_why_is_known_by_index(asked):
    assert run(**asked).errors == WHY


def test_what_cannot_be_traced_says_so_at_all_of_its_points():
    def fails(p):
        if p["a"] == "b":
            raise TypeError("no b")
        return eqx.error_if(p["x"], p["x"] > 4, "too high")

    space = {"a": ep.Static(["a", "b"]), "x": SPACE["x"]}
    why = run(fails, space).errors
    assert why == {5: HIGH} | {i: "TypeError: no b" for i in range(6, 12)}


def test_what_a_callback_raises():
    def fails(x):
        if x == 2:
            raise ValueError("no two")
        return x

    def fn(x):
        return jax.pure_callback(fails, x, x, vmap_method="sequential")

    assert run(fn, ep.Linspace(0, 3, 4)).errors == {2: "ValueError: no two"}
    assert run(jnp.sin, ep.Linspace(0, 3, 4)).errors == {}


RESULT = []


def result():
    RESULT[:] = RESULT or [run()]
    return RESULT[0]


@given(st.lists(st.integers(0, 11), max_size=8))
def test_parts_keep_them(index):
    part = result()[np.array(index, int)]
    assert part.errors == {k: WHY[i] for k, i in enumerate(index) if i in WHY}


def test_files_and_frames_have_them(tmp_path):
    pytest.importorskip("xarray")
    whole = result()
    frame = whole.to_pandas()
    column = frame["error"]
    assert column[column.notna()].to_dict() == WHY and list(frame)[-1] == "error"
    assert "error" not in whole[[1, 2]].to_pandas()
    said = json.loads(whole.to_xarray().attrs["errors"])
    assert said == {LOW: [[0, 1], [6, 7]], HIGH: [[5, 6], [11, 12]]}
    whole.save(tmp_path / "picky.zarr")
    again = ep.SweepResult.load(tmp_path / "picky.zarr")
    assert again.errors == WHY
    again.save(tmp_path / "picky.zarr", overwrite=True)
    assert ep.SweepResult.load(tmp_path / "picky.zarr").errors == WHY


def test_an_axis_may_have_the_name():
    pytest.importorskip("pandas")
    frame = run(
        lambda p: picky(p | {"x": p["error"]}),
        {"s": 1.0, "error": ep.Linspace(0, 5, 6)},
    ).to_pandas()
    assert frame["sweep.error"].notna().sum() == 2


def test_stores_have_them(tmp_path):
    pytest.importorskip("zarr")
    path = tmp_path / "runs.zarr"
    asked = {"store": path, "mesh": one_device(), "batch_size": 2}
    first = run(shard=(1, 2), **asked)
    assert 0 < len(first.errors) < 4 and first.errors.items() <= WHY.items()
    for kept in (run(**asked), run(**asked), ep.SweepResult.load(path)):
        assert kept.errors == WHY
    assert json.loads(kept.to_xarray().attrs["errors"])[LOW] == [[0, 1], [6, 7]]

    def half(p):
        # Fails where there was a value, which is kept.
        bad = (p["x"] > 4) | (p["x"] == 1)
        return eqx.error_if(p["x"], bad, "still") * p["s"]

    half = run(half, resume="failed", **asked)
    still = {i: "EquinoxRuntimeError: still" for i in (5, 11)}
    assert half.errors == ep.SweepResult.load(path).errors == still
    assert run(lambda p: p["x"] * p["s"], resume="failed", **asked).errors == {}


def test_stores_of_reductions_have_them(tmp_path):
    pytest.importorskip("zarr")
    asked = {"store": tmp_path / "runs.zarr", "batch_size": 2, "mesh": one_device()}
    for _ in range(2):
        assert run(reduce=ep.reduce.Mean(), **asked).errors == WHY


@pytest.mark.parametrize("mesh", [None, one_device()])
def test_points_of_long_loops_fail_in_any_batch_of_a_call(mesh, monkeypatch):
    monkeypatch.setattr("eqx_pipe._sweep.trace.trace.LONG", 0)
    # The first call takes a step, and later ones many batches.
    monkeypatch.setattr("eqx_pipe._run.pace._CALL_SECONDS", 1e9)

    def fn(x):
        y = jax.lax.fori_loop(0, 40, lambda _, y: y + 0.0, x)
        return eqx.error_if(y, (y > 50) & (y < 53) | (y == 77), "too large")

    asked = {"batch_size": 4, "mesh": mesh, "progress": True}
    marked = ep.sweep(fn, ep.Linspace(0, 99, 100), on_error="mark", **asked)
    assert list(marked.errors) == [51, 52, 77]
    assert np.array_equal(marked.values[marked.ok], np.flatnonzero(marked.ok))
    with pytest.raises(ep.SweepError, match="at point 51"):
        ep.sweep(fn, ep.Linspace(0, 99, 100), **asked)
