"""Ctrl-C: what is finished is kept, and the `KeyboardInterrupt` carries it."""

import os
import pkgutil
import signal

import equinox as eqx
import jax
import numpy as np
import pytest
from support.executors import Plain
from support.stores import one_device

import eqx_pipe as ep

SPACE = {"n": ep.Values([1.0, 2.0]), "x": ep.Linspace(0, 31, 32)}
STATIC = {**SPACE, "n": ep.Static([1.0, 2.0])}
FULL = np.stack([np.arange(32), 2 * np.arange(32)]).reshape(64)
AT = 5.0


def _press(y):
    if y == AT:
        os.kill(os.getpid(), signal.SIGINT)
    return y


def pressed(p):
    """Somebody presses Ctrl-C while one point is computed."""
    y = p["n"] * p["x"]
    return jax.pure_callback(_press, y, y, vmap_method="sequential")


class Twice:
    """An executor that never begins, and makes the user impatient."""

    def submit(self, *args):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def usual(monkeypatch):
    # It comes back to the host after each batch, however fast these are.
    monkeypatch.setattr("eqx_pipe._run.pace._CALL_SECONDS", 0.0)
    monkeypatch.setattr("eqx_pipe._run.pace._SILENT_SECONDS", 0.0)
    # The children of a shell's background job ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(space=SPACE, **asked):
    asked = {"progress": True, "mesh": one_device(), "batch_size": 1, **asked}
    return ep.sweep(pressed, space, **asked)


def interrupted(run, **asked):
    with pytest.raises(KeyboardInterrupt) as caught:
        run(**asked)
    assert caught.value.__notes__
    return caught.value.result


def check(result, full=FULL):
    """Check the finished values, and that all other points are marked as missing."""
    status, values = result.status, np.asarray(result.values)
    assert set(status) == {0, 1} and not result.errors
    assert np.array_equal(values[status == 1], full[status == 1])
    assert np.isnan(values[status == 0]).all()
    assert "missing" in repr(result)
    assert result.best(mode="max").value == full[status == 1].max()


@pytest.mark.parametrize(
    ("asked", "some"),
    [
        ({}, 6),
        ({"progress": False}, 6),
        ({"space": STATIC}, 6),
        ({"order_by": -FULL}, 56),
        ({"order_by": -FULL, "mesh": None}, 1),
    ],
)
def test_what_is_finished_comes_with_it(asked, some):
    result = interrupted(run, **asked)
    check(result)
    assert result.ok.sum() >= some


def test_a_sweeper():
    sweeper = ep.sweeper(pressed, SPACE, batch_size=1, mesh=one_device())
    check(interrupted(sweeper, space=SPACE))


def test_it_can_be_saved_and_joined(tmp_path):
    pytest.importorskip("xarray")
    result = interrupted(run)
    assert (result.to_xarray()["status"] == 0).any()
    result.save(tmp_path / "half.zarr")
    again = ep.SweepResult.load(tmp_path / "half.zarr")
    check(again)
    left = np.flatnonzero(result.status == 0)
    behind = run(ep.Space(SPACE)[left])
    assert np.array_equal(behind.values, FULL[left])


def test_workers_and_stores(tmp_path):
    pytest.importorskip("cloudpickle")
    pytest.importorskip("zarr")

    def elsewhere():
        return run(mesh=None, executor=Plain())

    def kept():
        return run(store=tmp_path / "runs.zarr")

    check(interrupted(elsewhere))
    result = interrupted(kept)
    check(result)
    # Where it was pressed is computed already.
    assert np.array_equal(kept().values[...], FULL)


def test_a_reduction_is_that_of_the_points_before(monkeypatch):
    def both():
        monkeypatch.setattr("eqx_pipe._sweep.work.blocks.Blocks.at_once", 1)
        return run(reduce={"max": ep.reduce.Max(), "sum": ep.reduce.Sum()})

    result = interrupted(both)
    assert 6 <= result.points < 64 and result.ok.sum() == result.points
    assert result.values["sum"] == FULL[: result.points].sum()
    assert result.values["max"] == FULL[: result.points].max()


PRESSES = []


def _press_once(y):
    # A store does not see what code finds by text.
    if y == 20 and globals()["PRESSES"]:
        globals()["PRESSES"].pop()
        os.kill(os.getpid(), signal.SIGINT)
    return y


def fails_at_some(x):
    y = eqx.error_if(x, (x >= 3) & (x < 6) | (x == 41), "too large")
    return jax.pure_callback(_press_once, y, y, vmap_method="sequential")


