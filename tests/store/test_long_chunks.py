"""A chunk that takes long: its finished batches are committed meanwhile."""

import jax
import numpy as np
import pytest
from support.stores import one_device

import eqx_pipe as ep

pytest.importorskip("xarray")
pytest.importorskip("zarr")

SPACE = ep.Linspace(0, 31, 32)


SLOW = None


def _call(x):
    # A store does not see what code finds by text.
    slow = globals()["SLOW"]
    slow.now += 20
    slow.calls.append(int(x))
    if slow.calls[-1] == slow.bad:
        raise RuntimeError("broken")
    return np.sin(x)


class Slow:
    """A function of points that take 20 seconds each, by a clock of its own."""

    def __init__(self, monkeypatch):
        monkeypatch.setitem(globals(), "SLOW", self)
        self.now, self.calls, self.bad = 0.0, [], None
        for file in ("_run.pace", "_sweep.work.point_rows", "_sweep.work.flight"):
            name = f"eqx_pipe.{file}.clock"
            monkeypatch.setattr(name, lambda: self.now)
        # It comes back to the host after each batch, however fast these are.
        monkeypatch.setattr("eqx_pipe._run.pace._CALL_SECONDS", 0.0)
        # Chunks of four batches.
        monkeypatch.setattr("eqx_pipe._store.partition._AT_LEAST", 4)

    def __call__(self, x):
        return jax.pure_callback(_call, x, x, vmap_method="sequential")


def swept(fn, **options):
    options = {"batch_size": 2, "mesh": one_device(), **options}
    return ep.sweep(fn, SPACE, progress=False, **options)


def test_without_locks_finished_batches_wait_for_their_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("eqx_pipe._store.disk._locked", lambda *_: False)
    slow, path = Slow(monkeypatch), tmp_path / "runs.zarr"
    slow.bad = 5
    with pytest.raises(ep.SweepError, match="broken"):
        swept(slow, store=path)
    assert not ep.SweepResult.load(path).ok.any()
    slow.bad = None
    slow.calls.clear()
    result = swept(slow, store=path)
    assert sorted(slow.calls) == [*range(4, 32)] and result.ok.all()
    assert np.array_equal(result.values[:], swept(slow).values)


@pytest.mark.parametrize("order", [None, -np.arange(32)])
def test_finished_batches_of_a_chunk_are_kept(tmp_path, monkeypatch, order):
    slow, path = Slow(monkeypatch), tmp_path / "runs.zarr"
    slow.bad = 2 if order is not None else 5
    with pytest.raises(ep.SweepError, match="broken"):
        swept(slow, store=path, order_by=order)
    kept = [0, 1, 2, 3] if order is None else [4, 5, 6, 7]
    assert np.flatnonzero(ep.SweepResult.load(path).ok).tolist() == kept
    slow.bad = None
    slow.calls.clear()
    result = swept(slow, store=path, order_by=order)
    assert sorted(slow.calls) == sorted({*range(32)} - {*kept})
    assert result.ok.all() and not list(path.glob("**/*.part"))
    assert np.array_equal(result.values[:], swept(slow).values)
