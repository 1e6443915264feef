"""Stores of trainings that are damaged, full, deleted, or looked at by the command."""

import errno
import pkgutil
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from support.trainings import Folder, assert_bits, checkpoints, pace, run

import eqx_pipe as ep

pytest.importorskip("zarr")

ROOT = Path(__file__).parents[2]
KINDS = {
    "curve": "curves-*/loss/c*",
    "carries": checkpoints.KEY,
    "status": "curves-*/status/c*",
    "metadata": "curves-*/zarr.json",
}


@pytest.fixture(scope="module")
def whole():
    return run()


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    store = tmp_path_factory.mktemp("filled")
    for steps in (8, 16):
        run(steps, store=store)
    return store


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["flip", "delete"])
def test_the_checkpoint_before_counts_if_one_is_damaged(
    tmp_path, filled, whole, caplog, kind, how
):
    store = shutil.copytree(filled, tmp_path / "runs")
    newest = max(store.glob(KINDS[kind]))
    if how == "delete":
        newest.unlink()
    else:
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 1
        newest.write_bytes(data)
    before = ep.TrainResult.load(store)
    assert before.step == 8 and f"{store}" in caplog.text
    np.testing.assert_array_equal(before.status, whole.status[:, :4])
    assert_bits(run(store=store), whole)
    assert ep.TrainResult.load(store).step == 24
    assert len([*store.glob("curves-*")]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_damage_of_both_checkpoints_is_named(tmp_path, filled, kind):
    store = shutil.copytree(filled, tmp_path / "runs")
    for pattern in (KINDS[kind], KINDS[kind].replace("checkpoint", "checkpoint.*")):
        for path in store.glob(pattern):
            path.write_bytes(path.read_bytes()[:-1])
    for act in (lambda: run(store=store), lambda: ep.TrainResult.load(store)):
        with pytest.raises(ValueError, match=f"{store}.*Restore it from a copy") as e:
            act()
        assert "computed" not in str(e.value) and "sweep" not in str(e.value)


def test_files_of_others_stay_and_those_of_a_kill_go(tmp_path, filled, whole):
    store = shutil.copytree(filled, tmp_path / "runs")
    mine = [store / "mine.tex", *(p / "mine.tex" for p in store.glob("curves-*/loss"))]
    for path in mine:
        path.write_text("mine")
    part = store / ".parts" / f"{7:032x}"
    part.write_text("of a kill")
    assert_bits(run(store=store), whole)
    assert all(path.read_text() == "mine" for path in mine) and not part.exists()


@pytest.fixture
def saving(monkeypatch):
    """Write a checkpoint after each call of the program."""
    monkeypatch.setattr(pace, "COMMIT_EVERY", 0.0)
    monkeypatch.setattr(pace, "_SAVE_PAUSE", 0)


@pytest.mark.usefixtures("saving")
def test_a_disk_that_is_full_for_a_while_ends_nothing(
    tmp_path, whole, caplog, monkeypatch
):
    put, full = Folder.put, []

    def fail(self, key, data):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(self, key, data)

    monkeypatch.setattr(Folder, "put", fail)
    steps = {8: full.append, 20: lambda _: full.clear()}
    fill = lambda r: steps.get(r.step, lambda _: None)(0)  # noqa: E731
    assert_bits(run(store=tmp_path / "a", callback=fill), whole)
    assert "Make room there" in caplog.text
    assert_bits(ep.TrainResult.load(tmp_path / "a"), whole)
    steps.popitem()
    with pytest.raises(OSError, match=f"{tmp_path}.*Make room there") as caught:
        run(store=tmp_path / "b", callback=fill)
    assert_bits(caught.value.result, whole)  # pyright: ignore
    full.clear()
    assert 4 < ep.TrainResult.load(tmp_path / "b").step <= 8
    assert_bits(run(store=tmp_path / "b"), whole)


@pytest.mark.usefixtures("saving")
def test_a_deleted_store_ends_the_training(tmp_path):
    seen = []

    def delete(result):
        seen.append(result.step)
        shutil.rmtree(tmp_path / "runs")

    with pytest.raises(OSError, match="deleted"):
        run(store=tmp_path / "runs", callback=delete)
    assert seen == [4] and not (tmp_path / "runs").exists()


def test_a_reader_of_other_stores_names_that_of_trainings(filled):
    with pytest.raises(ValueError, match=r"`TrainResult.load`"):
        ep.SweepResult.load(filled)


def test_a_store_records_what_is_sought(tmp_path, filled):
    halving = ep.search.Halving("loss", 2, mode="max")
    result = run(12, store=tmp_path / "runs", scheduler=halving)
    for found in (result, ep.TrainResult.load(tmp_path / "runs")):
        made = dict(found.curves.made)
        assert (made["steps"], made["by"], made["mode"]) == (12, "loss", "max")
    made = dict(ep.TrainResult.load(filled).curves.made)
    assert made["steps"] == 16 and "by" not in made


def test_the_command_knows_trainings_and_searches(tmp_path, filled, capsys):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    main = pkgutil.resolve_name(project["scripts"]["eqx-pipe"])
    store = shutil.copytree(filled, tmp_path / "runs")
    run(kind="failing", store=tmp_path / "failing")
    points = ep.search.Design(np.linspace(0, 1, 5)[:, None])
    ep.search.explore(
        lambda p: {"y": p["x"]}, {"x": ep.Uniform(0, 1)}, points, rounds=3, num=2,
        by="y", mode="max", store=tmp_path / "search",
    )  # fmt: skip
    shown = {
        store: r"12 trainings; rate: 6, width: 2\n  step     16 of 16\n",
        tmp_path / "failing": r"failed    6  50.0%  \(6, 7, 8",
        tmp_path / "search": "5 points; 3 of 3 rounds; max of y\n  done     5  100",
    }
    for path, text in shown.items():
        assert main(["status", f"{path}"]) == main(["verify", f"{path}"]) == 0
        assert re.search(text, capsys.readouterr().out), text
    file = max(store.glob("curves-*/loss/c*"))
    file.unlink()
    assert main(["verify", f"{store}"]) == 1
    assert f"{file}` is not there" in capsys.readouterr().out
    assert main(["repair", f"{store}"]) == 1 and main(["status", f"{store}"]) == 0
    out = capsys.readouterr().out
    assert "call the same training again" in out and "step     8 of 8" in out
    for path in store.glob("checkpoint*"):
        path.write_text("")
    assert main(["status", f"{store}"]) == 2 and main(["verify", f"{store}"]) == 1
    assert f"`{store}` has no whole checkpoint" in capsys.readouterr().err
    next((tmp_path / "search").glob("round-0001.zarr/y/c*")).unlink()
    assert main(["verify", f"{tmp_path}/search"]) == 1
    assert main(["repair", f"{tmp_path}/search"]) == 0
    assert "round-0001.zarr/y/c" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "search/round-0001.zarr")
    assert main(["status", f"{tmp_path}/search"]) == 2
    assert "no `round-0001.zarr`" in capsys.readouterr().err