@pytest.mark.parametrize(
    ("over", "axis"),
    [
        (None, ep.Values([1.0])),
        ("x", ep.Values([1.0])),
        # A block has points of both cases, of which the second is left.
        (None, ep.Static([1.0, 2.0])),
    ],
)
def test_a_reduction_in_a_store_stops_within_a_chunk(over, axis, tmp_path, monkeypatch):
    pytest.importorskip("zarr")
    # A chunk of all blocks, which are computed one after the other.
    monkeypatch.setattr("eqx_pipe._store.partition._AT_LEAST", 1)
    monkeypatch.setattr("eqx_pipe._sweep.work.blocks.Blocks.at_once", 1)
    monkeypatch.setattr("eqx_pipe._sweep.work.cells.Cells.at_once", 1)
    space = {"x": ep.Linspace(0, 7, 8), "y": ep.Linspace(0, 56, 8), "n": axis}
    reduce = {"max": ep.reduce.Max(over=over), "sum": ep.reduce.Sum(over=over)}
    asked = {"reduce": reduce, "batch_size": 8, "mesh": one_device()}

    asked = {**asked, "on_error": "mark"}

    def fn(p):
        return fails_at_some(p["x"] + p["y"]) * p["n"]

    expected, path = ep.sweep(fn, space, **asked), tmp_path / "runs.zarr"
    PRESSES.append(1)
    with pytest.raises(KeyboardInterrupt) as caught:
        ep.sweep(fn, space, store=path, **asked)
    result, size = caught.value.result, 64 * len(axis)
    done = int((result.status > 0).sum()) * (size // len(result))
    assert 0 < done < size
    assert f"{done} of {size} points are finished" in caught.value.__notes__[-1]
    assert ep.plan(fn, space, store=path, **asked).left == size - done
    if over is None:
        values = np.add.outer(np.arange(8.0), np.arange(0.0, 64.0, 8.0))
        values = np.multiply.outer(values, [1.0, 2.0][: len(axis)]).ravel()
        assert result.values["sum"] == values[result.status == 1].sum()
    again = ep.sweep(fn, space, store=path, **asked)
    for name, leaf in expected.values.items():
        assert np.array_equal(again.values[name], leaf)
    assert again.errors == expected.errors
    assert np.array_equal(again.status, expected.status)


@pytest.mark.parametrize("on_error", ["raise", "mark"])
def test_failed_blocks_are_not_computed_again_after_it(on_error, monkeypatch):
    name = "eqx_pipe._sweep.work.blocks.ended"
    calls, ended = [], pkgutil.resolve_name(name)

    def broken(x):
        calls.append(float(x))
        if x >= 16:
            raise ValueError("too large")
        return x

    def pressed_before(steps):
        os.kill(os.getpid(), signal.SIGINT)
        calls.clear()
        return ended(steps)

    def fn(x):
        return jax.pure_callback(broken, x, x, vmap_method="sequential")

    monkeypatch.setattr(name, pressed_before)
    asked = {"reduce": ep.reduce.Max(), "on_error": on_error, "batch_size": 8}
    with pytest.raises(KeyboardInterrupt) as caught:
        ep.sweep(fn, ep.Linspace(0, 63, 64), mesh=one_device(), **asked)
    assert caught.value.result.points == 0 and calls == []


def test_it_is_never_swallowed():
    """Also where it comes with the last point, and with nothing finished."""
    last = {"n": ep.Values([1.0]), "x": ep.Linspace(0, AT, 6)}
    result = interrupted(run, space=last)
    assert result.values.tolist() == [0, 1, 2, 3, 4, 5] and result.missing is None

    def pressed_at(y):
        if y == AT:
            os.kill(os.getpid(), signal.SIGINT)
        return y

    # The plain loop, for debuggers, ends where it is.
    with jax.disable_jit(), pytest.raises(KeyboardInterrupt):
        ep.sweep(lambda p: pressed_at(p["x"]), last, progress=False)
    with pytest.raises(KeyboardInterrupt) as caught:
        run(mesh=None, executor=Twice())
    assert np.array_equal(caught.value.result.status, [0] * 64)


def test_the_usual_handler_is_restored():
    ep.sweep(lambda x: 2 * x, ep.Linspace(0, 1, 3))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_somebody_elses_way_to_deal_with_it_is_left_alone():
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    assert np.array_equal(run().values, FULL) and seen
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
