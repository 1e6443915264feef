"""Checkpoints of trainings: resumed and extended with the bits of one run."""

import os
import random
import signal

import equinox as eqx
import jax.random as jr
import numpy as np
import pytest
from support.helpers import THOROUGH
from support.trainings import (
    GIVEN,
    KINDS,
    SPACE,
    TRAINING,
    Folder,
    assert_bits,
    checkpoints,
    killed,
    kills,
    run,
)

import eqx_pipe as ep

pytest.importorskip("zarr")


@pytest.fixture(scope="module")
def whole():
    return run()


def test_a_training_is_extended(tmp_path, whole):
    first = run(8, store=tmp_path / "runs")
    assert first.step == 8
    result = run(store=tmp_path / "runs")
    assert_bits(result, whole)
    for i in (0, 5, 11):
        np.testing.assert_array_equal(result.carry(i)["x"], whole.carry(i)["x"])
        assert result.carry(i)["k"] == whole.carry(i)["k"]
    again = run(store=tmp_path / "runs")  # nothing is left
    assert_bits(again, whole)
    loaded = ep.TrainResult.load(tmp_path / "runs")
    assert_bits(loaded, whole)
    assert loaded.best("loss").value == whole.best("loss").value
    with pytest.raises(TypeError, match="Call `train` again"):
        loaded.carry(0)


@pytest.mark.parametrize("log_every", [None, 2])
def test_without_every_an_extended_training_equals_a_whole_one(tmp_path, log_every):
    given = {"every": None, "log_every": log_every, "scheduler": None}
    run(30, store=tmp_path / "runs", **given)
    assert_bits(run(60, store=tmp_path / "runs", **given), run(60, **given))


def files(folder):
    return {x: x.read_bytes() for x in folder.rglob("*") if x.is_file()}


def test_another_training_is_refused_before_anything_is_written(tmp_path):
    def scheduler(limit):
        return lambda population, key: population.next(
            active=population.metrics["loss"] > limit
        )

    given = {"store": tmp_path / "runs", "scheduler": scheduler(1e-9)}
    run(8, **given)
    before = files(tmp_path)
    other = ep.Training(TRAINING.init, TRAINING.step, lambda p, c: {"score": c["x"][0]})
    changes = {
        "`every`: 4 in the store, now 8": {"every": 8},
        "`every`: 4 in the store, now several": {"every": (4, 8)},
        "`log_every`: 2 in the store, now 4": {"log_every": 4},
        "`key`: ": {"key": jr.key(3)},
        "`scheduler`: ": {"scheduler": scheduler(1e-3)},
        "`scheduler`: .* now Halving": {"scheduler": ep.search.Halving("loss")},
        "`steps` is 4": {"steps": 4},
    }
    for text, changed in changes.items():
        with pytest.raises(ValueError, match=text):
            run(**{"steps": 8, **given, **changed})
    with pytest.raises(ep.StructureError, match="`training`: "):
        ep.train(other, SPACE, 8, **{**GIVEN, **given})
    with pytest.raises(ep.StructureError, match="`space`: "):
        ep.train(TRAINING, {**SPACE, "rate": ep.Linspace(0, 1, 6)}, 8, **GIVEN | given)
    assert files(tmp_path) == before
    run(12, **{**given, "scheduler": scheduler(1e-9)})  # equal code and values
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("")
    with pytest.raises(ep.StructureError, match=r"contains 'mine.txt'"):
        run(8, store=tmp_path / "other")


def test_a_damaged_checkpoint_is_detected(tmp_path):
    run(8, store=tmp_path)
    path = tmp_path / checkpoints.KEY
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    (tmp_path / checkpoints.BEFORE).write_text("{")
    with pytest.raises(ValueError, match=f"{tmp_path}.*checksum differs.*is damaged"):
        run(12, store=tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        ep.TrainResult.load(tmp_path / "absent")


@pytest.fixture
def usual_signals():
    """Handle signals as usual: a shell or `nohup` ignores some in the background."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, to) for number, to in usual.items()}
    yield
    for number, to in before.items():
        signal.signal(number, to)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_after_a_checkpoint(tmp_path, whole, number):
    def callback(result):
        if result.step == 8:
            os.kill(os.getpid(), number)

    error = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(error) as caught:
        run(store=tmp_path / "runs", callback=callback)
    if number == signal.SIGINT:
        assert caught.value.result.step >= 8
    assert 8 <= ep.TrainResult.load(tmp_path / "runs").step < 24
    assert_bits(run(store=tmp_path / "runs"), whole)


def test_a_handler_of_the_program_stays_in_place(tmp_path, whole):
    came = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append(1))

    def callback(result):
        os.kill(os.getpid(), signal.SIGTERM)
        assert ep.TrainResult.load(tmp_path).step <= result.step

    try:
        assert_bits(run(store=tmp_path, callback=callback), whole)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [1] * 6


def test_the_others_go_on_after_a_failed_training(tmp_path):
    def step(p, x):
        return eqx.error_if(x + p, (p > 1.5) & (x > 9), "too large"), {"x": x}

    training, space = ep.Training(lambda p: 0.0, step), ep.Values([1.0, 2.0, 3.0])
    given = {"log_every": 1, "batch_size": 1, "store": tmp_path}
    with pytest.raises(ep.SweepError, match="too large"):
        ep.train(training, space, 40, **given)
    result = ep.train(training, space, 40, on_error="mark", **given)
    assert result.active.tolist() == [True, False, False] and result.carry(0) == 40
    assert result.curves.values["x"][0].tolist() == list(range(40))


def test_a_store_is_filled_by_one_process(tmp_path):
    def callback(result):
        with pytest.raises(RuntimeError, match="is being filled by process"):
            run(8, store=tmp_path)

    run(8, store=tmp_path, callback=callback)


def test_a_failed_save_leaves_the_checkpoint_before(tmp_path, whole, monkeypatch):
    run(8, store=tmp_path)
    put = Folder.put

    def full(self, key, data):
        if key == checkpoints.KEY:
            raise OSError(28, "No space left on device")
        put(self, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "put", full)
        with pytest.raises(OSError, match="Make room there"):
            run(store=tmp_path)
    assert ep.TrainResult.load(tmp_path).step == 8
    assert_bits(run(store=tmp_path), whole)


@pytest.mark.parametrize(
    "number",
    range(2, 60, 2) if THOROUGH else [5, pytest.param(12, marks=pytest.mark.slow)],
)
def test_a_kill_changes_nothing(tmp_path, whole, number):
    killed(tmp_path, number)
    assert_bits(run(store=tmp_path), whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_kills_change_nothing(tmp_path, kind):
    """`TRAIN_KILLS` is the number of kills of each, most of them at random times."""
    least = int(os.environ.get("TRAIN_KILLS", "1"))
    print(kind, "killed", kills(least, tmp_path, kind, random.Random(0)))


def test_a_scheduler_counts_from_the_first_end_on(tmp_path, whole):
    run(4, store=tmp_path / "a", scheduler=None)
    assert_bits(run(store=tmp_path / "a"), whole)
    run(8, store=tmp_path / "b", scheduler=None)
    with pytest.raises(ep.StructureError, match="`scheduler`"):
        run(store=tmp_path / "b")
