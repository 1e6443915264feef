"""The main job, as a user runs it."""

import os
import subprocess
import sys

import equinox as eqx
import jax
import pytest

from eqx_pipe._cli import main


def run(*arguments, cwd):
    """Runs the demo in a process of its own, as JAX is already running in this one."""
    start = "import sys; from eqx_pipe._cli import main; sys.exit(main())"
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", start, "demo", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return run("--quick", "--out", "results", cwd=folder), folder / "results"


@pytest.mark.slow
def test_it_succeeds_and_says_what_it_found(finished):
    done, _ = finished
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for stage in ["scale", "weighted", "blur", "edges", "MLP"]:
        assert any(stage in line for line in lines)
    (test_line,) = [line for line in lines if "Test accuracy" in line]
    assert float(test_line.split()[2].rstrip("%,")) > 95
    assert "Best setting: learning rate" in done.stdout
    assert lines[-1].startswith("Done in ")


@pytest.mark.slow
def test_the_result_opens_again_with_its_labels(finished):
    import xarray

    done, folder = finished
    table = xarray.open_dataset(folder / "sweep.nc").load()
    assert table["validation_accuracy"].dims == (
        "learning_rate",
        "weight_decay",
        "seed",
    )
    assert f"A sweep of {table['validation_accuracy'].size} trainings" in done.stdout
    best = table["validation_accuracy"].mean("seed").max()
    assert f"Validation accuracy {float(best):.1%}, mean" in done.stdout


@pytest.mark.slow
def test_the_model_opens_again(finished):
    from eqx_pipe.demo import make_model

    _, folder = finished
    empty = make_model(key=jax.random.key(0))
    model = eqx.tree_deserialise_leaves(folder / "model.eqx", empty)
    assert model(jax.numpy.zeros((8, 8))).shape == (10,)


@pytest.mark.slow
def test_the_pictures_are_there(finished):
    _, folder = finished
    assert (folder / "grid.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "pipeline.md").read_text().startswith("```mermaid\nflowchart")


@pytest.mark.slow
def test_it_says_how_to_open_each_file(finished):
    done, folder = finished
    for path in folder.iterdir():
        assert f"  {path.name}: " in done.stdout


@pytest.mark.slow
def test_the_printed_lines_of_code_run(finished, monkeypatch):
    done, folder = finished
    lines = done.stdout.split("\nIn results:")[1].splitlines()
    code = "; ".join(line.strip() for line in lines if line.startswith("    "))
    assert "open_dataset" in code and "tree_deserialise_leaves" in code
    monkeypatch.chdir(folder.parent)
    exec(code, {})


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer(finished, tmp_path):
    import xarray

    _, folder = finished
    assert run("--quick", "--out", "again", cwd=tmp_path).returncode == 0
    first = xarray.open_dataset(folder / "sweep.nc").load()
    again = xarray.open_dataset(tmp_path / "again" / "sweep.nc").load()
    assert first.equals(again)
    model = (folder / "model.eqx").read_bytes()
    assert (tmp_path / "again" / "model.eqx").read_bytes() == model


def said(capsys, monkeypatch, folder, *arguments):
    """What the command says where it ends before it trains: in this process."""
    monkeypatch.chdir(folder)
    try:
        status = main(["demo", *arguments])
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return err


def test_a_missing_extra_is_named(capsys, monkeypatch, tmp_path):
    for name in ("optax", "xarray"):
        monkeypatch.setitem(sys.modules, name, None)
    err = said(capsys, monkeypatch, tmp_path, "--quick")
    assert "optax, xarray not found" in err
    assert "pip install 'eqx_pipe[demo]'" in err


def test_a_folder_that_cannot_be_written(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    err = said(capsys, monkeypatch, tmp_path, "--quick", "--out", "file/results")
    assert "cannot write to the folder file/results" in err and "--out" in err


def test_a_bad_seed(capsys, monkeypatch, tmp_path):
    assert "--seed" in said(capsys, monkeypatch, tmp_path, "--seed", "-1")


def test_help(tmp_path):
    done = run("--help", cwd=tmp_path)
    assert done.returncode == 0
    for option in ["--quick", "--out", "--seed"]:
        assert option in done.stdout
